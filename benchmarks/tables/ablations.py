"""Which part does the work: one switch at a time, gates, curvatures."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.tables.rows import grouped, interval, latest, means, table
from benchmarks.tables.watched import name_of, places, values

__all__ = ["ablations", "backends", "controller"]

# name, signal behind `harm_`/`worst_`, window: what each visit's value is and how visits are added up
VARIANTS = (
    ("no gate: every visit counts alike", "", "all"),
    ("the last epoch alone", "", "last"),
    ("the second half alone", "", "second half"),
    ("a ramp in time", "", "ramp"),
    ("no curvature: H = I", "_identity", "gate"),
    ("each refresh solved from nothing, not tracked", "_solved", "gate"),
    ("standardised within the batch", "_std", "gate"),
)


def ablations() -> str:
    """What each switch changes in the AP of `harm` and of `worst`, paired by seed, trusted hold-out."""
    columns = [
        (name_of(dataset, setting), runs)
        for (dataset, setting, holdout), runs in places()
        if holdout == "trusted" and len(runs) > 1 and dataset == "cifar10"
    ]
    rows = []
    for signal in ("harm", "worst"):
        full = [values(runs, signal) for _, runs in columns]
        rows.append([f"`{signal}`, as it is", *map(means, full)])
        for said, suffix, window in VARIANTS:
            other = [values(runs, signal + suffix, window=window) for _, runs in columns]
            rows.append([said, *(_change(a, b) for a, b in zip(other, full, strict=True))])
    own = [values(runs, "own") for _, runs in columns]
    rows.append(["`own`: the anchor of the given class alone", *map(means, own)])
    return table(("switch", *(name for name, _ in columns)), rows)


def _change(values: list[float], full: list[float]) -> str:
    return interval([a - b for a, b in zip(values, full, strict=True)], "+")


def backends(file: str = "label_noise_backends.jsonl") -> str:
    """AP and residual by curvature and solver, on the trainings of one seed."""
    chosen = latest(file)
    kinds = {(run["settings"]["setting"], run["settings"]["holdout"], run["seed"]) for run in chosen}
    standard = [run for (dataset, *_), runs in places() if dataset == "cifar10" for run in runs]
    same = [run for run in standard if (run["settings"]["setting"], run["settings"]["holdout"], run["seed"]) in kinds]
    rows = []
    for (setting, curvature, solver), runs in sorted(grouped([*same, *chosen], ("setting", "curvature", "solver"))):
        residual = np.mean([run["report"]["residual by epoch"][-1] for run in runs])
        found = [means(values(runs, name)) for name in ("harm", "worst", "p_mislabeled")]
        overhead = 100 * np.mean([run["report"]["overhead"] for run in runs])
        rows.append([setting, curvature, solver, f"{residual:.2f}", *found, f"{overhead:.1f}%"])
    header = ("setting", "curvature", "solver", "last residual", "`harm`", "`worst`", "`p_mislabeled`", "own clock")
    return table(header, rows)


def controller() -> str:
    """AP of `harm` and `worst` under every gate, mean over seeds."""
    found = latest("controller.jsonl", key=lambda run: (run["case"], run["seed"]))
    cases: dict[str, list[Any]] = {}
    for run in found:
        cases.setdefault(run["case"], []).append(run["ap"])
    gates = list(found[0]["ap"]) if found else []
    rows = [
        [case, f"`{signal}`", *(means(run[gate][signal] for run in runs) for gate in gates)]
        for case, runs in cases.items()
        for signal in ("harm", "worst")
    ]
    return table(("case", "signal", *gates), rows)
