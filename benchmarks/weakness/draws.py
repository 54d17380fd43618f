"""One draw of a cell: which examples, and which of their labels are wrong."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from benchmarks.trust.draws import Draw, add_noise, stratify
from benchmarks.trust.sets import Pool
from benchmarks.weakness.sets import load_pool

_NOISE = 7_000  # added to the seed, so that noise is not drawn as examples are


def draw(data: str, noise: str, size: int, seed: int, *, is_dev: bool) -> Draw:
    """Draw examples and noise; the arguments fix both."""
    rng = np.random.default_rng([seed, 19 if is_dev else 91])
    pool = load_pool(data, rng, seed, is_dev=is_dev)
    if 0 < size < len(pool.labels):
        pool = pool.take(np.sort(stratify(pool.labels, size, rng)))
    kind, _, percent = noise.partition("-")
    if kind == "human":
        given = _human(pool, percent, seed + _NOISE)
    else:
        given = add_noise(pool, kind, float(percent or 0) / 100, seed + _NOISE)
    return Draw(pool.rows, given, pool.labels, pool.num_classes)


def _human(pool: Pool, percent: str, seed: int) -> NDArray[np.int64]:
    """Labels that people gave: all of them, or as many of the wrong ones as the rate asks for."""
    if pool.human is None:
        raise ValueError("these examples were not labelled by people")
    if not percent:
        return pool.human.copy()
    wrong = np.random.default_rng(seed).permutation(np.flatnonzero(pool.human != pool.labels))
    wrong, given = wrong[: round(float(percent) / 100 * len(pool.labels))], pool.labels.copy()
    given[wrong] = pool.human[wrong]
    return given
