"""A scan of values instead of classes: which given numbers are wrong, by predictions that have not seen them.

Every value is predicted by heads fitted to other examples (:mod:`sgoif.scanning.regress`), with a scale of its residual
that may depend on the features, and judged by what its residual says (:mod:`sgoif.scanning.residuals`). Heads are
fitted again with little weight on what was doubted: three fits in all.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sgoif.errors import SgoifError
from sgoif.findings.suspects import UNLIKELY
from sgoif.judging.folds import Fold, make_folds
from sgoif.run import Run
from sgoif.scanning import Progress
from sgoif.scanning.regress import blend_heads, make_regressors, student_loss
from sgoif.scanning.residuals import Residuals, ValueNoise, judge_residuals
from sgoif.scanning.scan_run import ScanRun
from sgoif.scanning.standardise import check_features, find_finite, standardise
from sgoif.scanning.unjudged import append_unjudged
from sgoif.types import Columns, Floats

__all__ = ["LEAST_EXAMPLES", "ValueEstimate", "audit_values", "estimate_values"]

log = logging.getLogger(__name__)

LEAST_EXAMPLES = 40  # with a value: five folds of eight
_STRATA = 10  # of the values, from which every fold gets its share
_FENCE = 3.0  # ranges between the quartiles beyond them, within which values are brought for the first fit
_FARTHEST = 10.0  # deviations from the last prediction within which values are brought for the later ones
_EXPONENTS = (0.0, 0.25, 0.5, 0.75, 1.0)  # how far the scale follows what the features say of it
_LEAST_GAIN = 3.0  # nats that a scale which varies has to gain
_SURE = 3.0  # standard errors by which the heads have to beat a constant


@dataclass(frozen=True, slots=True)
class ValueCompetence:
    """How well values are predicted that the heads have not seen, beside a constant."""

    r2: float  # of all given values, wrong ones among them
    r2_trusted: float  # the same with little weight on values that are doubted
    gain: float  # in mean log likelihood over a constant, with a heavy-tailed density
    gain_error: float  # standard error of the gain
    num_examples: int
    why_not: str | None  # why no value can be judged


@dataclass(frozen=True, slots=True)
class ValueEstimate:
    """What the features say of values; one entry per example."""

    residuals: Residuals
    noise: ValueNoise
    competence: ValueCompetence
    heads: dict[str, float]  # their shares of the prediction
    scale_exponent: float  # 0: the residuals have one scale

    def facts(self) -> dict[str, Any]:
        """What a run's information keeps."""
        noise = self.noise
        found = zip(noise.sources, noise.rates, noise.gains, strict=True)
        return {
            "heads": self.heads,
            "scale_exponent": self.scale_exponent,
            "tails": [round(value, 2) for value in noise.freedom],
            "sources": [{"name": name, "rate": rate, "gain": gain} for name, rate, gain in found],
        }


def audit_values(
    rows: NDArray[np.floating[Any]],
    values: Floats,
    ids: NDArray[Any],
    *,
    seed: int = 0,
    run: ScanRun | None = None,
) -> Run:
    """Judge every given value by predictions that have not seen it.

    Args:
        rows: features, ``[N, D]``; outliers are clamped.
        values: given values, ``[N]``; NaN where there is none.
        ids: ``[N]``.
        seed: of everything random.
        run: where it goes; its information is kept beside what is found here.

    Raises:
        SgoifError: Features are no table of numbers, values are not one number per example, all the same, or too few.
    """
    run = run or ScanRun()
    rows, values = check_features(rows, len(ids)), _check_values(values, len(ids))
    reasons = _find_reasons(rows, values)
    kept = np.array([reason is None for reason in reasons], dtype=bool)
    if kept.sum() < LEAST_EXAMPLES:
        raise SgoifError(
            f"a scan of values needs at least {LEAST_EXAMPLES} examples with a finite value and finite features; "
            f"{int(kept.sum()):,} of {len(ids):,} have both."
        )
    own = values[kept]
    if own.min() == own.max():
        raise SgoifError(
            f"all {len(own):,} values are {own[0]:g}; there is nothing to predict. Is it the right column?"
        )
    standard = standardise(rows if kept.all() else rows[kept])
    found = estimate_values(standard.inputs, own, ids[kept], seed=seed, progress=run.progress)
    why = found.competence.why_not
    if why is not None:
        log.warning("this run has no probabilities: %s. Its values are ranked by `label_score`.", why)
    unjudged: Columns = {"id": ids[~kept], "given_value": values[~kept], "no_p_reason": reasons[~kept]}
    facts = {
        "task": "regression",
        "seed": seed,
        "competence": asdict(found.competence),
        "no_p_reason": why,
        "estimate": found.facts(),
        "not_finite": int((~kept).sum()),
        "clamped_values": standard.num_clamped,
        "expected_errors": None if why is not None else float(found.noise.p.sum()),
        "num_not_judged": int((~kept).sum()),
    }
    return run.save(facts, append_unjudged(_columns(found, ids[kept]), unjudged))


def estimate_values(
    inputs: Tensor, values: Floats, ids: NDArray[Any], *, seed: int = 0, progress: Progress | None = None
) -> ValueEstimate:
    """Predict values out of fold, and judge them by their residuals.

    Args:
        inputs: standardised features, ``[N, D]``.
        values: ``[N]``, finite and not all the same.
        ids: by whose hashes examples are split, ``[N]``.
        seed: of everything random.
        progress: called with the stage, what is done, and the total.
    """
    folds = make_folds(ids, _strata(values))
    heads = make_regressors(inputs, folds, seed=seed)
    smooth = [head for head in heads if head.name != "trees"]
    unit = float(np.subtract(*np.quantile(values, [0.75, 0.25]))) or float(values.std())
    near, trust = _fence(values), np.ones(len(values))
    for number, used in enumerate((smooth, smooth, heads)):
        if progress is not None:
            progress("fitting", number + 1, 3)
        blend = blend_heads(used, near, trust)
        scales, exponent = _fit_scales(inputs, folds, values - blend.predicted, blend.predicted, unit, seed)
        near = values.clip(blend.predicted - _FARTHEST * scales, blend.predicted + _FARTHEST * scales)
        # as of Student's four degrees, and steeper
        trust = (5 / (4 + ((values - blend.predicted) / scales) ** 2)) ** 2
    found = Residuals(values, blend.predicted, scales)
    noise = judge_residuals(found, seed)
    return ValueEstimate(found, noise, _measure(found, noise), blend.shares, exponent)


def _check_values(values: Any, count: int) -> Floats:
    found = np.asarray(values)
    if found.dtype.kind not in "buif":
        raise SgoifError(f"the values are of type {found.dtype}, expected numbers, one per example.")
    if found.shape != (count,):
        raise SgoifError(f"the values have the shape {list(found.shape)}, expected one per example, [{count:,}].")
    return found.astype(np.float64)


def _find_reasons(rows: NDArray[Any], values: Floats) -> NDArray[np.object_]:
    """Why examples cannot be judged, None where they can, ``[N]``."""
    found = np.full(len(values), None, dtype=object)
    found[~find_finite(rows)] = "its features are not finite"
    found[np.isinf(values)] = "its value is infinite"
    found[np.isnan(values)] = "it has no value"
    return found


def _strata(values: Floats) -> NDArray[np.int64]:
    edges = np.quantile(values, np.linspace(0, 1, _STRATA + 1)[1:-1])
    return np.searchsorted(edges, values).astype(np.int64)


def _fence(values: Floats) -> Floats:
    """Values brought within a few ranges between the quartiles: one that is a thousand times too large owns no fit."""
    first, third = np.quantile(values, [0.25, 0.75])
    reach = _FENCE * (third - first)
    return values.clip(first - reach, third + reach) if reach > 0 else values


def _spread(residuals: Floats, unit: float) -> float:
    """Scale of residuals, little moved by large ones; never 0."""
    return max(1.4826 * float(np.median(np.abs(residuals))), 1e-6 * unit)


def _fit_scales(
    inputs: Tensor, folds: Sequence[Fold], residuals: Floats, predicted: Floats, unit: float, seed: int
) -> tuple[Floats, float]:
    """Scale of every residual from features and prediction, out of fold, as far as unseen residuals support it.

    Returns:
        Scales, ``[N]``, and how far they follow the features: 0 where all are the same.
    """
    spread, same = _spread(residuals, unit), np.ones(len(residuals))
    size = np.log(np.abs(residuals).clip(1e-2 * spread, _FARTHEST * spread) / spread)
    level = torch.from_numpy((predicted - predicted.mean()) / max(float(predicted.std()), 1e-300)).float().clamp(-5, 5)
    seen = torch.cat([inputs, level[:, None], level[:, None].square()], 1)
    found = blend_heads(make_regressors(seen, folds, seed=seed, has_trees=False), size, same).predicted
    found = (found - found.mean()).clip(-3, 3)
    losses = [student_loss(residuals * np.exp(-a * found)) + a * float(found.mean()) for a in _EXPONENTS]
    best = int(np.argmin(losses))
    exponent = _EXPONENTS[best] if (losses[0] - losses[best]) * len(found) > _LEAST_GAIN else 0.0
    scales = np.exp(exponent * found)
    return scales * _spread(residuals / scales, unit), exponent


def _measure(found: Residuals, noise: ValueNoise) -> ValueCompetence:
    """Compare the predictions with a constant, by squares and by a heavy-tailed likelihood."""
    values, trust = found.values, noise.trust * (1 - noise.p)
    order = np.argsort(values)
    total = np.cumsum(trust[order])
    constant = values[order][np.searchsorted(total, 0.5 * total[-1])]
    ours, plain = values - found.predicted, values - constant
    gains = _student_losses(plain) - _student_losses(ours)
    gain, error = float(gains.mean()), float(gains.std() / np.sqrt(len(gains)))

    def r2(weights: Floats) -> float:
        mean = float((weights * values).sum() / weights.sum())
        return 1 - float((weights * ours**2).sum() / max(float((weights * (values - mean) ** 2).sum()), 1e-300))

    trusted = r2(trust)
    why = None
    if gain < _SURE * error or trusted <= 0:
        why = f"the features predict the values no better than a constant does (out-of-fold R² {trusted:.2f})"
    return ValueCompetence(r2(np.ones(len(values))), trusted, gain, error, len(values), why)


def _student_losses(residuals: Floats) -> Floats:
    """Negative log likelihood of each residual under a Student density of four degrees, but for a constant."""
    unit = max(1.4826 * float(np.median(np.abs(residuals))), 1e-300)
    return np.asarray(2.5 * np.log1p((residuals / unit) ** 2 / 4) + np.log(unit))


def _columns(found: ValueEstimate, ids: NDArray[Any]) -> Columns:
    """The table of examples; without competence, values are ranked and have no probability."""
    noise, at = found.noise, found.residuals
    low, high, deviation = noise.quantiles
    p = {"p_mislabeled": noise.p, "p_mislabeled_low": noise.p_low, "p_mislabeled_high": noise.p_high}
    why = found.competence.why_not
    if why is not None:
        p = {name: np.full(len(ids), np.nan) for name in p}
    names = np.array([*noise.sources, None], dtype=object)
    is_doubted = noise.p >= UNLIKELY if why is None else np.zeros(len(ids), bool)
    source = names[np.where(is_doubted, noise.source, len(noise.sources))]  # the last one is None
    return {
        "id": ids,
        "given_value": at.values,
        "predicted_value": at.predicted,
        "predicted_low": at.predicted + low * at.scales,
        "predicted_high": at.predicted + high * at.scales,
        "residual_std": deviation * at.scales,
        "label_score": noise.score,
        **p,
        "no_p_reason": np.full(len(ids), why, dtype=object),
        "error_source": source,
    }
