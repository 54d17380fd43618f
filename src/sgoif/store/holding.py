"""What a folder holds already: a new run must not hide an older one unasked, and one that was not closed says so.

An attempt that starts at step 0 supersedes all that earlier attempts wrote. So a folder that holds a run is refused,
unless that run is resumed, is to be overwritten, or is the one that torchrun has just started again.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from typing import Any

from sgoif.errors import StoreError
from sgoif.files.locations import place_of
from sgoif.store.info import find_info, restarts
from sgoif.store.reader import RunFiles

__all__ = ["closing_command", "count_visits", "describe_unclosed", "refusal_of"]

_RESUME = ", or resume it with monitor.load_state_dict(state) before the first step"


def refusal_of(url: str | os.PathLike[str], *, resumable: bool = True) -> str | None:
    """Say why a new run must not be written to a folder; None where nothing speaks against it.

    Args:
        url: the folder.
        resumable: whether the run could be resumed; an audit cannot.

    Raises:
        StoreError: The folder's ``run.json`` cannot be read.
    """
    info = find_info(place_of(url))
    if info is None or (restarts().get("restarts", 0) > 0 and info.get("state") != "finished"):
        return None
    return (
        f"{str(url)!r} holds {_describe(url, info)}, which a new run there would hide. Name another folder with out=, "
        f"or pass overwrite=True to delete that run and start anew{_RESUME if resumable else ''}."
    )


def _describe(url: str | os.PathLike[str], info: dict[str, Any]) -> str:
    state = "a finished run" if info.get("state") == "finished" else "an unfinished run"
    try:
        with RunFiles(url) as files:
            examples = sum(part.num_rows for part in files.parts("examples"))
            return f"{state} of {examples:,} examples and {count_visits(files):,} visits"
    except (StoreError, OSError):
        return f"{state} that cannot be read"


def count_visits(files: RunFiles) -> int:
    """Visits on disk, of examples or of sequences."""
    return sum(part.num_rows for table in ("visits", "sequence_visits") for part in files.parts(table))


def describe_unclosed(url: str | os.PathLike[str], info: Mapping[str, Any], *, has_visits: bool = True) -> str:
    """Say of a run that is not finished how it ended, as far as is known, and how its visits are added up."""
    if info.get("state") == "finished":
        return f"{str(url)!r} is closed, and has no examples" + (
            f": its visits can be added up with `{closing_command(url)}`." if has_visits else " nor visits on disk."
        )
    ended = "ended without monitor.close()" if info.get("state") == "unclosed" else "is still running or was killed"
    if has_visits:
        then = f"; or add up what was written, without probabilities: `{closing_command(url)}`."
    else:
        then = ": none of its visits is on disk."
    return (
        f"{str(url)!r} {ended}, and its examples are added up when it is closed. Resume the training, or wait for it"
        f"{then}"
    )


def closing_command(url: str | os.PathLike[str]) -> str:
    """The command that adds up the visits of an unclosed run."""
    return f"sgoif close {shlex.quote(str(url))}"
