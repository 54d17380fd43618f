"""What weights of examples are worth: accuracy by method, the difference to plain training, and the price."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.tables.rows import Run, interval, latest, table

__all__ = ["accuracy", "classes"]

_METHODS = {
    "plain": "plain training",
    "plain, without hold-out": "plain training, without our hold-out",
    "ours": "**`monitor.weights`** in the loss",
    "ours, sampler": "**`InfluenceSampler`**",
    "ours, class sizes": "sizes of classes alone, by the same weights",
    "SCE": "symmetric cross-entropy",
    "mixup": "mixup, alpha 1",
    "mixup, alpha 0.2": "mixup, alpha 0.2",
    "co-teaching": "co-teaching, told the rate",
}
_SETTINGS = {"pair-20": "pair-20 (20%)", "worst": "worst (40%)", "clean": "clean"}


def _reported() -> dict[tuple[str, str], dict[int, Run]]:
    """Trainings by setting and method, and in these by seed."""
    found: dict[tuple[str, str], dict[int, Run]] = {}
    for run in latest("curriculum.jsonl"):
        settings = run["settings"]
        if settings["split"] == "reported":
            found.setdefault((settings["setting"], settings["method"]), {})[run["seed"]] = run
    return found


def accuracy() -> str:
    """Accuracy of every method on every setting; differences are paired by seed."""
    found, rows = _reported(), []
    for setting, said in _SETTINGS.items():
        plain = found.get((setting, "plain"), {})
        for method, name in _METHODS.items():
            runs = found.get((setting, method), {})
            if runs:
                values = [100 * runs[seed]["accuracy"] for seed in sorted(runs)]
                each = ", ".join(f"{value:.1f}" for value in values)
                rows.append([said, name, f"{np.mean(values):.1f} ({each})", *_beside(plain, runs)])
    return table(["labels (wrong)", "method", "accuracy (by seed)", "over plain", "CPU time over plain"], rows)


def _beside(plain: Mapping[int, Run], runs: Mapping[int, Run]) -> list[str]:
    both = [seed for seed in sorted(runs) if seed in plain]
    if not both or runs == plain:
        return ["", ""]
    gains = [100 * (runs[seed]["accuracy"] - plain[seed]["accuracy"]) for seed in both]
    costs = [runs[seed]["cpu_s"] / plain[seed]["cpu_s"] for seed in both]
    return [interval(gains, "+"), f"{np.mean(costs):.2f}"]


def classes() -> str:
    """Accuracy by class under pair noise: which classes lose, and which win."""
    found = _reported()
    names = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    rows = []
    for method, name in _METHODS.items():
        runs = found.get(("pair-20", method), {})
        if runs:
            rows.append([name, *_mean_by_class(list(runs.values()))])
    return table(["method, pair-20", *names], rows)


def _mean_by_class(runs: Sequence[Run]) -> list[str]:
    return [f"{100 * value:.0f}" for value in np.mean([run["by_class"] for run in runs], axis=0)]
