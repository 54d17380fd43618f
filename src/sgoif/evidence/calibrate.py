"""From signals to the probability that a label is wrong, learnt on canaries.

Signals are bent by ``sign(x) log(1 + |x|)``, standardised on the canaries, and weighed by a logistic regression with an
intercept per class. That gives probabilities under the canaries' own share of flips; the share of errors is estimated
among the training examples (:func:`shift_prior`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sgoif.errors import SgoifError
from sgoif.evidence.canaries import Canaries
from sgoif.evidence.logistic import CLASS_RIDGE, Logistic, fit_logistic, sigmoid
from sgoif.types import Floats, Ints

__all__ = [
    "CanaryCalibration",
    "LabelCalibration",
    "fit_canaries",
    "log_odds",
    "predict_each",
    "shift_prior",
    "squash",
]

_BIN = 0.02  # log odds that EM takes for one: far below what a calibration resolves
_EDGE = 1e-6  # priors stay this far from 0 and 1


def log_odds(probability: float | Floats) -> Floats:
    """Compute ``log(p / (1 - p))``, finite at the ends."""
    p = np.clip(probability, 1e-12, 1 - 1e-12)
    return np.asarray(np.log(p) - np.log1p(-p))


def shift_prior(odds: Floats, prior: float, max_iterations: int = 2_000) -> float:
    """Re-estimate the share of positives by EM, where there are no labels.

    A calibration learnt where a share π of the examples is positive gives wrong probabilities where that share is q. If
    the two kinds of example look the same in both places, only the odds are off by a factor, and q is found by maximum
    likelihood (Saerens, Latinne, Decaestecker 2002): the posterior under the current q averages to the next. Log odds
    are counted in bins first, so an iteration costs the number of occupied bins and not of examples.

    Args:
        odds: Log odds of each example under ``prior``, ``[N]``; those not finite are left out.
        prior: Share of positives where the calibration was learnt.
        max_iterations: It stops earlier where the share moves by less than 1e-7.

    >>> rng = np.random.default_rng(0)
    >>> x = np.concatenate([rng.normal(1, 1, 1_000), rng.normal(-1, 1, 9_000)])
    >>> round(shift_prior(2 * x, prior=0.5), 1)  # log odds of two unit normals at ±1
    0.1
    """
    if not 0 < prior < 1:
        raise SgoifError(f"the prior must lie inside (0, 1), got {prior}; canaries need both kinds.")
    known = odds[np.isfinite(odds)]
    if not known.size:
        raise SgoifError(f"none of {len(odds)} log odds is finite; there is nothing to estimate a share from.")
    bins, counts = np.unique(np.round(np.clip(known, -40, 40) / _BIN), return_counts=True)
    value, share = bins * _BIN - float(log_odds(prior)), prior
    for _ in range(max_iterations):
        before = share
        share = float(np.clip(np.average(sigmoid(value + log_odds(share)), weights=counts), _EDGE, 1 - _EDGE))
        if abs(share - before) < 1e-7:
            break
    return share


def squash(values: Floats) -> Floats:
    """Compute ``sign(x) log(1 + |x|)``: influences range over decades, and their sign matters."""
    wide = np.asarray(values, dtype=np.float64)
    return np.asarray(np.sign(wide) * np.log1p(np.abs(wide)))


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
            class_ridge: As :func:`sgoif.evidence.logistic.fit_logistic` has it.
        """
        bent = squash(signals)
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
        return cls(centre, scale, model, prior, np.zeros(num_classes), class_ridge=class_ridge)

    def log_odds(self, signals: Floats, given_label: Ints) -> Floats:
        """Compute log odds that a label is wrong, ``[N]``."""
        return self._odds(self._inputs(signals), given_label)

    def _odds(self, inputs: Floats, given_label: Ints) -> Floats:
        return self.model.logits(inputs, given_label) + self.shift[given_label]

    def _inputs(self, signals: Floats) -> Floats:
        inputs = (squash(signals) - self.centre) / self.scale
        return np.where(np.isfinite(inputs), inputs, 0.0)

    def predict(self, signals: Floats, given_label: Ints) -> Floats:
        """Compute the probability that a label is wrong, ``[N]``."""
        return sigmoid(self.log_odds(signals, given_label))

    def with_prior(self, signals: Floats, given_label: Ints) -> CanaryCalibration:
        """Re-estimate the share of errors on training examples.

        One share for all classes: shares per class were tried on the development set and cost up to 10 AP, since EM
        takes any difference between training and hold-out scores for errors.
        """
        plain = replace(self, shift=np.zeros_like(self.shift))
        return self.at_share(shift_prior(plain.log_odds(signals, given_label), self.prior))

    def at_share(self, share: float) -> CanaryCalibration:
        """Take a share of errors for true, whatever that of the canaries."""
        return replace(self, shift=np.full_like(self.shift, log_odds(share) - log_odds(self.prior)))


def predict_each(fits: Sequence[CanaryCalibration], signals: Floats, given_label: Ints) -> list[Floats]:
    """Compute the probabilities of several fits. Those of one scale share their inputs, which cost most."""
    inputs: dict[tuple[bytes, bytes], Floats] = {}
    found = []
    for fit in fits:
        scale = (fit.centre.tobytes(), fit.scale.tobytes())
        if scale not in inputs:
            inputs[scale] = fit._inputs(signals)
        found.append(sigmoid(fit._odds(inputs[scale], given_label)))
    return found


@dataclass(frozen=True, slots=True)
class LabelCalibration:
    """What the canaries say of labels."""

    canaries: Canaries
    believed: CanaryCalibration  # negatives weighted by belief; its prior re-estimated on the training scores

    def predict(self, signals: Floats, given_label: Ints) -> Floats:
        """Compute ``p_mislabeled``, ``[N]``; its sum is the expected number of errors."""
        return self.believed.predict(signals, given_label)


def fit_canaries(
    canaries: Canaries,
    start: CanaryCalibration | None = None,
    *,
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
        class_ridge=class_ridge if start is None else start.class_ridge,
    )
