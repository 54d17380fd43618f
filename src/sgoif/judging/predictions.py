"""Predictions of examples, of which the most probable classes are kept: those that a model of the noise asks for.

A judge works with whole predictions, block by block. Engines hand over what they have: all classes, or the given one,
the most probable others, and all the rest as if each were alike. On nine development trainings one other class ranks as
all do: the largest loss is 1.1 AP, the mean 0.0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgoif.errors import SgoifError
from sgoif.evidence.votes import LikelyOthers
from sgoif.types import Floats, Ints

__all__ = ["TopPredictions", "log_odds", "set_log_odds"]

_LEAST = 1e-9  # probability of a class


@dataclass(frozen=True, slots=True)
class TopPredictions:
    """The most probable classes of some examples, and what is left for each of the others.

    >>> found = TopPredictions.of(np.log([[0.2, 0.5, 0.2, 0.1]]), width=2)
    >>> np.exp(found.logs(slice(None))).round(2).tolist()
    [[0.2, 0.5, 0.15, 0.15]]
    """

    labels: NDArray[np.integer[Any]]  # [N, W], no class twice; -1 for none
    p: NDArray[np.floating[Any]]  # [N, W]
    num_classes: int

    @classmethod
    def of(cls, log_p: NDArray[np.floating[Any]], width: int | None = None) -> TopPredictions:
        """From log probabilities ``[N, C]``; all classes are kept if ``width`` is left out."""
        num_classes = log_p.shape[1]
        width = num_classes if width is None else min(width, num_classes)
        if width == num_classes:
            return cls(np.broadcast_to(np.arange(num_classes), log_p.shape), np.exp(log_p), num_classes)
        labels = np.argpartition(-log_p, width - 1, axis=1)[:, :width]
        return cls(labels, np.exp(np.take_along_axis(log_p, labels, 1)), num_classes)

    @classmethod
    def of_given(cls, given: Ints, p_given: Floats, others: LikelyOthers, num_classes: int) -> TopPredictions:
        """From the probability of the given class, and the most probable others."""
        labels = np.column_stack([given, np.where(others.labels == given[:, None], -1, others.labels)])
        return cls(labels, np.column_stack([p_given, others.probabilities]), num_classes)

    @classmethod
    def concatenate(cls, parts: Sequence[TopPredictions]) -> TopPredictions:
        """Those of several blocks, at least one, as one."""
        labels, p = (np.concatenate([getattr(part, name) for part in parts]) for name in ("labels", "p"))
        return cls(labels, p, parts[0].num_classes)

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Any) -> TopPredictions:
        """Those of some rows."""
        return TopPredictions(self.labels[rows], self.p[rows], self.num_classes)

    def logs(self, rows: Any) -> Floats:
        """Whole log probabilities of some rows, ``[n, C]``."""
        labels, p = self.labels[rows], np.asarray(self.p[rows], dtype=np.float64)
        is_named = labels >= 0
        p = np.where(is_named, np.maximum(p, _LEAST), 0.0)
        left = self.num_classes - is_named.sum(1)
        rest = np.maximum(1 - p.sum(1), _LEAST * left) / np.maximum(left, 1)
        found = np.repeat(rest[:, None], self.num_classes + 1, axis=1)  # the last column takes what has no name
        np.put_along_axis(found, np.where(is_named, labels, self.num_classes), p, 1)
        return np.asarray(np.log(found[:, :-1] / found[:, :-1].sum(1, keepdims=True)))


def log_odds(logs: Floats, given: Ints) -> Floats:
    """Log odds of the given class against all others together, ``[n]``, from log probabilities ``[n, C]``."""
    own, others = _split(logs, given)
    most = others.max(1)
    return np.asarray(own - most - np.log(np.exp(others - most[:, None]).sum(1)))


def set_log_odds(logs: Floats, given: Ints, odds: Floats) -> Floats:
    """The same predictions with other log odds of the given class; the others keep their ratios, ``[n, C]``."""
    own, _ = _split(logs, given)
    rest = own - log_odds(logs, given)
    found = logs - (rest + np.logaddexp(0, odds))[:, None]
    np.put_along_axis(found, given[:, None], -np.logaddexp(0, -odds)[:, None], 1)
    return np.asarray(found)


def _split(logs: Floats, given: Ints) -> tuple[Floats, Floats]:
    others = np.array(logs, dtype=np.float64)
    np.put_along_axis(others, given[:, None], -np.inf, 1)
    return np.take_along_axis(logs, given[:, None], 1)[:, 0], others


def read_columns(columns: Mapping[str, Any], name: str, num_classes: int | None = None) -> TopPredictions:
    """Predictions in a column of lists, one number per class."""
    values = columns[name]
    rows = np.stack([np.asarray(row, dtype=np.float64) for row in values]) if len(values) else np.zeros((0, 0))
    if num_classes is not None and rows.shape[1] != num_classes:
        raise SgoifError(f"column {name!r} has {rows.shape[1]} numbers a row, where there are {num_classes} classes.")
    return TopPredictions.of(rows)
