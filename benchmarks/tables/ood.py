"""Out-of-distribution inputs: one table per kind of usual images, the bars, and the alarms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.tables.rows import Run, latest, means, seeds_said, table

__all__ = ["alarms", "bars", "cifar10", "fashion", "mnist"]

FILE = "ood.jsonl"
OURS = "sgoif"
RIVALS = ("Energy", "KNN", "ViM", "fDBD")  # those that the bar names
_NAMES = {"mnist": "MNIST", "fashion": "Fashion-MNIST", "cifar10": "CIFAR-10"}
_SHOWN = ("auroc", "aupr_out", "aupr_in", "fpr95")


def mnist() -> str:
    """Usual images: MNIST."""
    return _detectors("mnist")


def fashion() -> str:
    """Usual images: Fashion-MNIST."""
    return _detectors("fashion")


def cifar10() -> str:
    """Usual images: CIFAR-10."""
    return _detectors("cifar10")


def bars() -> str:
    """Whether the score is never below MSP, and on average not below the best of those named."""
    rows = [row for dataset in _NAMES for row in _bars(dataset, _runs(dataset))]
    return table(("in-distribution images", "asks", "measured", ""), rows)


def alarms() -> str:
    """How many usual images raise an alarm, and how many of the others."""
    rows = []
    for dataset, name in _NAMES.items():
        reports = [run["report"] for run in _runs(dataset)]
        for rate in ("0.05", "0.01") if reports else ():
            same, test = (
                means(100 * r[key][rate] for r in reports) for key in ("false_alarms_same_draw", "false_alarms")
            )
            caught = [100 * pair["detected"] for r in reports for pair in r["pairs"].values()]
            found = f"{min(caught):.0f} to {max(caught):.0f}" if rate == "0.05" else ""
            rows.append([name, f"{100 * float(rate):g}", same, test, found])
    header = ("in-distribution images", "promised %", "same draw %", "test images %", "of the other sets caught %")
    return table(header, rows)


def _runs(dataset: str) -> list[Run]:
    return [run for run in latest(FILE) if run["settings"]["dataset"] == dataset]


def _values(runs: Sequence[Run], detector: str, metric: str) -> dict[str, list[float]]:
    """By set, one value per seed."""
    sets: Sequence[str] = list(runs[0]["report"]["pairs"])
    return {name: [r["report"]["pairs"][name]["detectors"][detector][metric] for r in runs] for name in sets}


def _mean(runs: Sequence[Run], detector: str, metric: str) -> float:
    return float(np.mean(list(_values(runs, detector, metric).values())))


def _detectors(dataset: str) -> str:
    runs = _runs(dataset)
    if not runs:
        return "Not measured yet."
    first: dict[str, Any] = runs[0]["report"]
    accuracy = means(100 * run["report"]["accuracy"] for run in runs)
    said = f"{_NAMES[dataset]}, {first['usual']:,} images; {seeds_said(runs)}, {accuracy}% right"
    sets = [f"{name} ({pair['count']:,})" for name, pair in first["pairs"].items()]
    header = (said, *sets, "mean AUROC", "AUPR out", "AUPR in", "FPR@95", "us")
    rows = []
    for detector in sorted(first["us"], key=lambda name: -_mean(runs, name, "auroc")):
        cells = [means(values) for values in _values(runs, detector, "auroc").values()]
        cells += [f"{_mean(runs, detector, metric):.1f}" for metric in _SHOWN]
        us = np.mean([run["report"]["us"][detector] for run in runs])
        rows.append([f"**{detector}**" if detector == OURS else detector, *cells, f"{us:.1f}"])
    return table(header, rows)


def _bars(dataset: str, runs: Sequence[Run]) -> Iterator[list[str]]:
    if not runs:
        return
    ours, msp = _values(runs, OURS, "auroc"), _values(runs, "MSP", "auroc")
    gap, where = min((ours[name][i] - msp[name][i], name) for name in ours for i in range(len(runs)))
    best = max(RIVALS, key=lambda name: _mean(runs, name, "auroc"))
    above = _mean(runs, OURS, "auroc") - _mean(runs, best, "auroc")
    name = f"{_NAMES[dataset]}, {seeds_said(runs)}"
    yield [name, "AUROC never below MSP's, any set and seed", f"{gap:+.2f} ({where})", _met(gap)]
    yield [name, f"mean AUROC not below the best of {', '.join(RIVALS)}", f"{above:+.2f} ({best})", _met(above)]


def _met(gap: float) -> str:
    return "met" if gap >= 0 else "**missed**"
