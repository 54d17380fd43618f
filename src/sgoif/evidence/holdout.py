"""The hold-out seen from the head, by which any example can be scored under any label.

At a linear head the gradient of example i under label c is ``(p_i - e_c) a_iᵀ``: only ``e_c`` depends on the label. So
with class directions ``Φ_v`` (the mean gradient of class v's hold-out examples, preconditioned) one product
``u = Φ_v a_i`` gives the influence under *every* label at once,

    I(i, v | c) = - (p_i - e_c)ᵀ Φ_v a_i = u_c - p_iᵀ u.

Nothing here decides who is scored against whom: :mod:`sgoif.evidence.crossfit` does, fold against fold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sgoif.errors import SgoifError
from sgoif.types import Floats, Ints

__all__ = ["Holdout", "Snapshot", "class_shares", "softmax"]

_MIN_WEIGHT = 1.0  # a class anchor is made of at least one whole example


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one refresh saw of the hold-out at the head, in eval mode.

    Of K-FAC's ``A⁻¹`` only its products with the features are kept: what is asked of it, without its ``I²`` numbers.
    """

    features: Floats  # a, [r, I], with the bias column where the head has one
    logits: Floats  # [r, C]
    output_inverse: Floats | None = None  # G⁻¹ of the curvature then, [C, C] or its diagonal; None for the identity
    solved_features: Floats | None = None  # A⁻¹a, [r, I]
    rows: Ints | None = None  # which hold-out examples, [r], each once; None: all, in order
    step: int = 0


@dataclass(frozen=True, slots=True)
class Holdout:
    """A hold-out with its folds and what refreshes saw of it.

    >>> data = Holdout(labels=np.array([0, 1]), fold=np.array([0, 1]), num_classes=2,
    ...                snapshots=[Snapshot(np.ones((2, 3)), np.zeros((2, 2)))])
    >>> len(data)
    2
    """

    labels: Ints  # [m]
    fold: Ints  # [m], 0 or 1, by hash of the id so that it is the same in every run
    num_classes: int
    snapshots: Sequence[Snapshot]

    def __post_init__(self) -> None:
        m, c = len(self.labels), self.num_classes
        if self.labels.shape != (m,) or self.fold.shape != (m,):
            raise SgoifError(f"labels and fold are vectors of one length, got {self.labels.shape}, {self.fold.shape}.")
        if m == 0 or not self.snapshots:
            raise SgoifError(f"need hold-out examples and a snapshot, got {m} and {len(self.snapshots)}.")
        if self.labels.min() < 0 or self.labels.max() >= c:
            raise SgoifError(f"labels must lie in 0..{c - 1}, got {self.labels.min()}..{self.labels.max()}.")
        if set(np.unique(self.fold).tolist()) != {0, 1}:
            raise SgoifError(f"both folds 0 and 1 must hold examples, got {np.unique(self.fold)}; see fold_of(ids).")
        for snapshot in self.snapshots:
            count = m if snapshot.rows is None else len(snapshot.rows)
            if snapshot.rows is not None and len(np.unique(snapshot.rows)) < count:
                raise SgoifError("a snapshot sees each hold-out example once, got some of them twice.")
            if len(snapshot.features) != count or snapshot.logits.shape != (count, c):
                raise SgoifError(
                    f"a snapshot of {count} examples needs features [{count}, I] and logits [{count}, {c}], "
                    f"got {snapshot.features.shape} and {snapshot.logits.shape}."
                )

    def __len__(self) -> int:
        return len(self.labels)

    def mean_probabilities(self) -> Floats:
        """Average the predictions of each example over the snapshots that saw it: ``[m, C]``, NaN where none did."""
        total, count = np.zeros((len(self), self.num_classes)), np.zeros((len(self), 1))
        for snapshot in self.snapshots:
            rows = np.arange(len(self)) if snapshot.rows is None else snapshot.rows
            total[rows] += softmax(snapshot.logits)
            count[rows] += 1.0
        with np.errstate(invalid="ignore"):
            total /= count
        return total


def softmax(logits: Floats) -> Floats:
    """Turn logits ``[..., C]`` into probabilities, in float64."""
    shifted = np.exp(np.asarray(logits, dtype=np.float64) - logits.max(axis=-1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=-1, keepdims=True))


def class_shares(labels: Ints, weights: Floats | None, num_classes: int) -> Floats:
    """Compute each example's share in its class's mean, ``w_j / Σ w``; NaN where the class has no anchor."""
    w = np.ones(len(labels)) if weights is None else np.asarray(weights, dtype=np.float64)
    if w.shape != labels.shape or not (w >= 0).all():
        raise SgoifError(f"weights must be {len(labels)} numbers >= 0, got shape {w.shape}, smallest {w.min()}.")
    total = np.bincount(labels, weights=w, minlength=num_classes)
    total[total < _MIN_WEIGHT - 1e-9] = np.nan
    return np.asarray(w / total[labels])
