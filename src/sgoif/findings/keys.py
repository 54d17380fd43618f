"""Which classes a reviewer has on keys, and which suggestions may be accepted for many examples at once.

The model's suggestions and the labels of the nearest training examples are two opinions. Their order is weighed by
rank, not by probability: a model that is sure of a wrong class would leave the neighbours no key. The weights were
chosen on development data (docs/benchmarks/review-time.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgoif.errors import SgoifError
from sgoif.findings.label import NEAR_COLUMNS
from sgoif.findings.neighbours import has_likeness, nearest_examples
from sgoif.findings.suspects import Sql
from sgoif.types import Floats, Ints

__all__ = [
    *("LEAST_SHARE", "NUM_NEAREST", "ClassKeys", "choose_least_share", "class_keys", "neighbour_labels"),
    "with_neighbours",
]

NUM_NEAREST = 6  # neighbours that are asked
LEAST_SHARE = 0.85  # probability of the suggestion from which on it may be accepted in bulk
_NUM_KEYS = 3
_OF_NEIGHBOURS = 0.2  # weight of the neighbours' labels beside the model
_BY_RANK = np.array([0.6, 0.25, 0.15])  # what the first, second and third suggestion count
_AGREEING = 2 / 3  # share of the neighbours that must have the label of a suggestion accepted in bulk
_TARGET = 0.95  # how many in bulk should be right
_PRIOR, _CHECKED = 20, 50  # decisions that count beforehand, and as many as may lower the threshold
_TAILS = ("", "_2", "_3")
_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True)
class ClassKeys:
    """The classes on the keys of some examples, best first; never the given one.

    Which classes, and which is first, is weighed by rank, and shares weigh the model by its probabilities: the first
    need not have the largest share. The others descend.
    """

    labels: Ints  # [N, 3], -1 for none
    shares: Floats  # probability that it is the true class, [N, 3]; NaN where the run does not know
    agreeing: Ints  # neighbours that have the label of the first key, [N]
    num_near: Ints  # neighbours that were found, [N]
    belief: Floats  # probability that the first key is right where the neighbours agree with it, else NaN, [N]
    in_bulk: NDArray[np.bool_]  # whether the first key may be accepted together with others, [N]


def class_keys(rows: Mapping[str, NDArray[Any]], near: Ints) -> ClassKeys:
    """Rank classes by the model and the neighbours together.

    A suggestion may be accepted in bulk where two thirds of the neighbours have its label and it is probable enough;
    never where the run does not know its probability. That the given label is probably wrong is not enough: on
    development data half of such suggestions were right.

    Args:
        rows: as :func:`sgoif.findings.suspects.suspects` gives them.
        near: labels of the nearest training examples, nearest first, ``[N, K]``; -1 for none.

    >>> rows = {"given_label": [0], "suggested_label": [1], "suggested_label_2": [2], "p_mislabeled": [0.96]}
    >>> rows |= {"p_suggested": [0.9], "p_suggested_2": [0.06]}
    >>> found = class_keys({name: np.array(values) for name, values in rows.items()}, np.array([[1, 1, 1, 1, 3, 0]]))
    >>> found.labels.tolist(), found.shares.round(2).tolist(), found.in_bulk.tolist()
    ([[1, 2, 3]], [[0.88, 0.05, 0.03]], [True])
    """
    given = np.asarray(rows["given_label"]).astype(np.int64)
    if near.ndim != 2 or len(near) != len(given):
        raise SgoifError(f"near has one row of labels per example, [{len(given)}, K], got {list(near.shape)}.")
    nothing = np.full(len(given), np.nan)
    p = np.asarray(rows.get("p_mislabeled", nothing), dtype=np.float64)
    suggested = _stack(rows, "suggested_label", -1).astype(np.int64)
    probable = _stack(rows, "p_suggested", np.nan)
    parts = [
        _rank(given[part], suggested[part], probable[part], p[part], near[part])
        for part in (slice(start, start + _AT_ONCE) for start in range(0, max(len(given), 1), _AT_ONCE))
    ]
    labels, shares, agreeing = (np.concatenate(side) for side in zip(*parts, strict=True))
    num_near = (near >= 0).sum(1)
    # the model must not rank another class first
    is_first = (labels[:, 0] >= 0) & (labels[:, 0] == _first(suggested, given))
    agrees = (num_near > 0) & (agreeing >= _AGREEING * num_near - 1e-9) & is_first
    belief = np.where(agrees, shares[:, 0], np.nan)
    return ClassKeys(labels, shares, agreeing, num_near, belief, np.nan_to_num(belief) >= LEAST_SHARE)


def choose_least_share(keys: ClassKeys, decided: Ints) -> float:
    """The probability from which on suggestions may be accepted in bulk, by what reviewers decided about some of them.

    It is the lowest with 95% right among the decided ones at or above it. Lowering takes 50 decisions; for raising, 20
    decisions of which 95% were right count beforehand. 1 or more means that nothing may be accepted in bulk. The review
    page repeats this in JavaScript, for what is decided on it.

    Args:
        keys: of examples.
        decided: the class that reviewers found right for each, ``[N]``; -1 where nobody decided.
    """
    is_checked = np.isfinite(keys.belief) & (decided >= 0)
    belief, right = keys.belief[is_checked], (keys.labels[:, 0] == decided)[is_checked]
    order = np.argsort(-belief, kind="stable")
    belief, right = belief[order], np.cumsum(right[order])
    count = np.arange(1, len(belief) + 1)
    is_last = np.append(np.diff(belief) < 0, True)[: len(belief)]  # examples of equal belief stand together
    usual = int((belief >= LEAST_SHARE).sum())
    lower = np.flatnonzero(is_last & (right >= _TARGET * count) & (count >= _CHECKED) & (count > usual))
    if len(lower):
        return float(belief[lower[-1]])
    is_good = is_last & (right + _TARGET * _PRIOR >= _TARGET * (count + _PRIOR) - 1e-9)
    if usual == 0 or is_good[usual - 1]:
        return LEAST_SHARE
    higher = np.flatnonzero(is_good[:usual])
    return float(belief[higher[-1]]) if len(higher) else 1.01


def neighbour_labels(sql: Sql, ids: Sequence[Any] | NDArray[Any], count: int = NUM_NEAREST) -> Ints:
    """Labels of the nearest training examples, nearest first, ``[N, count]``; -1 where a run does not know them."""
    labels = np.full((len(ids), count), -1, np.int64)
    if len(ids) and has_likeness(sql):
        found = nearest_examples(sql, ids, count=count)
        place = {str(ident): row for row, ident in enumerate(ids)}
        at = np.array([place[str(ident)] for ident in found["id"].to_pylist()], np.int64)
        labels[at, found["rank"].to_numpy() - 1] = found["given_label"].to_numpy()
    return labels


def with_neighbours(sql: Sql, rows: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Add to rows how many of the nearest examples have the suggested label, the given one, and any.

    Rows of a run that does not know which examples are alike stay as they are. The cost is that of
    :func:`sgoif.findings.neighbours.nearest_examples`: ask for rows that a person will read.
    """
    if not len(rows["id"]) or not has_likeness(sql):
        return dict(rows)
    near = neighbour_labels(sql, rows["id"])
    counts = [(near == rows[name][:, None]).sum(1) for name in ("suggested_label", "given_label")]
    return {**rows, **dict(zip(NEAR_COLUMNS, [*counts, (near >= 0).sum(1)], strict=True))}


def _stack(rows: Mapping[str, NDArray[Any]], name: str, empty: float) -> NDArray[Any]:
    nothing = np.full(len(rows["given_label"]), empty)
    return np.stack([np.asarray(rows.get(f"{name}{tail}", nothing)) for tail in _TAILS], 1)


def _first(suggested: Ints, given: Ints) -> Ints:
    """The first suggestion that is another class than the given one, -1 for none."""
    is_other = (suggested >= 0) & (suggested != given[:, None])
    first = np.take_along_axis(suggested, is_other.argmax(1)[:, None], 1)[:, 0]
    return np.where(is_other.any(1), first, -1)


def _rank(given: Ints, suggested: Ints, probable: Floats, p: Floats, near: Ints) -> tuple[Ints, Floats, Ints]:
    """Keys, shares and agreeing neighbours of some examples; only classes that either names are looked at."""
    is_other = (suggested >= 0) & (suggested != given[:, None])
    is_measured = np.isfinite(p) & np.isfinite(np.where(is_other, probable, 0.0)).all(1)
    num_near = (near >= 0).sum(1)
    weight = np.where(num_near > 0, _OF_NEIGHBOURS, 0.0)
    named = np.concatenate([np.where(is_other, suggested, -1), np.where(near == given[:, None], -1, near)], 1)
    votes = (named[:, :, None] == near[:, None, :]).sum(2)
    from_near = (weight / np.maximum(num_near, 1))[:, None] * votes
    is_named_so = (named[:, :, None] == suggested[:, None, :]) & is_other[:, None, :]
    score = (1 - weight[:, None]) * (is_named_so * _BY_RANK).sum(2) + from_near
    is_repeated = np.tril(named[:, :, None] == named[:, None, :], -1).any(2)
    score = np.where((named < 0) | is_repeated, -1.0, score)
    order = np.argsort(-score, axis=1, kind="stable")[:, :_NUM_KEYS]
    # where the label is wrong, this is how probable the model finds each class; then the whole without the given one
    believed = np.nan_to_num(probable) / np.maximum(np.nan_to_num(p), 1e-9)[:, None]
    believed /= np.maximum(np.where(is_other, believed, 0.0).sum(1, keepdims=True), 1.0)
    whole = 1 - weight * (near == given[:, None]).sum(1) / np.maximum(num_near, 1)
    share = (1 - weight[:, None]) * (is_named_so * believed[:, None, :]).sum(2) + from_near
    share = p[:, None] * share / np.maximum(whole, 1e-9)[:, None]
    labels, score, share, votes = (np.take_along_axis(each, order, 1) for each in (named, score, share, votes))
    labels = np.where(score >= 0, labels, -1)
    shares = np.where(is_measured[:, None] & (labels >= 0), share, np.nan)
    # of the others a reviewer looks for the likeliest first
    rest = 1 + np.argsort(-np.nan_to_num(shares[:, 1:], nan=-1.0), axis=1, kind="stable")
    labels[:, 1:], shares[:, 1:] = np.take_along_axis(labels, rest, 1), np.take_along_axis(shares, rest, 1)
    return labels, shares, np.where(labels[:, 0] >= 0, votes[:, 0], 0)
