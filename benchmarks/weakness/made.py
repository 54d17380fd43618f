"""Made tables: labels drawn from logistic models of the features, clusters, curves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Table = tuple[NDArray[np.floating[Any]], NDArray[np.integer[Any]]]


def make(name: str, seed: int) -> Table:
    """Make the table of this name; another seed makes another one."""
    return TABLES[name](seed)


def _drawn_2(seed: int) -> Table:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(1_000, 6))
    p = 1 / (1 + np.exp(-1.2 * rows[:, 0] - 0.8 * rows[:, 1] * rows[:, 2]))
    return rows, (rng.random(1_000) < p).astype(int)


def _drawn_2_rare(seed: int) -> Table:
    """Few of the second class."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(1_500, 10))
    z = rows[:, 0] + 0.7 * rows[:, 1] - 1.5
    return rows, (rng.random(1_500) < 1 / (1 + np.exp(-2 * z))).astype(int)


def _drawn_5(seed: int) -> Table:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(2_000, 12))
    logits = 1.5 * rows @ rng.normal(size=(12, 5)) / np.sqrt(3)
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    return rows, np.array([rng.choice(5, p=each) for each in p])


def _clusters(seed: int, *, is_bent: bool) -> Table:
    """Classes that a plane separates, or classes that each lie in several places."""
    from sklearn.datasets import make_classification

    kind: dict[str, Any] = {"n_informative": 8, "n_redundant": 2, "n_classes": 4, "flip_y": 0}
    kind |= {"n_clusters_per_class": 3, "class_sep": 1.5} if is_bent else {"n_clusters_per_class": 1, "class_sep": 2.0}
    found: Table = make_classification(2_000, 20, random_state=seed + 31, **kind)
    return found


def _friedman(seed: int) -> Table:
    """Three equal parts of a value that features tell with noise."""
    from sklearn.datasets import make_friedman1

    rows, values = make_friedman1(900, noise=0.5, random_state=seed)
    return rows, np.digitize(values, np.quantile(values, [0.33, 0.66]))


def _moons(seed: int) -> Table:
    from sklearn.datasets import make_moons

    found: Table = make_moons(500, noise=0.25, random_state=seed)
    return found


TABLES: Mapping[str, Callable[[int], Table]] = {
    "drawn-2": _drawn_2,
    "drawn-2-rare": _drawn_2_rare,
    "drawn-5": _drawn_5,
    "made-linear": lambda seed: _clusters(seed, is_bent=False),
    "made-bent": lambda seed: _clusters(seed, is_bent=True),
    "friedman": _friedman,
    "moons": _moons,
}
