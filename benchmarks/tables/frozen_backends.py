"""Curvature and damping on frozen features."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.tables.rows import Run, grouped, latest, table

__all__ = ["chosen_by_canaries", "frozen_backends"]


def frozen_backends() -> str:
    """AP of `harm`, `worst` and `p_mislabeled` by curvature and damping on frozen features, mean over seeds.

    The last column is the lowest P@1% of each over the settings, the last line of each part a choice made anew in every
    run, without any true label.
    """
    runs = latest("frozen_backends.jsonl")
    runs += chosen_by_canaries(runs)
    settings = list(dict.fromkeys(run["settings"]["setting"] for run in runs))
    rows = []
    for (way, holdout, features), same in grouped(runs, ("way", "holdout", "features")):
        where = f"{way}, {holdout}" + ("" if features == "standardised" else f", {features} features")
        for (backend,), mine in grouped(same, ("backend",)):
            found = {setting: [run["report"] for run in each] for (setting,), each in grouped(mine, ("setting",))}
            cells = [_signals(found.get(setting, []), "ap") for setting in settings]
            lowest = np.min([_means(reports, "p@1%") for reports in found.values()], axis=0)
            rows.append([where, backend, *cells, _slashed(lowest)])
            where = ""
    return table(("head, hold-out", "curvature, damping", *settings, "lowest P@1%"), rows)


def chosen_by_canaries(runs: Iterable[Run]) -> list[Run]:
    """Of each case the identity's or K-FAC's run whose `worst` finds most canaries, named so."""
    best: dict[Any, Run] = {}
    for run in runs:
        where = {name: value for name, value in run["settings"].items() if name != "backend"}
        has_canaries = run["settings"]["backend"] == "identity" or run["settings"]["backend"].startswith("kfac")
        key = (str(sorted(where.items())), run["seed"])
        if has_canaries and (key not in best or run["canaries"]["worst"] > best[key]["canaries"]["worst"]):
            best[key] = {**run, "settings": {**run["settings"], "backend": "chosen by canaries"}}
    return list(best.values())


def _signals(reports: Sequence[Mapping[str, Any]], key: str) -> str:
    return _slashed(_means(reports, key)) if reports else ""


def _means(reports: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    return [float(np.mean([report[name][key] for report in reports])) for name in ("harm", "worst", "p_mislabeled")]


def _slashed(values: Iterable[float]) -> str:
    return " / ".join(f"{value:.1f}" for value in values)
