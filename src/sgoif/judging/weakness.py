"""Weakness or noise: whether heads contradict labels because they are weak, or because the labels are wrong.

A weak head is wrong where it is unsure; noise is everywhere. So labels are first explained by weakness alone: a label
is another class as often as the heads doubt theirs (a share of the doubt, fitted), and then one that they confuse it
with, ``q = P + c (1 - max P) P N``. What was counted is believed where it makes unseen labels likelier than that by
:data:`EVIDENCE` nats, or where errors at an even rate do and what was counted is likelier still. Else errors are spread
at that rate, if the labels rule out none; and else nobody can tell.

Measured on 33 sets without errors and weak features (``python -m benchmarks run weakness``): without this 1,366 labels
were flagged, with it 2; on sets with errors and strong features nothing changes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from sgoif.judging.noise import NoiseModel
from sgoif.judging.pool import Doubt, Pool
from sgoif.types import Floats

__all__ = ["Belief", "Kind", "settle"]

EVIDENCE, _ALLOWED = 5.0, 2.0  # nats: that settle it, and that an end of a range may cost
_RATES = (0.0, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6)
_SCALES = (1.0, 0.85, 0.7, 0.5, 0.35, 0.2, 0.1, 0.0)  # of what was counted
_STEPS = 30  # of a fit
_FITTED, _NUMBERS = 10_000, 1 << 24  # examples that are asked at most, and numbers of their predictions
_OVER = 4.0  # nats below the best from which on further rates are not tried
_ENOUGH = 1e-7  # change of the mean log likelihood at which a fit ends: 0.002 nats of 20,000
_MOST = 3.5  # log of an exponent, as in a pool
_CLEAN = 0.005  # share of wrong labels below which weak evidence is no sign of any

Kind = Literal["counted", "spread", "clean", "unknown"]


@dataclass(frozen=True, slots=True)
class Belief:
    """What is believed of the noise: ``counted``, errors ``spread`` evenly, ``clean`` (no sign of any), ``unknown``."""

    kind: Kind
    likely: NoiseModel
    lowest: NoiseModel | None  # with as few errors as the labels allow, and as many; None where others tell
    highest: NoiseModel | None
    rate: float  # at which errors are likeliest if they are spread evenly; that of the counts where these are believed
    evidence: float  # nats by which what was counted beats weakness

    def of_others(self, logs: Sequence[Tensor], given: Tensor) -> Belief:
        """The same of other examples, by the log probabilities that the same heads give them, ``[n, C]`` each."""

        def move(model: NoiseModel | None) -> NoiseModel | None:
            return None if model is None else model.of_others(logs, given)

        likely = self.likely.of_others(logs, given)
        return replace(self, likely=likely, lowest=move(self.lowest), highest=move(self.highest))


def settle(base: Pool, counted: NoiseModel, near: Floats | None) -> Belief:
    """Decide what to believe.

    Args:
        base: predictions of the given class by heads that took labels as they are.
        counted: the noise as it was counted.
        near: which other class is given for each if errors go where predictions do, ``[C, C]``; None for two classes.
    """
    size, rows = base.num_classes, _choose_rows(base)
    even = np.full((size, size), 1 / (size - 1))
    np.fill_diagonal(even, 0.0)
    confused, share = _leaks(even if near is None else near), 1 - float(np.diag(counted.transition).mean())
    plain = _Weakness(base, counted.given, rows, confused, _leaks(even))
    again = _Weakness(counted.pool, counted.given, rows, confused, _leaks(counted.transition) / max(share, 1e-9))
    total, weak = float(counted.log_likelihood(rows).sum()), plain.fit(0.0)
    beyond = total - max(weak, again.fit(0.0))
    if beyond > EVIDENCE:
        return Belief("counted", counted, _weakest(counted, again, share), None, share, beyond)
    tried = _profile(plain, _RATES)
    best = max(tried.values())
    rate, allowed = max(tried, key=tried.__getitem__), [r for r, value in tried.items() if value >= best - _ALLOWED]
    if best - weak > EVIDENCE and total > best:
        return Belief("counted", counted, _weakest(counted, again, share), None, share, beyond)
    if min(allowed) > 0:
        likely, lowest, highest = (_spread(plain, at) for at in (rate, min(allowed), max(allowed)))
        return Belief("spread", likely, lowest, highest, rate, beyond)
    kind: Kind = "clean" if share < _CLEAN else "unknown"
    return Belief(kind, counted, counted.scaled(0.0), None, rate, beyond)


def _choose_rows(base: Pool) -> Tensor:
    """Examples that are asked; all models are compared on the same ones."""
    most = min(_FITTED, max(1_000, _NUMBERS // (base.num_classes * len(base.logs))))
    return torch.randperm(len(base), generator=torch.Generator().manual_seed(0))[:most]


def _profile(weakness: _Weakness, rates: Sequence[float]) -> dict[float, float]:
    """Log likelihood of the labels by rate of errors; rates far beyond the best are left out."""
    found: dict[float, float] = {}
    for rate in rates:
        found[rate] = weakness.fit(rate)
        if found[rate] < max(found.values()) - _OVER:
            break
    return found


def _weakest(counted: NoiseModel, again: _Weakness, share: float) -> NoiseModel:
    """What was counted with as few errors as the labels allow, the rest being weakness of the heads."""
    tried = _profile(again, [share * scale for scale in _SCALES])
    least = min(rate for rate, value in tried.items() if value >= max(tried.values()) - _ALLOWED)
    again.fit(least)
    transition = counted.scaled(least / share).transition
    return NoiseModel(again.pool(), transition, counted.given, is_recovered=True)


def _spread(plain: _Weakness, rate: float) -> NoiseModel:
    """Errors that go from every class to every other alike, the rest being weakness of the heads."""
    plain.fit(rate)
    size = plain.base.num_classes
    transition = np.full((size, size), rate / (size - 1))
    np.fill_diagonal(transition, 1 - rate)
    return NoiseModel(plain.pool(), transition, plain.labels, is_recovered=True)


def _leaks(others: Floats) -> Tensor:
    """What a class loses and where that goes, ``[C, C]``; rows add up to 0."""
    return torch.from_numpy(others - np.eye(len(others))).float()


class _Weakness:
    """Labels explained by the doubt of heads, and by a rate of errors besides: ``q = P + c (1 - max P) P N + r P M``.

    Args:
        base: predictions.
        labels: given ones, ``[N]``.
        rows: that are asked.
        near: ``N``, where a head's doubt goes.
        noise: ``M``, where errors go.
    """

    def __init__(self, base: Pool, labels: Tensor, rows: Tensor, near: Tensor, noise: Tensor) -> None:
        self.base, self.labels, self.near = base, labels, near
        self._logs, self._given = torch.stack([log_p[rows].float() for log_p in base.logs]), labels[rows]
        self._from_near, self._from_noise = near.mT[self._given], noise.mT[self._given]
        self._first = self._free = torch.cat([base.exponents.clamp_min(1e-3).log(), torch.tensor([-3.0])])

    def fit(self, rate: float) -> float:
        """Fit exponents and share of the doubt where so many labels are wrong; the log likelihood of the labels."""
        starts = [self._free] if self._free is self._first else [self._free, self._first]
        fits = [found for found in (self._fit(rate, start) for start in starts) if math.isfinite(found[0])]
        if not fits:  # no step was finite: labels are as likely as at the start
            return -math.inf
        value, self._free = max(fits, key=lambda found: found[0])
        return value

    def pool(self) -> Pool:
        """Predictions of the true class, as weak as they were fitted last."""
        return Pool(self.base.logs, _exponents(self._free), Doubt(float(self._free[-1].sigmoid()), self.near))

    def _fit(self, rate: float, start: Tensor) -> tuple[float, Tensor]:
        free, count = start.clone().requires_grad_(True), len(self._given)
        optimizer = torch.optim.LBFGS([free], max_iter=_STEPS, tolerance_change=_ENOUGH, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            p = torch.einsum("k,knc->nc", _exponents(free), self._logs).softmax(1)
            doubt = free[-1].sigmoid() * (1 - p.max(1).values)
            right = p.gather(1, self._given[:, None])[:, 0]
            q = right + doubt * (p * self._from_near).sum(1) + rate * (p * self._from_noise).sum(1)
            return -q.clamp_min(1e-12).log().sum()

        def closure() -> Tensor:
            optimizer.zero_grad()
            value = (loss() + 0.5 * (_exponents(free) - 0.5).square().sum()) / count
            value.backward()
            return value

        with torch.enable_grad():
            optimizer.step(closure)
        with torch.no_grad():
            return -float(loss()), free.detach()


def _exponents(free: Tensor) -> Tensor:
    return free[:-1].clamp_max(_MOST).exp()
