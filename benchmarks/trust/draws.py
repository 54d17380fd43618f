"""One draw of a cell: which examples, and which of their labels are wrong."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.noise import flip_by_pixels, flip_symmetric
from benchmarks.trust.cells import Cell
from benchmarks.trust.sets import Pool, load_pool

TAIL = 50  # the largest class has so many times the examples of the smallest
TWO = (3, 5)  # cat and dog


@dataclass(frozen=True, slots=True)
class Draw:
    """What a method is given, and what it has to find."""

    rows: NDArray[np.float32]
    given: NDArray[np.int64]
    true: NDArray[np.int64]
    num_classes: int

    @property
    def wrong(self) -> NDArray[np.bool_]:
        """Which labels are wrong."""
        return np.asarray(self.given != self.true)


def draw(cell: Cell, seed: int) -> Draw:
    """Draw examples and noise from a seed; a cell and a seed fix both."""
    rng = np.random.default_rng([seed, 19])
    pool = load_pool(cell.data)
    pool = _shape_classes(pool, cell, rng)
    kind = cell.noise.partition("-")[0]
    if kind == "human":
        pool, given = _human(pool, cell, rng)
    else:
        if cell.size and cell.size < len(pool.labels):
            pool = pool.take(np.sort(stratify(pool.labels, cell.size, rng)))
        given = add_noise(pool, kind, cell.rate, seed)
    return Draw(pool.rows, given, pool.labels, pool.num_classes)


def _shape_classes(pool: Pool, cell: Cell, rng: np.random.Generator) -> Pool:
    if cell.shape == "two":
        pool = pool.take(np.flatnonzero(np.isin(pool.labels, TWO)))
        return Pool(pool.rows, (pool.labels == TWO[1]).astype(np.int64), np.array([1, 0]), None, pool.pixels)
    if cell.shape == "tail":
        order, kept = rng.permutation(len(pool.labels)), []
        last = pool.num_classes - 1
        sizes = TAIL ** (-np.arange(pool.num_classes) / last)
        sizes *= cell.size / sizes.sum()
        for label, count in enumerate(sizes):
            kept.append(order[pool.labels[order] == label][: max(8, round(count))])
        return pool.take(np.sort(np.concatenate(kept)))
    return pool


def stratify(labels: NDArray[np.int64], size: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """As many of each class as there are in all, in proportion."""
    order = rng.permutation(len(labels))
    place = np.empty(len(labels))
    for label in np.unique(labels):
        mine = order[labels[order] == label]
        place[mine] = (np.arange(len(mine)) + rng.random()) / len(mine)
    return np.argsort(place, kind="stable")[:size]


def add_noise(pool: Pool, kind: str, rate: float, seed: int) -> NDArray[np.int64]:
    """Labels with ``clean``, ``sym``, ``pair`` or ``idn`` noise, drawn by the seed alone."""
    if kind == "clean":
        return pool.labels.copy()
    if kind == "sym":
        return flip_symmetric(pool.labels, rate, pool.num_classes, seed)
    if kind == "idn":
        assert pool.pixels is not None
        return _flip_by_pixels(pool, rate, seed)
    order = np.random.default_rng(seed).permutation(len(pool.labels))
    candidates = order[pool.pairs[pool.labels[order]] >= 0]
    flipped = candidates[: round(rate * len(pool.labels))]
    given = pool.labels.copy()
    given[flipped] = pool.pairs[pool.labels[flipped]]
    return given


def _flip_by_pixels(pool: Pool, rate: float, seed: int) -> NDArray[np.int64]:
    """Instance-dependent flips, thinned to the rate: the generator's mean lies above it where that is near 0."""
    assert pool.pixels is not None
    given = flip_by_pixels(pool.labels, pool.pixels, rate, pool.num_classes, seed)
    wrong = np.random.default_rng(seed).permutation(np.flatnonzero(given != pool.labels))
    spared = wrong[round(rate * len(given)) :]
    given[spared] = pool.labels[spared]
    return given


def _human(pool: Pool, cell: Cell, rng: np.random.Generator) -> tuple[Pool, NDArray[np.int64]]:
    """Labels that people gave: rightly labelled examples, and as many wrongly labelled ones as the rate asks for."""
    assert pool.human is not None
    is_wrong = pool.human != pool.labels
    size = cell.size or len(pool.labels)
    num_wrong = min(round(cell.rate * size), int(is_wrong.sum()))
    wrong = rng.permutation(np.flatnonzero(is_wrong))[:num_wrong]
    right = np.flatnonzero(~is_wrong)
    right = right[stratify(pool.labels[right], size - num_wrong, rng)]
    chosen = np.sort(np.concatenate([wrong, right]))
    taken = pool.take(chosen)
    assert taken.human is not None
    return taken, taken.human.copy()
