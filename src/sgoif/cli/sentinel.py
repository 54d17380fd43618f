"""``sgoif sentinel``: has the distribution of this stream of pictures shifted?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from sgoif.cli.errors import EXCEEDED, FINE
from sgoif.cli.models import load_model
from sgoif.cli.output import count, emit_json, print_lines, print_table
from sgoif.errors import SgoifError
from sgoif.usercode import import_named

if TYPE_CHECKING:
    from sgoif.shift import ShiftReading

__all__ = ["SentinelSettings", "show_sentinel"]

_MOVED = {
    "unlike": "how unlike the pictures are",
    "classes": "the mix of predicted classes",
    "features": "what the layers see",
}


@dataclass(frozen=True, slots=True)
class SentinelSettings:
    """What is looked at, by what."""

    sentinel: str
    model: str
    data: str
    transform: str | None = None
    device: str = "cpu"
    out: str | None = None  # where the sentinel goes, as it stands at the end


def show_sentinel(settings: SentinelSettings, *, top: int | None = 20, as_json: bool = False) -> int:
    """Feed pictures in their order to a sentinel, say what it read, and return the exit code: 1 after an alarm."""
    from sgoif.ood.stored import Broken, stored_batches
    from sgoif.shift import ShiftSentinel

    model = load_model(settings.model, settings.device)
    transform = None
    if settings.transform is not None:
        transform = import_named(settings.transform, "--transform")
    sentinel = ShiftSentinel.load(settings.sentinel, model)
    broken: Broken = []
    batches = stored_batches(settings.data, model, sentinel.batch_size, broken, transform=transform)
    sizes, readings = [], []
    for ids, inputs in batches:
        sizes.append(len(ids))
        readings.append(sentinel.update(inputs))
    if not readings:
        raise SgoifError(f"none of the pictures in '{settings.data}' could be read: {broken[0][1]}")
    if settings.out is not None:
        sentinel.save(settings.out)
    alarm = next((reading for reading in readings if reading.is_alarm), None)
    counts = {"num_pictures": sum(sizes), "num_batches": len(readings), "num_broken": len(broken)}
    if as_json:
        document = {
            "settings": {**asdict(settings), "batch": sentinel.batch_size, "false_alarms": sentinel.false_alarms},
            "counts": counts,
            "alarm": None if alarm is None else asdict(alarm),
            "batches": [asdict(reading) for reading in _shown(readings, top)],
            "broken": [{"id": id, "error": error} for id, error in broken],
        }
        emit_json({"command": "sentinel", "format": 1, **document})
    else:
        print_lines([*_said(alarm, counts, sentinel.false_alarms), ""])
        _print(_shown(readings, top))
    return FINE if alarm is None else EXCEEDED


def _said(alarm: ShiftReading | None, counts: dict[str, int], rate: float) -> list[str]:
    looked_at = f"{count(counts['num_pictures'], 'picture')} in {count(counts['num_batches'])} batches"
    lines = [f"{looked_at}; a stream without a shift raises an alarm once in {count(round(1 / rate))} batches."]
    if counts["num_broken"]:
        lines.append(f"{count(counts['num_broken'], 'picture')} could not be read.")
    if alarm is None:
        return [*lines, "No alarm."]
    since = f"most likely changed with batch {alarm.changed_at:,}"
    return [*lines, f"Alarm at batch {alarm.batch:,}, {since}: {_MOVED[alarm.part]}."]


def _shown(readings: Sequence[ShiftReading], top: int | None) -> list[ShiftReading]:
    """Those nearest to an alarm, in their order."""
    nearest = sorted(readings, key=lambda reading: -reading.nearness)[:top]
    return sorted(nearest, key=lambda reading: reading.batch)


def _print(readings: Sequence[ShiftReading]) -> None:
    rows: list[list[Any]] = [
        [
            f"{reading.batch:,}",
            f"{reading.nearness:.2f}",
            _batches(reading.once_in),
            "yes" if reading.is_alarm else "",
            reading.part,
            f"{reading.changed_at:,}",
        ]
        for reading in readings
    ]
    header = ["batch", "nearness", "usual once in", "alarm", "moved most", "since batch"]
    print_table(header, rows, right=["batch", "nearness", "usual once in", "since batch"])


def _batches(once_in: float) -> str:
    return f"{once_in:,.0f}" if once_in < 1e6 else f"{once_in:.0e}"
