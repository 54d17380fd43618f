"""The watched trainings of ``label_noise``: in a fixed order, by signal, by hold-out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.label_noise import TIERS
from benchmarks.tables.rows import Run, grouped, latest

__all__ = ["FREE", "Place", "best_free", "clean_runs", "name_of", "places", "values"]

FILE = "label_noise_reported.jsonl"
ORDER = (
    "sym-2",
    "pair-3",
    "pair-10",
    "pair-20",
    "sym-20",
    "sym-40",
    "cl-20-0",
    "cl-40-.6",
    "idn-20",
    "tail-20",
    "aggre",
    "worst",
)
FREE = {"loss": "loss", "margin": "AUM", "el2n": "EL2N"}  # what falls out of any training
WINDOWS = ("gate", "second half", "all")

Place = tuple[str, str, str]  # dataset, setting, hold-out


def places() -> list[tuple[Place, list[Run]]]:
    """Runs of tier M with errors, by dataset, setting and hold-out."""
    with_errors = (run for run in latest(FILE) if _is_tier_m(run) and "signals" in run["report"])
    found = grouped(with_errors, ("dataset", "setting", "holdout"))
    return sorted(((place, runs) for place, runs in found), key=lambda item: _rank(item[0]))  # type: ignore[misc]


def clean_runs() -> list[tuple[str, list[Run]]]:
    """Runs of tier M on clean labels, by hold-out."""
    found = (run for run in latest(FILE) if _is_tier_m(run) and "claimed" in run["report"])
    return [(holdout, runs) for (holdout,), runs in grouped(found, ("holdout",))]


def _is_tier_m(run: Run) -> bool:
    sizes = TIERS["M"][run["settings"]["dataset"]]
    return all(run["settings"][key] == value for key, value in sizes.items())


def _rank(place: tuple[str, ...]) -> tuple[Any, ...]:
    dataset, setting, holdout = place
    return dataset, ORDER.index(setting) if setting in ORDER else len(ORDER), setting, holdout != "trusted"


def name_of(dataset: str, setting: str) -> str:
    return setting if dataset == "cifar10" else f"CIFAR-100 {setting}"


def values(runs: Sequence[Run], signal: str, key: str = "ap", window: str = "gate") -> list[float]:
    """One metric of a signal, by run; NaN where the run could not be calibrated."""
    reports = [run["report"] for run in runs]
    if signal == "p_mislabeled":
        return [report[signal][key] if report[signal] else float("nan") for report in reports]
    return [report["signals"][signal][window][key] for report in reports]


def best_free(runs: Sequence[Run]) -> tuple[str, list[float]]:
    """The best of loss, AUM and EL2N, each over all visits, the second half, or weighted by our gate: generous."""
    found = {(signal, window): values(runs, signal, window=window) for signal in FREE for window in WINDOWS}
    best = max(found, key=lambda key: float(np.mean(found[key])))
    return FREE[best[0]], found[best]
