"""From signals to the probability that a label is wrong, learnt on canaries.

Signals are bent by ``sign(x) log(1 + |x|)``, standardised on the canaries, and weighed by a logistic regression with an
intercept per class. That gives probabilities under the canaries' own share of flips. Two things are learnt from the
training scores besides, without any label: how many errors there are (:func:`sgoif.evidence.prior.shift_prior`) and
which class is mistaken for which (:func:`sgoif.evidence.transition.transition_from_scores`); the flips are weighted
anew by the latter and the regression is fitted again, a few times.

A hold-out that had to clean itself is calibrated twice. Believing the cleaned labels, the hard examples that cleaning
doubts are missing among the negatives and probabilities come out too high; taking the labels as given, the errors among
the negatives make them too low. The answer lies between, at a weighted geometric mean of the two odds, and the two are
its bracket.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sgoif.errors import SgoifError
from sgoif.evidence.canaries import Canaries
from sgoif.evidence.logistic import Logistic, fit_logistic, sigmoid
from sgoif.evidence.prior import log_odds, shift_prior
from sgoif.evidence.transition import transition_from_scores

__all__ = [
    "CanaryCalibration",
    "LabelCalibration",
    "calibrate",
    "calibrate_on",
    "cross_fitted_ap",
    "fit_canaries",
    "squash",
]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Share of the labels-as-given calibration in the log odds. Chosen on the development set, one training run each of
# pair-20, worst, sym-40 and aggre and two draws of the folds: at 0.6 the expected precision of the top 1, 5 and 10% was
# at most 9 points above the true one (11 where training examples have tracked and canaries solved directions), at 0.5
# at most 12 (14). It costs calibration where noise is spread: 69 expected for 99 found on sym-40. Between 0 and 0.7 the
# AP moves by at most 3, up on pair noise and down on aggre.
_AS_GIVEN_SHARE = 0.6


# Shares of errors that can be believed. A network that fits its training examples much better than the hold-out makes
# them look sound without exception, and the share of errors falls to nothing.
_PLAUSIBLE = (0.002, 0.9)


def squash(values: Floats) -> Floats:
    """Compute ``sign(x) log(1 + |x|)``: influences range over decades, and their sign matters."""
    return np.asarray(np.sign(values) * np.log1p(np.abs(values)))


class SignalModel(Protocol):
    """What ranks examples by their signals; boosted trees will do as well as a logistic."""

    def log_odds(self, signals: Floats, given_label: Ints) -> Floats:
        """Compute log odds that a label is wrong, ``[N]``."""


@dataclass(frozen=True, slots=True)
class CanaryCalibration:
    """A logistic regression on squashed, standardised signals.

    >>> rng = np.random.default_rng(0)
    >>> flip = np.arange(200) % 2 == 1
    >>> signals = rng.normal(size=(200, 1)) + 2 * flip[:, None]
    >>> fitted = CanaryCalibration.fit(signals, flip, np.ones(200), np.zeros(200, dtype=int), num_classes=1)
    >>> fitted.predict(np.array([[-1.0], [3.0]]), np.array([0, 0])).round().tolist()
    [0.0, 1.0]
    """

    centre: Floats  # [S], of the squashed signals
    scale: Floats  # [S]
    model: Logistic
    prior: float  # share of flips in the canaries' weight
    shift: Floats  # [C], added to the log odds where the prior was re-estimated

    @classmethod
    def fit(
        cls,
        signals: Floats,
        is_flip: NDArray[np.bool_],
        weight: Floats,
        assigned_label: Ints,
        *,
        num_classes: int,
        start: CanaryCalibration | None = None,
    ) -> CanaryCalibration:
        """Fit on canaries.

        Args:
            signals: Raw, ``[M, S]``; where not finite, the mean is taken.
            is_flip: Which canaries carry a wrong label, ``[M]``.
            weight: ``[M]``, in units of examples.
            assigned_label: ``[M]``.
            num_classes: ``C``.
            start: An earlier fit to similar weights: its scale is kept and a few Newton steps from it are taken.
        """
        bent = squash(np.asarray(signals, dtype=np.float64))
        known = np.isfinite(bent)
        if start is None:
            w = weight[:, None] * known
            total = np.maximum(w.sum(axis=0), 1e-300)
            centre = (w * np.where(known, bent, 0.0)).sum(axis=0) / total
            spread = np.sqrt((w * np.where(known, bent - centre, 0.0) ** 2).sum(axis=0) / total)
            scale = np.where(spread > 0, spread, 1.0)
        else:
            centre, scale = start.centre, start.scale
        inputs = np.where(known, (bent - centre) / scale, 0.0)
        used = weight > 0
        model = fit_logistic(
            inputs[used],
            is_flip[used].astype(np.float64),
            weight[used],
            assigned_label[used],
            num_classes,
            start=None if start is None else start.model,
            max_steps=100 if start is None else 3,
        )
        prior = float(weight[is_flip].sum() / weight.sum())
        return cls(centre, scale, model, prior, np.zeros(num_classes))

    def log_odds(self, signals: Floats, given_label: Ints) -> Floats:
        """Compute log odds that a label is wrong, ``[N]``."""
        inputs = (squash(np.asarray(signals, dtype=np.float64)) - self.centre) / self.scale
        return self.model.logits(np.where(np.isfinite(inputs), inputs, 0.0), given_label) + self.shift[given_label]

    def predict(self, signals: Floats, given_label: Ints) -> Floats:
        """Compute the probability that a label is wrong, ``[N]``."""
        return sigmoid(self.log_odds(signals, given_label))

    def with_prior(self, signals: Floats, given_label: Ints, per_class: bool = False) -> CanaryCalibration:
        """Re-estimate the share of errors on training examples.

        One share for all by default: shares per class were tried on the development set and cost up to 10 AP, since
        EM takes any difference between training and hold-out scores for errors; differences between classes are
        better learnt pair by pair (:func:`calibrate`).
        """
        plain = replace(self, shift=np.zeros_like(self.shift))
        found = plain.log_odds(signals, given_label)
        classes = given_label if per_class else None
        shares = shift_prior(found, self.prior, classes, len(self.shift) if per_class else 1)
        return replace(self, shift=np.broadcast_to(log_odds(shares) - log_odds(self.prior), self.shift.shape).copy())


@dataclass(frozen=True, slots=True)
class LabelCalibration:
    """What :func:`calibrate` found."""

    canaries: Canaries  # weighted by the last transition
    transition: Floats  # [C, C], P(given | true)
    believed: CanaryCalibration  # negatives weighted by belief; its prior re-estimated on the training scores
    as_given: CanaryCalibration | None  # all hold-out labels as negatives; None where all are believed anyway

    def log_odds(self, signals: Floats, given_label: Ints) -> Floats:
        """Compute log odds that a label is wrong, ``[N]``; between the two calibrations where there are two."""
        upper = self.believed.log_odds(signals, given_label)
        if self.as_given is None:
            return upper
        return (1 - _AS_GIVEN_SHARE) * upper + _AS_GIVEN_SHARE * self.as_given.log_odds(signals, given_label)

    def predict(self, signals: Floats, given_label: Ints) -> Floats:
        """Compute ``p_mislabeled``, ``[N]``; its sum is the expected number of errors."""
        return sigmoid(self.log_odds(signals, given_label))


def calibrate(
    canaries: Canaries,
    signals: Floats,
    given_label: Ints,
    suggested: Ints,
    *,
    rounds: int = 3,
    adapt: bool = True,
) -> LabelCalibration:
    """Calibrate on canaries and adapt to the training examples.

    Each round fits the canaries, re-estimates the share of errors among the training examples, and weights the flips by
    the transition found there. A sample of a million training examples is plenty.

    Args:
        canaries: From :func:`sgoif.evidence.make_canaries`.
        signals: Of training examples, raw, averaged over the same window as the canaries', ``[N, S]``.
        given_label: ``[N]``.
        suggested: Class of the worst anchor of each, ``[N]``; -1 for none.
        rounds: How often the transition is re-estimated; 0 keeps the canaries' weights.
        adapt: Pass False for a hold-out with labels as given that did *not* clean itself. Its negatives hold as many
            errors as the training examples, so comparing the two finds none: neither the share of errors nor the
            transition can be learnt from them, and the canaries' own stay, which promise too much on pair noise. Where
            the share found is next to nothing or nearly all, nothing was learnt either, and the canaries' own stay.
    """
    _check(signals, given_label, suggested, canaries)
    first = canaries
    for left in range(rounds if adapt else 0, -1, -1):
        believed = fit_canaries(canaries)
        if adapt:
            believed = believed.with_prior(signals, given_label)
        if left:
            p = believed.predict(signals, given_label)
            transition = transition_from_scores(p, suggested, given_label, canaries.num_classes)
            canaries = canaries.reweighted(_with_floor(transition))
    doubted = bool((canaries.belief < 1).any())
    as_given = fit_canaries(canaries.taken_as_given()) if doubted else None
    p = believed.predict(signals, given_label)
    if adapt and not _PLAUSIBLE[0] < p.mean() < _PLAUSIBLE[1]:
        return calibrate(first, signals, given_label, suggested, adapt=False)
    final = transition_from_scores(p, suggested, given_label, canaries.num_classes)
    return LabelCalibration(canaries, final, believed, as_given)


def calibrate_on(
    canaries: Canaries, signals: Floats, given_label: Ints, transition: Floats, *, is_sure: bool = True
) -> LabelCalibration:
    """Calibrate where the transition is known, as from a :class:`sgoif.evidence.noise.NoiseModel`.

    Only the share of errors is re-estimated on the training examples.

    Args:
        canaries: From :func:`sgoif.evidence.make_canaries`.
        signals: Of training examples, ``[N, S]``.
        given_label: ``[N]``.
        transition: ``P(given | true)``.
        is_sure: Whether to take the canaries' belief as it is; otherwise the odds lie between it and labels as given.
    """
    _check(signals, given_label, given_label, canaries)
    weighted = canaries.reweighted(_with_floor(transition))
    fitted = fit_canaries(weighted)
    adapted = fitted.with_prior(signals, given_label)
    if not _PLAUSIBLE[0] < adapted.predict(signals, given_label).mean() < _PLAUSIBLE[1]:
        adapted = fitted
    doubted = not is_sure and bool((canaries.belief < 1).any())
    as_given = fit_canaries(weighted.taken_as_given()) if doubted else None
    return LabelCalibration(weighted, transition, adapted, as_given)


def cross_fitted_ap(canaries: Canaries, fit: Callable[[Canaries], SignalModel] | None = None) -> float:
    """Compute the weighted average precision of a model on canaries of the fold it was not fitted on.

    This chooses between models; it is no promise about training examples.

    Args:
        canaries: All of them.
        fit: Makes a model from canaries, of which the other fold's have weight zero; the logistic if left out.
    """
    make = fit_canaries if fit is None else fit
    scores = np.empty(len(canaries))
    for fold in (0, 1):
        model = make(replace(canaries, weight=canaries.weight * (canaries.fold != fold)))
        mine = canaries.fold == fold
        scores[mine] = model.log_odds(canaries.signals[mine], canaries.assigned_label[mine])
    order = np.argsort(-scores, kind="stable")
    weight, hit = canaries.weight[order], canaries.is_flip[order]
    found, seen = np.cumsum(weight * hit), np.cumsum(weight)
    precision = np.divide(found, seen, out=np.zeros_like(found), where=seen > 0)
    return float((weight * hit * precision).sum() / found[-1])


def fit_canaries(canaries: Canaries, start: CanaryCalibration | None = None) -> CanaryCalibration:
    """Fit a logistic to canaries at their weights, from an earlier fit where there is one."""
    return CanaryCalibration.fit(
        canaries.signals,
        canaries.is_flip,
        canaries.weight,
        canaries.assigned_label,
        num_classes=canaries.num_classes,
        start=start,
    )


def _with_floor(transition: Floats, floor: float = 1e-5) -> Floats:
    """Keep a trace of every flip, so that a pair not found this round can be found in the next."""
    return np.maximum(transition, floor)


def _check(signals: Floats, given_label: Ints, suggested: Ints, canaries: Canaries) -> None:
    n, s = len(given_label), canaries.signals.shape[1]
    if signals.shape != (n, s) or suggested.shape != (n,):
        raise SgoifError(
            f"{n} given labels need signals of shape {(n, s)} and {n} suggested labels, "
            f"got {signals.shape} and {suggested.shape}."
        )
