"""Signals of hold-out examples under assigned labels, always against directions of the *other* fold.

An example that helped to make a direction looks harmless along it, whatever its label: scored against themselves,
canaries promised 97-99% precision where the truth was 80. So there is no way here to pass directions in: they are
made inside, from one fold, and applied to the other.

Influences are taken in the dual form

    I(i, v | c) = Σ_j s_j (a_iᵀ A⁻¹ a_j) [(G⁻¹ b_j)_c - p_iᵀ G⁻¹ b_j],   j over the class v of the other fold,

which never holds a direction: ``b = p - e`` and ``s_j`` is the share of j in its class. Up to 64 classes every class is
an anchor and a possible label. Above, ``C × C`` influences per example are out of reach and needless: the given class
and the five most probable ones are looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sgoif.evidence.holdout import Holdout, Snapshot, class_shares, softmax
from sgoif.types import Floats, Ints

__all__ = ["SIGNALS", "AssignedSignals", "cross_fitted_signals"]

# The order of the columns. `margin` and `p_given` are high for harmless examples, the others for harmful ones.
SIGNALS = (
    "loss",
    "margin",
    "p_given",
    "harm",
    "worst",
    "own",
    "harm_identity",
    "worst_identity",
    "own_identity",
)
DENSE_CLASSES = 64  # up to here every class is an anchor and a possible label
NUM_PROBABLE = 5
_CHUNK = 1 << 22  # influences held at once: 32 MB


@dataclass(frozen=True, slots=True)
class AssignedSignals:
    """Signals of each hold-out example under each label that was tried, averaged over snapshots."""

    assigned: Ints  # [m, F], the labels tried
    values: Floats  # [m, F, S], columns as SIGNALS; NaN where no snapshot could tell
    worst_anchor: Ints  # [m, F], in the last snapshot that saw the example; -1 for none


def cross_fitted_signals(holdout: Holdout, assigned: Ints, weights: Floats | None = None) -> AssignedSignals:
    """Score every hold-out example under the assigned labels against the other fold's directions.

    Both folds come from the same snapshot, so directions and scores see one model. Memory is ``m F S`` and a chunk.

    Args:
        holdout: Labels, folds and snapshots.
        assigned: Labels to try, ``[m, F]``.
        weights: How far each hold-out label is believed, ``[m]``, when directions are made.
    """
    m, f = assigned.shape
    total, count = np.zeros((m, f, len(SIGNALS))), np.zeros((m, 1, 1))
    anchor = np.full((m, f), -1, dtype=np.int64)
    believed = np.ones(m) if weights is None else np.asarray(weights, dtype=np.float64)
    for snapshot in holdout.snapshots:
        rows = np.arange(m) if snapshot.rows is None else snapshot.rows
        for fold in (0, 1):
            scored, makers = holdout.fold[rows] == fold, holdout.fold[rows] != fold
            if not scored.any() or not makers.any():
                continue
            part = _Makers.of(snapshot, makers, holdout.labels[rows[makers]], believed[rows[makers]])
            for chunk in _chunks(np.flatnonzero(scored), holdout.num_classes, int(makers.sum())):
                values, anchor[rows[chunk]] = part.score(snapshot, chunk, assigned[rows[chunk]])
                total[rows[chunk]] += values
                count[rows[chunk]] += 1.0
    with np.errstate(invalid="ignore"):
        return AssignedSignals(assigned, np.where(count > 0, total / count, np.nan), anchor)


@dataclass(frozen=True, slots=True)
class _Makers:
    """One fold of one snapshot, whose examples make the anchors for the other."""

    labels: Ints
    shares: Floats  # in their class's mean; NaN where the class has no anchor
    sides: tuple[tuple[Floats, Floats], ...]  # G⁻¹b, [J, C], and A⁻¹a, [J, I]: with curvature, then without

    @classmethod
    def of(cls, snapshot: Snapshot, makers: NDArray[np.bool_], labels: Ints, weights: Floats) -> _Makers:
        features, inverse = np.asarray(snapshot.features[makers], dtype=np.float64), snapshot.output_inverse
        gradients = softmax(snapshot.logits[makers])
        gradients[np.arange(len(labels)), labels] -= 1
        solved, curved = features, gradients
        if snapshot.solved_features is not None and inverse is not None:
            solved = np.asarray(snapshot.solved_features[makers], dtype=np.float64)
            curved = gradients * inverse if inverse.ndim == 1 else gradients @ inverse.T
        shares = class_shares(labels, weights, gradients.shape[1])
        return cls(labels, shares, ((curved, solved), (gradients, features)))

    def score(self, snapshot: Snapshot, who: Ints, assigned: Ints) -> tuple[Floats, Ints]:
        """Score some examples of the other fold under the assigned labels: signals, and the worst anchor."""
        logits, features = (np.asarray(part[who], np.float64) for part in (snapshot.logits, snapshot.features))
        p = softmax(logits)
        signals = self._among_all if p.shape[1] <= DENSE_CLASSES else self._among_probable
        curved, plain = (signals(p, features, *sides, assigned) for sides in self.sides)
        return np.stack([*_logit_signals(logits, p, assigned), *curved[:3], *plain[:3]], axis=2), curved[3]

    def _among_all(
        self, p: Floats, features: Floats, left: Floats, right: Floats, assigned: Ints
    ) -> tuple[Floats, Floats, Floats, Ints]:
        products, known = features @ right.T, np.unique(self.labels[np.isfinite(self.shares)])
        influence = np.full((len(p), p.shape[1], p.shape[1]), np.nan)  # [n, anchor, any label]
        for v in known:
            mine = self.labels == v
            u = (products[:, mine] * self.shares[mine]) @ left[mine]
            influence[:, v] = u - np.einsum("mc,mc->m", p, u)[:, None]
        if assigned.shape[1] < p.shape[1] or (assigned != np.arange(p.shape[1])).any():
            influence = np.take_along_axis(influence, assigned[:, None], axis=2)
        harm = influence[:, known].mean(axis=1)
        own = np.take_along_axis(influence, assigned[:, None, :], axis=1)[:, 0]
        np.put_along_axis(influence, assigned[:, None, :], np.nan, axis=1)  # the assigned label's own anchor
        worst, anchor = _largest(influence)
        return harm, worst, own, anchor

    def _among_probable(
        self, p: Floats, features: Floats, left: Floats, right: Floats, assigned: Ints
    ) -> tuple[Floats, Floats, Floats, Ints]:
        usable = np.isfinite(self.shares)
        labels, left = self.labels[usable], left[usable]
        products = (features @ right[usable].T) * self.shares[usable]  # [n, J]
        gaps = left.T[assigned] - (p @ left.T)[:, None]  # [n, assigned, J]
        harm = np.einsum("mj,mfj->mf", products, gaps) / max(len(np.unique(labels)), 1)
        # A training example has its own class and the five most probable ones as anchors; so has its imitation here.
        probable = np.argpartition(-p, NUM_PROBABLE, axis=1)[:, :NUM_PROBABLE]
        anchors = np.concatenate([assigned, probable], axis=1)
        is_in = anchors[:, :, None] == labels  # [n, anchor, J]
        influence = (is_in * products[:, None]) @ gaps.transpose(0, 2, 1)  # [n, anchor, assigned]
        influence[~is_in.any(2)] = np.nan
        own = np.einsum("mff->mf", influence[:, : assigned.shape[1]])
        is_own = probable[:, :, None] == assigned[:, None, :]
        others = np.where(is_own, np.nan, influence[:, assigned.shape[1] :])
        worst, place = _largest(others)
        anchor = np.where(place >= 0, np.take_along_axis(probable, np.maximum(place, 0), axis=1), -1)
        return harm, worst, own, anchor


def _chunks(who: Ints, num_classes: int, num_makers: int) -> Iterator[Ints]:
    per_example = num_classes**2 + num_makers
    if num_classes > DENSE_CLASSES:
        per_example = num_classes + 3 * (NUM_PROBABLE + 1) * num_makers
    size = max(1, _CHUNK // per_example)
    return (who[start : start + size] for start in range(0, len(who), size))


def _logit_signals(logits: Floats, p: Floats, assigned: Ints) -> tuple[Floats, Floats, Floats]:
    """Compute loss, margin and p under each assigned label: ``[m, F]`` each."""
    top = np.sort(np.partition(logits, -2, axis=1)[:, -2:], axis=1)  # second largest and largest
    given = np.take_along_axis(logits, assigned, axis=1)
    is_best = assigned == logits.argmax(axis=1)[:, None]
    margin = given - np.where(is_best, top[:, :1], top[:, 1:])
    p_given = np.take_along_axis(p, assigned, axis=1)
    log_total = logits.max(axis=1) + np.log(np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1))
    return log_total[:, None] - given, margin, p_given


def _largest(influence: Floats) -> tuple[Floats, Ints]:
    """Find the largest influence over anchors ``[m, K, F]``, and which; NaN and -1 where all are NaN."""
    known = np.where(np.isnan(influence), -np.inf, influence)
    anchor = known.argmax(axis=1)
    largest = np.take_along_axis(known, anchor[:, None], axis=1)[:, 0]
    found = np.isfinite(largest)
    return np.where(found, largest, np.nan), np.where(found, anchor, -1)
