"""Extra and missing tags: what was found, and how the probabilities fit."""

from __future__ import annotations

from itertools import product

import numpy as np

from benchmarks.tables.rows import Run, grouped, interval, latest, seeds_said, table

__all__ = ["calibration", "tags"]

_SIDES = ("extra", "missing")
_ROWS = {
    "final loss": "loss of the finished model",
    "cleanlab self_confidence": "cleanlab, self-confidence, same model",
    "cleanlab confidence_weighted_entropy": "cleanlab, confidence-weighted entropy, same model",
    "loss": "mean loss over the training",
    "harm": "`harm`",
    "worst": "`worst`",
    "probe_loss": "`probe_loss`",
    "p_wrong": "**`p_wrong`**",
    "audited p_wrong": "**`p_wrong`**, one pass over the finished model (`audit`)",
}


def _reported() -> list[tuple[tuple[str, ...], list[Run]]]:
    runs = [run for run in latest("multilabel.jsonl") if run["settings"]["part"] == "reported"]
    return grouped(runs, ("source", "noise", "holdout"))


def tags() -> str:
    """AP of every score (and precision of the first 1% of its side), each side by itself."""
    rows = []
    for (source, noise, holdout), runs in _reported():
        for name, said in _ROWS.items():
            cells = []
            for side in _SIDES:
                found = [run[side]["scores"][name] for run in runs]
                cells.append(f"{interval([item['ap'] for item in found])} ({np.mean([i['p@1%'] for i in found]):.0f})")
            rows.append([f"{source}, {noise}, {holdout} ({seeds_said(runs)})", said, *cells])
    return table(["collages of, noise, hold-out", "score", "extra tags", "missing tags"], rows)


def calibration() -> str:
    """Errors estimated and planted, and the mean probability of the first 1, 5 and 10% beside the share wrong."""
    rows = []
    for (source, noise, holdout), runs in _reported():
        for run, side, way in product(sorted(runs, key=lambda run: run["seed"]), _SIDES, ("watch", "audit")):
            part = run[side][way]
            tops = [f"{100 * item['value']:.0f}; {100 * item['true']:.0f}" for item in part["precision"]]
            errors = f"{part['errors']['expected']:,.0f}; {part['errors']['true']:,}"
            rows.append([f"{source}, {noise}, {holdout}, seed {run['seed']}, {way}", side, errors, *tops])
    header = ["run", "side", "errors estimated; true", "top 1%: mean p; wrong, %", "top 5%", "top 10%"]
    return table(header, rows)
