"""Numbers behind the pictures of docs/concepts.md, from one watched training: ``python -m benchmarks.concepts``.

The development set with pair-20 noise and a trusted hold-out, tier M. Counts and curves are saved, not examples.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.label_noise import TIERS
from benchmarks.records import append_result
from benchmarks.trainings import Setup, Trained, train

EDGES = np.linspace(-8, 8, 65)  # of `harm`, in robust standard deviations of its step
BELIEFS = np.linspace(0, 1, 11)


def curves(found: Trained) -> dict[str, Any]:
    """What the pictures show."""
    return {
        "edges": EDGES.tolist(),
        "harm": {name: _counts(found.table["harm_std"][of]) for name, of in _sides(found).items()},
        "loss": {name: _counts(_standardised(found.table["loss"])[of]) for name, of in _sides(found).items()},
        "beliefs": _beliefs(found.table["p_mislabeled"], found.wrong),
        "residual": _thinned(found.residual.mean(1)),
        "confidence": _thinned(_by_step(found.visits["step"], found.visits["confidence"])),
    }


def _sides(found: Trained) -> dict[str, NDArray[np.bool_]]:
    return {"right": ~found.wrong, "wrong": found.wrong}


def _counts(values: NDArray[np.float64]) -> list[int]:
    counts: list[int] = np.histogram(np.clip(values, EDGES[0], EDGES[-1]), EDGES)[0].tolist()
    return counts


def _standardised(values: NDArray[np.float64]) -> NDArray[np.float64]:
    middle = np.median(values)
    return np.asarray((values - middle) / (1.4826 * np.median(np.abs(values - middle))))


def _beliefs(p: NDArray[np.float64], wrong: NDArray[np.bool_]) -> list[dict[str, float]]:
    """How many labels were called wrong with about this probability, and how many of them are."""
    bins = np.digitize(p, BELIEFS[1:-1])
    return [
        {"said": float(p[of].mean()), "true": float(wrong[of].mean()), "count": int(of.sum())}
        for of in (bins == place for place in range(len(BELIEFS) - 1))
        if of.any()
    ]


def _by_step(step: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.bincount(step, np.nan_to_num(values)) / np.maximum(np.bincount(step), 1)


def _thinned(values: NDArray[np.float64], every: int = 10) -> list[float | None]:
    return [round(float(value), 4) if np.isfinite(value) else None for value in values[::every]]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tier", choices=sorted(TIERS), default="M")
    parser.add_argument("--save", help="a file under benchmarks/results")
    options = parser.parse_args(arguments)
    size = TIERS[options.tier]["cifar10"]
    setup = Setup(examples=size["examples"], epochs=size["epochs"])
    found = curves(train(setup))
    print(found["beliefs"])
    if options.save:
        settings = {"setting": setup.setting, "holdout": setup.holdout, "tier": options.tier, "split": setup.split}
        append_result(options.save, {"benchmark": "concepts", "settings": settings, "seed": setup.seed, **found})


if __name__ == "__main__":
    main()
