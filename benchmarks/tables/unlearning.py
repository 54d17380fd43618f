"""Forgetting: predictions against retraining, of a convex problem and of a network."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.tables.rows import Run, latest, seeds_said, table

__all__ = ["anchors", "convex", "network", "steps"]

_METHODS = {
    "plan": "**`unlearning_plan`**",
    "influence": "sum of influences (curvature of all, first order)",
    "gradients": "sum of gradient products (no curvature)",
}


def _runs(part: str) -> list[Run]:
    return [run for run in latest("unlearning.jsonl") if run["settings"]["part"] == part and run["seed"] > 0]


def _kinds(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Requests of all seeds by their kind."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        for request in run["requests"]:
            found.setdefault(request["kind"], []).append(request)
    return found


def convex() -> str:
    """Agreement over test pictures, mean over requests, the lowest in brackets."""
    runs = _runs("convex")
    rows = []
    for kind, requests in _kinds(runs).items():
        for method, said in _METHODS.items():
            scores = [request["methods"][method] for request in requests]
            off = "" if method == "gradients" else f"{100 * np.mean([score['off'] for score in scores]):.0f}%"
            name = f"{kind} ({len(requests)} requests, {seeds_said(runs)})"
            rows.append(
                [name, said, *(_cell([s[key] for s in scores]) for key in ("pearson", "spearman", "logits")), off]
            )
    header = ["request", "predicted by", "losses, Pearson", "losses, Spearman", "logits, Pearson", "losses off by"]
    return table(header, rows)


def anchors() -> str:
    """Agreement over the requests of a seed, mean over seeds: of all test pictures, and of the classes."""
    runs = _runs("convex")
    rows = []
    for said, pick in (("all test pictures", lambda values: [values[0]]), ("the test pictures of a class", _classes)):
        found = [[value for run in runs for value in pick(run["by_anchor"][how])] for how in ("pearson", "spearman")]
        rows.append([f"{said} ({seeds_said(runs)})", *map(_cell, found)])
    return table(["mean loss of", "Pearson", "Spearman"], rows)


def _classes(values: Sequence[float]) -> Sequence[float]:
    return values[1:]


def _cell(values: Sequence[float]) -> str:
    return f"{np.mean(values):.3f} ({min(values):.3f})"


def steps() -> str:
    """How far the one step is from the retrained head, and what its certificate says."""
    rows = []
    for kind, requests in _kinds(_runs("convex")).items():
        error, relative, slack = (
            np.array([request[key] for request in requests]) for key in ("error", "relative", "bound_over_distance")
        )
        held = f"{int((slack >= 1).sum())} of {len(slack)}, {np.median(slack):.0f} times too wide"
        seconds = f"{np.mean([request['cpu_s'] for request in requests]):.0f}"
        rows.append([kind, f"{error.mean():.3f} ({error.max():.3f})", f"{relative.mean():.3f}", held, seconds])
    return table(["request", "distance left", "`relative`", "bound holds", "processor seconds"], rows)


def network() -> str:
    """Correlations over groups, for test pictures and for the mean loss of each class."""
    runs = _runs("network")
    kinds = [name for name, value in runs[0].items() if isinstance(value, dict) and "methods" in value] if runs else []
    rows = []
    for kind in kinds:
        found = [run[kind] for run in runs]
        name = f"{kind} ({len(found[0]['certificates'])} groups, {seeds_said(runs)})"
        for method in sorted(found[0]["methods"], key=lambda method: not method.startswith("plan")):
            said = _METHODS.get(method, f"**`unlearning_plan`**, {method.partition(', ')[2]}")
            said = said.replace("curvature of all, first order", "K-FAC")
            cells = [
                f"{np.mean([one['methods'][method][what][how] for one in found]):.2f}"
                for what in ("anchors", "pictures")
                for how in ("pearson", "spearman")
            ]
            slope = np.mean([one["methods"][method]["anchors"]["slope"] for one in found])
            rows.append([name, said, *cells, "" if method == "gradients" else f"{slope:.2f}"])  # they have no unit
        ceilings = [f"{np.mean([one['ceiling'][what] for one in found]):.2f}" for what in ("anchors", "pictures")]
        rows.append([name, "the ceiling: retraining itself", ceilings[0], "", ceilings[1], "", ""])
    header = [
        "left out",
        "predicted by",
        "classes, Pearson",
        "Spearman",
        "pictures, Pearson",
        "Spearman",
        "true over predicted",
    ]
    return table(header, rows)
