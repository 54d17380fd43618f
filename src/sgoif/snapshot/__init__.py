"""A snapshot of what judges: enough to score any example later, elsewhere, given the model with the same weights."""

from sgoif.snapshot.files import read_snapshot, write_snapshot
from sgoif.snapshot.making import snapshot_audit, snapshot_of, take_snapshot
from sgoif.snapshot.snapshot import About, Snapshot

__all__ = [
    "About",
    "Snapshot",
    "read_snapshot",
    "snapshot_audit",
    "snapshot_of",
    "take_snapshot",
    "write_snapshot",
]
