"""Duplicates: exact and near ones, those whose labels differ, and those that lie in two splits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgoif.checks.data import CheckedData, DataIssue, cannot_check, list_worst
from sgoif.checks.numbers import share_interval
from sgoif.checks.pictures import LITTLE_ENTROPY
from sgoif.types import Floats
from sgoif.wording import clean, count

__all__ = ["find_copies"]

_KINDS = ("exact_duplicates", "near_duplicates", "conflicting_duplicates", "split_leakage")
_MANY = 0.01
_SAMPLE, _FEWEST, _BLOCK = 2_000, 50, 10_000
_NEARER, _SAME = 0.5, 0.01  # of the distance to the nearest example, in the median of a sample


def find_copies(data: CheckedData) -> list[DataIssue]:
    """Four answers: exact duplicates, near duplicates, conflicting labels, leakage between splits.

    Sketches know a picture by its outline and colours, which a blank picture lacks: these are left to the check for low
    information. Where there are features, copies must be near in these too, and exact ones the same: shirts of one cut
    have the same outline and are no copies.
    """
    if data.duplicates is None:
        return [cannot_check(kind, "the run has no sketches to compare examples by") for kind in _KINDS]
    pairs, bits, lost = _read_pairs(data)
    apart = _distances(data, pairs)
    kept = _are_telling(data, pairs) & (apart <= _NEARER)
    dropped = int((~kept).sum())
    pairs, bits = pairs[kept], np.where(apart <= _SAME, bits, np.maximum(bits, 1))[kept]
    differ = (data.labels[pairs] >= 0).all(1) & (data.labels[pairs[:, 0]] != data.labels[pairs[:, 1]])
    exact, near = pairs[bits == 0], pairs[bits > 0]
    told = f" {count(lost, 'pair')} with an example of another set left out." if lost else ""
    unlike = f" {count(dropped, 'pair')} with like sketches but other features left out." if dropped else ""
    return [
        _issue(
            data,
            _KINDS[0],
            np.unique(exact[:, 1]),  # a star around the first of each group, which is the one to keep
            "{n} the same as another example." + told,
            "Keep one of each group; copies in training count double, and copies in a test set inflate accuracy.",
        ),
        _issue(
            data,
            _KINDS[1],
            np.unique(near[:, 1]),
            "{n} nearly the same as another example." + told + unlike,
            "Look at some pairs with `sgoif duplicates`, and keep one where they show the same thing.",
        ),
        _issue(
            data,
            _KINDS[2],
            np.unique(pairs[differ]),
            "{n} a copy under another label.",
            "One of the two labels is wrong: decide with `sgoif duplicates`, where these pairs come first.",
            severity="high",
        ),
        _leakage(data, pairs, bits),
    ]


def _are_telling(data: CheckedData, pairs: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which pairs are of pictures that show something."""
    if data.pictures is None or "entropy" not in data.pictures:
        return np.ones(len(pairs), bool)
    return np.asarray((data.pictures["entropy"][pairs] >= LITTLE_ENTROPY).all(1))


def _distances(data: CheckedData, pairs: NDArray[np.int64]) -> Floats:
    """How far apart pairs are in the features, where an example is 1 from its nearest; 0 where that is not known."""
    found = np.zeros(len(pairs))
    if data.features is None or not len(pairs):
        return found
    sample = data.features[:: max(1, len(data) // _SAMPLE)].astype(np.float32)
    sample = sample[np.isfinite(sample).all(1)]
    if len(sample) < _FEWEST:
        return found
    squares = (sample**2).sum(1)
    apart = squares[:, None] + squares - 2 * sample @ sample.T
    np.fill_diagonal(apart, np.inf)
    usual = max(float(np.median(apart.min(1))), 1e-12)
    for start in range(0, len(pairs), _BLOCK):
        one, other = (data.features[pairs[start : start + _BLOCK, end]].astype(np.float32) for end in (0, 1))
        found[start : start + _BLOCK] = np.sqrt(((one - other) ** 2).sum(1) / usual)
    return np.nan_to_num(found, nan=0.0)


def _read_pairs(data: CheckedData) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Pairs as rows ``[P, 2]``, how many bits they differ in, and how many have an end that is not in the data."""
    assert data.duplicates is not None
    names = np.array([str(value) for value in data.ids.tolist()], dtype=str)
    order = np.argsort(names, kind="stable")
    ends = []
    for column in ("id", "other_id"):
        wanted = np.array([str(value) for value in data.duplicates[column].to_pylist()], dtype=str)
        place = np.minimum(np.searchsorted(names, wanted, sorter=order), len(names) - 1)
        found = order[place]
        ends.append(np.where(names[found] == wanted, found, -1))
    pairs = np.stack(ends, 1).astype(np.int64)
    is_known = (pairs >= 0).all(1)
    bits = np.asarray(data.duplicates["bits_apart"].to_numpy(), np.int64)
    return pairs[is_known], bits[is_known], int((~is_known).sum())


def _issue(
    data: CheckedData, kind: str, rows: NDArray[np.int64], title: str, what_to_do: str, severity: str = ""
) -> DataIssue:
    number = len(rows)
    low, high = share_interval(number, len(data))
    noun = f"{count(number, 'example')} {'is' if number == 1 else 'are'}" if number else "No example is"
    level = severity or ("medium" if number >= _MANY * len(data) else "low")
    return DataIssue(
        kind,
        title.format(n=noun),
        number,
        number / max(len(data), 1),
        low,
        high,
        severity=level if number else "none",
        what_to_do=what_to_do,
        **list_worst(data, rows, np.ones(number)),
    )


def _leakage(data: CheckedData, pairs: NDArray[np.int64], bits: NDArray[np.int64]) -> DataIssue:
    """Count the examples outside the largest split that have a copy in another split."""
    kind = _KINDS[3]
    if data.split is None:
        return cannot_check(kind, "no column says which split each example belongs to")
    names, code = np.unique(np.array([str(value) for value in data.split.tolist()]), return_inverse=True)
    if len(names) < 2:
        return cannot_check(kind, f"all examples are in the split {clean(names[0])!r}" if len(names) else "no examples")
    group = _groups(len(data), pairs[bits == 0])
    lacks = _other_splits(code.reshape(-1), group, pairs[bits > 0])
    largest = int(np.bincount(code.reshape(-1)).argmax())
    rows = np.flatnonzero(lacks & (code.reshape(-1) != largest))
    return _issue(
        data,
        kind,
        rows,
        "{n} outside the split " + clean(repr(str(names[largest]))) + " and a copy of one in another split.",
        "Remove them from the smaller split: accuracy measured on them is memory, not generalisation.",
        severity="high",
    )


def _groups(size: int, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
    """The first row of the group of exact copies of each row; the pairs of a group are a star."""
    group = np.arange(size)
    for _ in range(size):  # one pass for a star; chains take as many as they are long
        least = group.copy()
        np.minimum.at(least, pairs[:, 0], group[pairs[:, 1]])
        np.minimum.at(least, pairs[:, 1], group[pairs[:, 0]])
        least = least[least]
        if (least == group).all():
            break
        group = least
    return group


def _other_splits(code: NDArray[Any], group: NDArray[np.int64], near: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which rows have a copy in another split: an exact one, or a near one of any of their exact copies."""
    num_splits = int(code.max()) + 1
    has = np.zeros((len(code), num_splits), bool)  # of each group
    has[group, code] = True
    wide = has.copy()
    for one, other in ((0, 1), (1, 0)):
        for split in range(num_splits):
            np.logical_or.at(wide[:, split], group[near[:, one]], has[group[near[:, other]], split])
    mine = wide[group]
    return np.asarray(mine.sum(1) - mine[np.arange(len(code)), code] > 0)
