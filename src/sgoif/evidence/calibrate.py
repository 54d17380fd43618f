"""From signals to the probability that a label is wrong, learnt on canaries.

Signals are bent by ``sign(x) log(1 + |x|)``, standardised on the canaries, and weighed by a logistic regression with an
intercept per class. That gives probabilities under the canaries' own share of flips. Two things are learnt from the
training scores besides, without any label: how many errors there are (:func:`sgoif.evidence.prior.shift_prior`) and
which class is mistaken for which (:func:`sgoif.evidence.transition.transition_from_scores`); the flips are weighted
anew by the latter and the regression is fitted again, a few times. Where the whole hold-out is believed, a third thing
is learnt there: how much likelier errors are on hard examples (:mod:`sgoif.evidence.hardness`).

A hold-out that had to clean itself is calibrated twice. Believing the cleaned labels, the hard examples that cleaning
doubts are missing among the negatives and probabilities come out too high; taking the labels as given, the errors among
the negatives make them too low. The answer lies between, at a weighted geometric mean of the two odds, and the two are
its bracket.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sgoif.errors import SgoifError
from sgoif.evidence.canaries import Canaries
from sgoif.evidence.hardness import ShareLine, hardness, line_of, shift_line, straightened
from sgoif.evidence.logistic import CLASS_RIDGE, Logistic, fit_logistic, sigmoid
from sgoif.evidence.prior import log_odds, shift_prior
from sgoif.evidence.transition import transition_from_scores

__all__ = [
    "CanaryCalibration",
    "LabelCalibration",
    "calibrate",
    "calibrate_counted",
    "cross_fitted_ap",
    "fit_canaries",
    "predict_each",
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


# Shares of errors that can be believed. Clean labels have fewer; so seem to have the labels of a network that fits its
# training examples much better than the hold-out, which makes them look sound without exception. The list may still be
# good then, by the canaries as they were, and the lowest share is all that can be promised of it: with their own share
# 1,202 errors were expected in 20,000 clean labels, and 82% of the first 1% (development set).
_PLAUSIBLE = (0.002, 0.9)

# Where a line of shares is believed: at this share of errors without it, and while it finds no more than so many times
# as many. On clean labels a handful of hold-out examples decides what the errors would look like, and the line takes
# hard examples for them: 141 expected instead of 68 of 20,000 (frozen features), and ten times as many in small worlds.
# On human labels it found up to 2.1 times as many, from a share of 0.031 on.
_ENOUGH_FOR_A_LINE, _MOST_GROWTH = 0.02, 2.5


_ONE_INTERCEPT = 1e9  # a ridge that leaves classes none of their own: the transition knows how they differ


def squash(values: Floats) -> Floats:
    """Compute ``sign(x) log(1 + |x|)``: influences range over decades, and their sign matters."""
    return np.asarray(np.sign(values) * np.log1p(np.abs(values)))


class SignalModel(Protocol):
    """What ranks examples by their signals; boosted trees will do as well as a logistic."""

    def log_odds(self, signals: Floats, given_label: Ints) -> Floats:
        """Compute log odds that a label is wrong, ``[N]``."""


@dataclass(frozen=True, slots=True)
class CanaryCalibration:
    """A logistic regression on squashed, standardised signals, and on hardness where there is a line of shares.

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
    line: ShareLine | None = None  # the canaries' share of flips by hardness, which is the last input then
    found: ShareLine | None = None  # the training examples' share of errors by hardness
    stretch: float = 1.0  # of the log odds beside the line
    class_ridge: float = CLASS_RIDGE  # how strongly the intercepts of the classes are held together

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
        by_hardness: bool = False,
        class_ridge: float = CLASS_RIDGE,
    ) -> CanaryCalibration:
        """Fit on canaries.

        Args:
            signals: Raw, ``[M, S]``; where not finite, the mean is taken.
            is_flip: Which canaries carry a wrong label, ``[M]``.
            weight: ``[M]``, in units of examples.
            assigned_label: ``[M]``.
            num_classes: ``C``.
            start: An earlier fit to similar weights: its scale is kept and a few Newton steps from it are taken.
            by_hardness: Whether errors may be likelier on hard examples.
            class_ridge: As :func:`sgoif.evidence.logistic.fit_logistic` has it.
        """
        bent = _bent(signals, by_hardness)
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
            class_ridge=class_ridge,
            start=None if start is None else start.model,
            max_steps=100 if start is None else 3,
        )
        prior = float(weight[is_flip].sum() / weight.sum())
        plain = cls(centre, scale, model, prior, np.zeros(num_classes), class_ridge=class_ridge)
        if not by_hardness:
            return plain
        line = line_of(inputs[used, -1], is_flip[used], weight[used])
        found = None if start is None else start.found
        return replace(plain, line=line, found=found, shift=np.full(num_classes, log_odds(prior)))

    def log_odds(self, signals: Floats, given_label: Ints) -> Floats:
        """Compute log odds that a label is wrong, ``[N]``."""
        return self._odds(self._inputs(signals), given_label)

    def _odds(self, inputs: Floats, given_label: Ints) -> Floats:
        return self.stretch * self._ratio(inputs, given_label) + self.shift[given_label]

    def _inputs(self, signals: Floats) -> Floats:
        inputs = (_bent(signals, self.line is not None) - self.centre) / self.scale
        return np.where(np.isfinite(inputs), inputs, 0.0)

    def _ratio(self, inputs: Floats, given_label: Ints) -> Floats:
        """Log odds; with a line without what hardness alone says, which leaves a log ratio of likelihoods."""
        odds = self.model.logits(inputs, given_label)
        return odds if self.line is None else odds - self.line.log_odds(inputs[:, -1])

    def predict(self, signals: Floats, given_label: Ints) -> Floats:
        """Compute the probability that a label is wrong, ``[N]``."""
        return sigmoid(self.log_odds(signals, given_label))

    def with_prior(self, signals: Floats, given_label: Ints) -> CanaryCalibration:
        """Re-estimate the share of errors on training examples, and how it grows with hardness where there is a line.

        One share for all classes: shares per class were tried on the development set and cost up to 10 AP, since EM
        takes any difference between training and hold-out scores for errors; differences between classes are better
        learnt pair by pair (:func:`calibrate`).
        """
        if self.line is not None:
            return self._with_line(signals, given_label)
        plain = replace(self, shift=np.zeros_like(self.shift))
        return self.at_share(float(shift_prior(plain.log_odds(signals, given_label), self.prior)[0]))

    def at_share(self, share: float) -> CanaryCalibration:
        """Take a share of errors for true, whatever that of the canaries."""
        return replace(self, shift=np.full_like(self.shift, log_odds(share) - log_odds(self.prior)))

    def _with_line(self, signals: Floats, given_label: Ints) -> CanaryCalibration:
        inputs = self._inputs(signals)
        ratio, hard = self._ratio(inputs, given_label), inputs[:, -1]
        level = ShareLine(float(log_odds(self.prior)), 0.0)
        found = shift_line(ratio, hard, level if self.found is None else self.found)
        stretch, shift = straightened(ratio, hard, found)
        return replace(self, found=found, stretch=stretch, shift=np.full_like(self.shift, shift))

    def growth(self, signals: Floats) -> Floats:
        """Compute how much likelier errors are on examples as hard as these, ``[N]``, up to a factor."""
        slope = 0.0 if self.found is None else self.found.slope
        return np.exp(slope * self._inputs(signals)[:, -1])


def predict_each(fits: Sequence[CanaryCalibration], signals: Floats, given_label: Ints) -> list[Floats]:
    """Compute the probabilities of several fits. Those of one scale share their inputs, which cost most."""
    inputs: dict[tuple[bytes, bytes, bool], Floats] = {}
    found = []
    for fit in fits:
        scale = (fit.centre.tobytes(), fit.scale.tobytes(), fit.line is None)
        if scale not in inputs:
            inputs[scale] = fit._inputs(signals)
        found.append(sigmoid(fit._odds(inputs[scale], given_label)))
    return found


@dataclass(frozen=True, slots=True)
class LabelCalibration:
    """What :func:`calibrate` found."""

    canaries: Canaries  # weighted by the last transition
    transition: Floats  # [C, C], P(given | true)
    believed: CanaryCalibration  # negatives weighted by belief; its prior re-estimated on the training scores
    as_given: CanaryCalibration | None  # all hold-out labels as negatives; None where all are believed anyway
    as_given_share: float = _AS_GIVEN_SHARE  # of the latter in the log odds; with 0 it is the interval's lower end only
    is_counted: bool = False  # the share of errors is the transition's, and not found among the training scores

    def log_odds(self, signals: Floats, given_label: Ints) -> Floats:
        """Compute log odds that a label is wrong, ``[N]``; between the two calibrations where there are two."""
        upper = self.believed.log_odds(signals, given_label)
        if self.as_given is None:
            return upper
        share = self.as_given_share
        return (1 - share) * upper + share * self.as_given.log_odds(signals, given_label)

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
    by_hardness: bool = True,
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
            the share found is next to nothing or nearly all, nothing was learnt either: the canaries' own transition
            stays, and in the second case their share.
        by_hardness: Let errors be likelier on hard examples, where all of the hold-out is believed and there are enough
            errors. On human labels (development set, `aggre`, 1,806 errors in 20,000) the expected precision of the top
            1, 5, 10% went from 77, 45, 28 to 84, 62, 45 (true 96, 77, 56) in one training, from 96, 70, 46 to 97, 82,
            63 (true 96, 77, 58) in another, and the expected errors from 619 and 1,085 to 1,228 and 1,877. A hold-out
            that cleaned itself has lost hard examples already: there a line made things worse.
    """
    _check(signals, given_label, suggested, canaries)
    examples = (signals, given_label, suggested)
    believed, weighted = _fitted(canaries, *examples, rounds if adapt else 0, adapt)
    share = float(believed.predict(signals, given_label).mean())
    if adapt and not _PLAUSIBLE[0] < share < _PLAUSIBLE[1]:
        believed, weighted = fit_canaries(canaries), canaries
        believed = believed.at_share(_PLAUSIBLE[0]) if share < _PLAUSIBLE[1] else believed
    elif by_hardness and adapt and bool((canaries.belief == 1).all()) and share > _ENOUGH_FOR_A_LINE:
        lined, tilted = _fitted(canaries, *examples, rounds, adapt, by_hardness=True)
        if lined.predict(signals, given_label).mean() < _MOST_GROWTH * share:
            believed, weighted = lined, tilted
    doubted = bool((canaries.belief < 1).any())
    as_given = fit_canaries(weighted.taken_as_given()) if doubted else None
    p = believed.predict(signals, given_label)
    final = transition_from_scores(p, suggested, given_label, canaries.num_classes)
    return LabelCalibration(weighted, final, believed, as_given)


def _fitted(
    canaries: Canaries,
    signals: Floats,
    given_label: Ints,
    suggested: Ints,
    rounds: int,
    adapt: bool,
    by_hardness: bool = False,
) -> tuple[CanaryCalibration, Canaries]:
    """Fit, and weigh the canaries by what is found among the training examples, in turns."""
    for left in range(rounds, -1, -1):
        fitted = fit_canaries(canaries, by_hardness=by_hardness)
        if adapt:
            fitted = fitted.with_prior(signals, given_label)
        if left:
            p = fitted.predict(signals, given_label)
            transition = transition_from_scores(p, suggested, given_label, canaries.num_classes)
            canaries = canaries.reweighted(_with_floor(transition), fitted.growth(canaries.signals))
    return fitted, canaries


def calibrate_counted(canaries: Canaries, transition: Floats) -> LabelCalibration:
    """Calibrate where errors were counted: flips weigh what the transition says, and the share of errors is its own.

    Hold-out labels that are doubted count as far as they are believed; that all of them may be right is the interval's
    lower end.

    Args:
        canaries: with how far each hold-out label is believed.
        transition: ``P(given | true)``.
    """
    weighted = canaries.reweighted(_with_floor(transition))
    doubted = bool((canaries.belief < 1).any())
    believed = fit_canaries(weighted, class_ridge=_ONE_INTERCEPT)
    as_given = fit_canaries(weighted.taken_as_given(), class_ridge=_ONE_INTERCEPT) if doubted else None
    return LabelCalibration(weighted, transition, believed, as_given, as_given_share=0.0, is_counted=True)


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


def fit_canaries(
    canaries: Canaries,
    start: CanaryCalibration | None = None,
    *,
    by_hardness: bool = False,
    class_ridge: float = CLASS_RIDGE,
) -> CanaryCalibration:
    """Fit a logistic to canaries at their weights, from an earlier fit (and like it) where there is one."""
    return CanaryCalibration.fit(
        canaries.signals,
        canaries.is_flip,
        canaries.weight,
        canaries.assigned_label,
        num_classes=canaries.num_classes,
        start=start,
        by_hardness=by_hardness if start is None else start.line is not None,
        class_ridge=class_ridge if start is None else start.class_ridge,
    )


def _bent(signals: Floats, by_hardness: bool) -> Floats:
    values = np.asarray(signals, dtype=np.float64)
    return np.column_stack([squash(values), hardness(values)]) if by_hardness else squash(values)


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
