"""Numbers behind the pictures of docs/concepts.md, from one watched training.

The development set with pair-20 noise and a trusted hold-out, tier M. Counts and curves are saved, not examples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from benchmarks import trainings
from benchmarks.experiment import Experiment
from benchmarks.trainings import Trained, train

EDGES = np.linspace(-8, 8, 65)  # of `harm`, in robust standard deviations of its step
BELIEFS = np.linspace(0, 1, 11)


def curves(found: Trained) -> dict[str, Any]:
    """What the pictures show."""
    step, loss = found.visits["step"], found.table["loss"]
    confidence = np.bincount(step, np.nan_to_num(found.visits["confidence"])) / np.maximum(np.bincount(step), 1)
    centred = loss - np.median(loss)
    standardised = centred / (1.4826 * np.median(np.abs(centred)))
    sides = {"right": ~found.wrong, "wrong": found.wrong}
    return {
        "edges": EDGES.tolist(),
        "harm": {name: _counts(found.table["harm_std"][of]) for name, of in sides.items()},
        "loss": {name: _counts(standardised[of]) for name, of in sides.items()},
        "beliefs": _beliefs(found.table["p_mislabeled"], found.wrong),
        "residual": _thin(found.residual.mean(1)),
        "confidence": _thin(confidence),
    }


def _counts(values: NDArray[np.float64]) -> list[int]:
    counts: list[int] = np.histogram(np.clip(values, EDGES[0], EDGES[-1]), EDGES)[0].tolist()
    return counts


def _beliefs(p: NDArray[np.float64], wrong: NDArray[np.bool_]) -> list[dict[str, float]]:
    """How many labels were called wrong with about this probability, and how many of them are."""
    bins = np.digitize(p, BELIEFS[1:-1])
    return [
        {"said": float(p[of].mean()), "true": float(wrong[of].mean()), "count": int(of.sum())}
        for of in (bins == place for place in range(len(BELIEFS) - 1))
        if of.any()
    ]


def _thin(values: NDArray[np.float64], every: int = 10) -> list[float | None]:
    return [round(float(value), 4) if np.isfinite(value) else None for value in values[::every]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One watched training of the development set."""

    setting: str = "pair-20"
    holdout: Literal["trusted", "as-given"] = "trusted"
    tier: Literal["S", "M"] = "M"
    split: Literal["development"] = "development"
    seed: int = 0


def measure(setup: Setup) -> dict[str, Any]:
    sizes: dict[str, Any] = {"S": {"examples": 2_000, "epochs": 2}, "M": {}}[setup.tier]
    return curves(train(trainings.Setup(setting=setup.setting, holdout=setup.holdout, seed=setup.seed, **sizes)))


EXPERIMENT = Experiment(
    name="concepts",
    settings=Setup,
    run=measure,
    small={"tier": "S"},
    describe=lambda row: str(row["beliefs"]),
)
