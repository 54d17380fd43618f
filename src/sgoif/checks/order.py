"""Order: whether classes, or the examples of one class, change along the file.

Both are permutation tests, valid for any data: where the order means nothing, every order is as likely. The test within
classes permutes examples inside their class only, so that a file sorted by class does not set it off.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sgoif.checks.data import CheckedData, DataIssue, cannot_check, list_worst
from sgoif.checks.numbers import make_rng, permutation_p
from sgoif.checks.outliers import reduce_features
from sgoif.types import Floats
from sgoif.wording import count

__all__ = ["find_label_order", "find_order_within_classes"]

_FEWEST = 100
_SAMPLE = 5_000
_BLOCKS = 20
_DIRECTIONS, _WAVES = 10, 6
_ALPHA = 0.01
_SORTED = 0.5  # share of neighbours in the file beyond chance that have the same label: the file is sorted by class
_CLEAR = 0.05  # share of the variance that the order explains


def find_label_order(data: CheckedData, *, seed: int = 0) -> DataIssue:
    """Test whether the classes are spread evenly along the file, in blocks and between neighbours."""
    kind, rows = "label_order", np.flatnonzero(data.labels >= 0)
    if len(rows) < _FEWEST or len(np.unique(data.labels[rows])) < 2:
        return cannot_check(
            kind, f"{count(len(rows), 'labelled example')} of at least two classes; {_FEWEST} are needed"
        )
    rng = make_rng(seed, kind)
    near = _codes(data.labels[_stretch(rows, rng)])
    rows = _in_order(rows, rng)
    codes, block = _codes(data.labels[rows]), _blocks(len(rows))
    p_value = _smaller_p(
        _permutation_p(lambda order: float(_unevenness(codes[order], block).sum()), _shuffle(len(codes), rng)),
        _permutation_p(lambda order: _share_alike(near[order]), _shuffle(len(near), rng)),
    )
    shares = np.bincount(near) / len(near)
    alike, by_chance = _share_alike(near), float(shares @ shares)
    is_found = p_value <= _ALPHA
    title = "The order of the labels is as random as that of a shuffled file."
    if is_found:
        is_sorted = alike - by_chance >= _SORTED * (1 - by_chance)
        title = f"The classes are not spread evenly along the file: {alike:.0%} of neighbours have the same label, "
        title += f"{by_chance:.0%} would by chance{'; it is sorted by class' if is_sorted else ''}."
    worst = _unevenness(codes, block).sum(1)
    named = rows[block == int(worst.argmax())] if is_found else rows[:0]
    return DataIssue(
        kind,
        title,
        int(is_found),
        p_value=p_value,
        severity="low" if is_found else "none",
        what_to_do="Shuffle before you split or train; a split by position would hold other classes.",
        **list_worst(data, named, np.full(len(named), float(worst.max()))),
    )


def find_order_within_classes(data: CheckedData, *, seed: int = 0) -> DataIssue:
    """Test whether the features of a class drift along the file, or resemble those of their neighbours in it."""
    kind = "order_within_classes"
    if data.features is None:
        return cannot_check(kind, "the run has no embeddings or numeric columns")
    rows = np.flatnonzero((data.labels >= 0) & data.is_finite)
    rng = make_rng(seed, kind)
    spread, near = (_centre(data, part, seed) for part in (_in_order(rows, rng), _stretch(rows, rng)))
    if spread is None or near is None:
        return cannot_check(kind, f"{count(len(rows), 'example')} with features; {_FEWEST} in classes of 5 are needed")
    drift = _explained(spread.directions, _rank_within(spread.codes))
    p_drift = _permutation_p(drift, _shuffle_within(spread.codes, rng))
    resemblance = _resemblance(near.directions, _next_within(near.codes))
    p_value = _smaller_p(p_drift, _permutation_p(resemblance, _shuffle_within(near.codes, rng)))
    is_found = p_value <= _ALPHA
    title = "Within the classes, the order of the examples is as random as that of a shuffled file."
    share = drift(np.arange(len(spread.codes))) / max(spread.directions.shape[1], 1)
    if is_found and 2 * p_drift <= _ALPHA:
        title = f"Examples of the same class change along the file; the order explains {share:.1%} of what varies most."
    elif is_found:
        title = "Examples of the same class resemble those next to them in the file more than others."
    block = _blocks(len(spread.rows))
    shift = np.array([np.linalg.norm(spread.directions[block == b].mean(0)) for b in range(_BLOCKS)])
    named = spread.rows[block == int(shift.argmax())] if is_found else spread.rows[:0]
    return DataIssue(
        kind,
        title,
        int(is_found),
        p_value=p_value,
        severity="none" if not is_found else "high" if share >= _CLEAR else "medium",
        what_to_do="Find out what changed (camera, source, date) and split by it: a random split flatters accuracy.",
        **list_worst(data, named, np.full(len(named), float(shift.max()))),
    )


Order = NDArray[np.int64]
Statistic = Callable[[Order], float]
Draw = Callable[[], Order]


def _permutation_p(statistic: Statistic, draw: Draw) -> float:
    return permutation_p(statistic(np.sort(draw())), lambda: statistic(draw()))


def _smaller_p(one: float, other: float) -> float:
    """The smaller of two p-values, corrected: a file may drift slowly, or only resemble its neighbours."""
    return min(1.0, 2 * min(one, other))


def _codes(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.unique(labels, return_inverse=True)[1].reshape(-1)


def _blocks(size: int) -> NDArray[np.int64]:
    return np.arange(size) * _BLOCKS // max(size, 1)


def _share_alike(codes: NDArray[np.int64]) -> float:
    return float((codes[1:] == codes[:-1]).mean())


def _shuffle(size: int, rng: np.random.Generator) -> Draw:
    return lambda: rng.permutation(size)


def _stretch(rows: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Rows that follow each other in the file, at a random place of it."""
    start = int(rng.integers(max(1, len(rows) - _SAMPLE + 1)))
    return rows[start : start + _SAMPLE]


def _in_order(rows: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """A sample of the whole file, in its order."""
    return rows if len(rows) <= _SAMPLE else rows[np.sort(rng.choice(len(rows), _SAMPLE, replace=False))]


def _unevenness(codes: NDArray[np.int64], block: NDArray[np.int64]) -> Floats:
    """Pearson's chi-squared of blocks and classes, cell by cell, ``[blocks, C]``."""
    num_classes = int(codes.max()) + 1
    counts = np.bincount(block * num_classes + codes, minlength=_BLOCKS * num_classes).reshape(_BLOCKS, num_classes)
    expected = counts.sum(1, keepdims=True) * counts.sum(0) / counts.sum()
    return np.asarray((counts - expected) ** 2 / np.maximum(expected, 1e-9))


@dataclass(frozen=True)
class _Centred:
    """Features of some rows with the mean of each class taken off, along their leading directions."""

    rows: NDArray[np.int64]  # of the data, [n]
    codes: NDArray[np.int64]  # their classes, [n]
    directions: Floats  # of variance 1, [n, 10]


def _centre(data: CheckedData, part: NDArray[np.int64], seed: int) -> _Centred | None:
    """Centre the features of some rows; None where too few are in classes of five or more."""
    assert data.features is not None
    sizes = np.bincount(data.labels[part], minlength=1)
    part = part[sizes[data.labels[part]] >= 5]
    if len(part) < _FEWEST:
        return None
    codes = _codes(data.labels[part])
    rows = reduce_features(data.features[part], seed=seed).astype(np.float64)
    means = np.zeros((int(codes.max()) + 1, rows.shape[1]))
    np.add.at(means, codes, rows)
    rows = rows - (means / np.bincount(codes)[:, None])[codes]
    values, vectors = np.linalg.eigh(rows.T @ rows / len(rows))
    used = np.flatnonzero(values > 1e-9 * max(float(values[-1]), 1e-300))[-_DIRECTIONS:]
    return _Centred(part, codes, rows @ vectors[:, used] / np.sqrt(values[used]))


def _rank_within(codes: NDArray[np.int64]) -> Floats:
    """Place of each example among those of its class, between 0 and 1."""
    order = np.argsort(codes, kind="stable")
    sizes = np.bincount(codes)
    rank = np.empty(len(codes))
    rank[order] = np.arange(len(codes)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.asarray((rank + 0.5) / sizes[codes])


def _next_within(codes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Pairs of examples that follow each other in their class, ``[2, n - C]``."""
    order = np.argsort(codes, kind="stable")
    pairs = np.stack([order[:-1], order[1:]])
    return pairs[:, codes[pairs[0]] == codes[pairs[1]]]


def _shuffle_within(codes: NDArray[np.int64], rng: np.random.Generator) -> Draw:
    order = np.argsort(codes, kind="stable")

    def draw() -> NDArray[np.int64]:
        found = np.empty(len(codes), np.int64)
        found[order] = np.lexsort((rng.random(len(codes)), codes))
        return found

    return draw


def _explained(directions: Floats, position: Floats) -> Statistic:
    """Share of the variance that slow waves of the position explain, summed over the directions."""
    waves = np.cos(np.pi * np.arange(1, _WAVES + 1) * position[:, None])
    basis = np.linalg.qr(waves - waves.mean(0))[0]
    return lambda order: float(np.square(directions[order].T @ basis).sum() / len(directions))


def _resemblance(directions: Floats, pairs: NDArray[np.int64]) -> Statistic:
    """Mean product of examples that follow each other in their class."""
    return lambda order: float(np.einsum("nd,nd->", directions[order[pairs[0]]], directions[order[pairs[1]]]))
