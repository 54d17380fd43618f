"""Groups in which out-of-fold predictions fail more often than their classes explain.

Groups are values of the user's columns, quarters of numbers, and clusters of the features, none of which know where the
model fails. A group full of a hard class is no finding: errors are compared with those to be expected from its classes
(Cochran, Mantel and Haenszel), and p-values are corrected for the number of groups (Holm).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgoif.checks.data import CheckedData, DataIssue, cannot_check, list_worst
from sgoif.checks.numbers import make_rng, share_interval, upper_normal
from sgoif.checks.outliers import reduce_features
from sgoif.checks.tables import is_null
from sgoif.types import Floats
from sgoif.wording import clean, count, percent

__all__ = ["find_weak_group", "groupings"]

KIND, CLUSTER = "underperforming_group", "cluster"

_FEWEST, _FEWEST_IN_GROUP = 200, 30
_MOST_VALUES = 50  # of a column of text, to be groups
_CLUSTERS, _CLUSTERED, _DIRECTIONS = 20, 5_000, 32
_ALPHA = 0.01
_WORSE, _EXCESS = 1.5, 0.05  # times the expected errors, and errors per example beyond them


@dataclass(frozen=True)
class Grouping:
    """One way to divide the examples."""

    name: str
    values: tuple[str, ...]
    code: NDArray[np.int64]  # place in ``values``, -1 for none, [N]


def find_weak_group(data: CheckedData, *, seed: int = 0) -> DataIssue:
    """Find the groups whose errors out of fold are more than their classes explain."""
    predicted = data.predictions()
    if predicted is None:
        return cannot_check(KIND, "the run has no predictions by models that did not see the example")
    judged = (data.labels >= 0) & (predicted >= 0)
    if judged.sum() < _FEWEST:
        return cannot_check(KIND, f"{count(int(judged.sum()), 'example')} with predictions; {_FEWEST} are needed")
    is_wrong, labels = predicted != data.labels, np.where(judged, data.labels, 0)
    tested = [
        result
        for grouping in groupings(data, seed=seed)
        for result in _compare(grouping, is_wrong, labels, judged & (grouping.code >= 0))
    ]
    if not tested:
        return cannot_check(KIND, f"no column, and no features to make groups of {_FEWEST_IN_GROUP} examples or more")
    p = _holm(np.array([result.p for result in tested]))
    found = [(value, result) for value, result in zip(p, tested, strict=True) if value <= _ALPHA and result.is_worse]
    if not found:
        return DataIssue(
            KIND,
            f"None of {count(len(tested), 'group')} fails clearly more often than its classes explain.",
            0,
            0.0,
            p_value=float(p.min()),
            what_to_do="Nothing; add a column that you care about (camera, site, annotator) to have it tested.",
        )
    return _describe(data, found, is_wrong, judged)


@dataclass(frozen=True)
class _Compared:
    """One group and its errors."""

    grouping: Grouping
    value: int
    size: int
    errors: int
    expected: float
    p: float

    @property
    def is_worse(self) -> bool:
        """Whether the difference matters."""
        return self.errors >= _WORSE * self.expected and self.errors - self.expected >= _EXCESS * self.size


def _describe(
    data: CheckedData, found: list[tuple[Any, _Compared]], is_wrong: NDArray[np.bool_], judged: NDArray[np.bool_]
) -> DataIssue:
    value, worst = max(found, key=lambda item: (item[1].errors - item[1].expected) / item[1].size)
    rows = np.flatnonzero(judged & (worst.grouping.code == worst.value))
    low, high = share_interval(worst.errors, worst.size)
    name = f"{clean(worst.grouping.name)} = {clean(worst.grouping.values[worst.value])}"
    title = f"{count(worst.size, 'example')} with {name} fail in {percent(worst.errors / worst.size)} of cases out of "
    title += f"fold ({percent(low)} to {percent(high)}); their classes explain {percent(worst.expected / worst.size)}."
    if len(found) > 1:
        title += (
            f" {count(len(found) - 1, 'other group')} {'is' if len(found) == 2 else 'are'} worse than expected too."
        )
    scores = is_wrong[rows].astype(np.float64)
    if data.log_p is not None:
        scores = -np.asarray(data.log_p[rows, data.labels[rows]], np.float64)
    return DataIssue(
        KIND,
        title,
        worst.size,
        worst.size / len(data),
        *share_interval(worst.size, len(data)),
        p_value=float(value),
        severity="medium"
        if worst.grouping.name == CLUSTER
        else "high",  # hard regions are more common than bad sources
        what_to_do="Look at the worst of them: their labels may be wrong, or there are too few of their kind to learn.",
        **list_worst(data, rows, scores),
    )


def groupings(data: CheckedData, *, seed: int = 0) -> Iterator[Grouping]:
    """Give every way to divide the examples: the user's column, columns, picture statistics, clusters."""
    if data.group is not None:
        yield _by_value("group", data.group, most=None)
    for name, column in {**(data.columns or {}), **(data.pictures or {})}.items():
        if column.dtype.kind in "iuf" and len(np.unique(column[:_CLUSTERED])) > _MOST_VALUES // 5:
            yield _by_quarter(name, column.astype(np.float64))
        elif column.dtype.kind in "iufbOUS":
            made = _by_value(name, column, most=_MOST_VALUES)
            if len(made.values) > 1:
                yield made
    if data.features is not None:
        yield _by_cluster(data, seed)


def _by_value(name: str, column: NDArray[Any], most: int | None) -> Grouping:
    texts = np.array([str(value) for value in column.tolist()], dtype=str)
    values, code, sizes = np.unique(texts, return_inverse=True, return_counts=True)
    code = np.where(sizes[code.reshape(-1)] >= _FEWEST_IN_GROUP, code.reshape(-1), -1)
    if most is not None and len(values) > most:
        return Grouping(name, (), np.full(len(column), -1))
    return Grouping(name, tuple(values.tolist()), code)


def _by_quarter(name: str, column: Floats) -> Grouping:
    known = np.isfinite(column) & ~is_null(column)
    if not known.any():
        return Grouping(name, (), np.full(len(column), -1))
    edges = np.unique(np.quantile(column[known], [0.25, 0.5, 0.75]))
    code = np.where(known, np.searchsorted(edges, np.nan_to_num(column), side="right"), -1)
    ends = ["", *(f"{edge:.3g}" for edge in edges), ""]
    names = [f"{a or 'lowest'} to {b or 'highest'}" for a, b in pairwise(ends)]
    return Grouping(name, tuple(names), code)


def _by_cluster(data: CheckedData, seed: int) -> Grouping:
    """Cluster the features; the clusters are made on a sample, and all examples are put into the nearest."""
    from sklearn.cluster import KMeans

    known, code = np.flatnonzero(data.is_finite), np.full(len(data), -1)
    number = min(_CLUSTERS, len(known) // (2 * _FEWEST_IN_GROUP))
    if number < 2:
        return Grouping(CLUSTER, (), code)
    rows = reduce_features(data.features_of(known), _DIRECTIONS, seed=seed)
    sample = make_rng(seed, KIND).choice(len(rows), min(_CLUSTERED, len(rows)), replace=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fewer distinct points than clusters: some stay empty
        made = KMeans(number, n_init=1, random_state=seed).fit(rows[np.sort(sample)])
    for start in range(0, len(rows), 50_000):
        code[known[start : start + 50_000]] = made.predict(rows[start : start + 50_000])
    return Grouping(CLUSTER, tuple(str(i) for i in range(number)), code)


def _compare(
    grouping: Grouping, is_wrong: NDArray[np.bool_], labels: NDArray[np.int64], used: NDArray[np.bool_]
) -> Iterator[_Compared]:
    """Compare each group's errors with those that its classes explain; groups that are too small are left out."""
    code, wrong = grouping.code[used], is_wrong[used].astype(np.float64)
    classes, label = np.unique(labels[used], return_inverse=True)
    label = label.reshape(-1)
    size, errors = np.bincount(label).astype(np.float64), np.bincount(label, weights=wrong)
    for value in np.unique(code).tolist():
        mine = code == value
        if not _FEWEST_IN_GROUP <= mine.sum() <= len(code) // 2:
            continue
        inside = np.bincount(label[mine], minlength=len(classes))
        expected = inside * errors / size
        spread = inside * (size - inside) * errors * (size - errors) / (size**2 * np.maximum(size - 1, 1))
        seen, total = float(wrong[mine].sum()), float(expected.sum())
        z = (seen - total - 0.5) / max(float(np.sqrt(spread.sum())), 1e-9)
        rest = errors - np.bincount(label[mine], weights=wrong[mine], minlength=len(classes))
        # what the classes explain is judged by the others, lest a large group set its own standard
        outside = float((inside * rest / np.maximum(size - inside, 1)).sum())
        yield _Compared(grouping, value, int(mine.sum()), int(seen), outside, upper_normal(z) if seen >= 5 else 1.0)


def _holm(p: Floats) -> Floats:
    order = np.argsort(p, kind="stable")
    adjusted = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)), 1.0)
    found = np.empty(len(p))
    found[order] = adjusted
    return found
