"""Streams that change: how soon each detector tells, and how rarely it is wrong where nothing changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from benchmarks.shift.corruptions import CORRUPTIONS
from benchmarks.shift.detectors import DETECTORS, OURS
from benchmarks.shift.streams import LABEL_SHIFTS
from benchmarks.tables.rows import Run, latest, means, seeds_said, table

__all__ = ["alarms", "delays"]

FILE = "shift.jsonl"
_KINDS = {"usual": "passes over fresh images", "endless": "endless, memory full"}
_HORIZON = 1_000


def alarms() -> str:
    """Alarms of our sentinel where nothing changed, with a 95% interval over calibrations."""
    runs = sorted(latest(FILE), key=lambda run: int(run["seed"]))
    rows = [[f"network {run['seed']}, {said}", *_rate([run], kind)] for run in runs for kind, said in _KINDS.items()]
    rows += [[f"**all, {said}**", *_rate(runs, kind)] for kind, said in _KINDS.items() if runs]
    header = (
        "usual streams",
        "calibrations",
        "batches",
        "alarms",
        "in 10,000",
        "calibrations without any",
        "most of one",
    )
    return table(header, rows)


def delays() -> str:
    """Batches from the change to the alarm: median, 90th percentile, and how many streams were never heard."""
    runs = latest(FILE)
    if not runs:
        return "Not measured yet."
    rows = []
    for change in _ordered(runs[0]["report"]["changes"]):
        right = [run["report"]["accuracies"].get(change) for run in runs]
        accuracy = "" if None in right else means(100 * share for share in right)
        found = [run["report"]["changes"][change] for run in runs]
        cells = [_delay([delay for each in found for delay in each["delays"][name]]) for name in DETECTORS]
        rows.append([change, accuracy, *cells, _parts([part for each in found for part in each["part"]])])
    num_streams = sum(len(run["report"]["changes"]["nothing"]["delays"][OURS]) for run in runs)
    first = f"change ({seeds_said(runs)}, {num_streams} streams)"
    shown = [f"**{name}**" if name == OURS else name for name in DETECTORS]
    return table((first, "right %", *shown, "what moved"), rows)


def _ordered(changes: Iterable[str]) -> list[str]:
    """Corruptions from weak to strong, then classes, then other images by their share."""
    made_worse = [f"{kind} {strength:g}" for kind, strengths in CORRUPTIONS.items() for strength in strengths]
    first = ["nothing", *made_worse, *LABEL_SHIFTS]
    others = [change for change in changes if change not in first]
    return first + sorted(others, key=lambda name: float(name.partition("%")[0]) if "%" in name else np.inf)


def _rate(runs: Sequence[Run], kind: str) -> list[str]:
    found = [run["report"][kind] for run in runs]
    counts = np.array([count for each in found for count in each["alarms"]])
    per_calibration = sum(each["num_batches"] for each in found) / len(counts)
    rates = 1e4 * counts / per_calibration
    half = 1.96 * rates.std(ddof=1) / len(rates) ** 0.5
    batches = f"{round(per_calibration * len(counts)):,}"
    cells = [str(len(counts)), batches, str(counts.sum()), f"{rates.mean():.2f} ± {half:.2f}"]
    return [*cells, str(int((counts == 0).sum())), str(counts.max())]


def _delay(found: Sequence[int | None]) -> str:
    values = np.array([np.inf if delay is None else delay for delay in found])
    missed = float(np.isinf(values).mean())
    # the smallest delay by which half and nine tenths of the streams were heard
    median, most = (np.sort(values)[int(np.ceil(share * len(values))) - 1] for share in (0.5, 0.9))
    if np.isinf(median):
        return f"{100 * (1 - missed):.0f}% within {_HORIZON:,}"
    if np.isinf(most):
        return f"{median:,.0f}, {100 * missed:.0f}% never"
    return f"{median:,.0f} ({most:,.0f})"


def _parts(found: Sequence[str]) -> str:
    if not found:
        return ""
    name, count = Counter(found).most_common(1)[0]
    return f"{name} {100 * count / len(found):.0f}%"
