"""How likely each given value is wrong, from residuals of predictions that have not seen it.

Values that are right scatter around the prediction with a Student density of the local scale, whose two sides may
differ: heavy and lopsided tails are not errors. Wrong values come from *sources of errors*: another example's value,
anything far from the prediction, or the right value times a factor (a wrong unit, a lost sign). No source is assumed.
Each enters only if it makes residuals likelier that it was not fitted to, by several nats and standard errors. Without
any, all values are believed, and the upper ends of the ranges say how many errors could have gone unnoticed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sgoif.types import Floats, Ints

__all__ = ["FACTORS", "Residuals", "ValueNoise", "judge_residuals"]

FACTORS = (10.0, 0.1, 100.0, 0.01, 1000.0, 0.001, -1.0)  # of the right value, by which it was written down
ANOTHER, FAR = "another example's value", "far from the prediction"

_FITTED = 10_000  # residuals at most that the densities are fitted to
_LEAST_GAIN = 6.0  # nats that a source has to gain
_SURE_GAIN, _SURE_FACTOR = 3.0, 2.0  # standard errors that it has to gain: a factor explains values to the point
_MOST_SOURCES = 2
_UNKNOWN = 1e-3 / 20  # in the ranking: density of errors that no source explains, even over 20 deviations
_FREEDOM = (1.5, 30.0)  # degrees of a tail, least and most
_FARTHER = 3.0  # a value far from the prediction: deviations, at least
_RANGE = 1.353  # nats below the best fit at the ends of a 90% range
_SCALES = np.exp(np.linspace(-5, 2.5, 76))  # of the rates, among which the ends of the range are looked for
_STEPS = 30
_BINS = 8192


@dataclass(frozen=True, slots=True)
class Residuals:
    """Given values beside predictions that have not seen them; all ``[N]``."""

    values: Floats
    predicted: Floats
    scales: Floats  # of the residuals, up to a factor that all share

    @property
    def standard(self) -> Floats:
        """Residuals in units of their scales."""
        return (self.values - self.predicted) / self.scales

    def only(self, rows: Ints) -> Residuals:
        """Some of the examples."""
        return Residuals(self.values[rows], self.predicted[rows], self.scales[rows])


@dataclass(frozen=True, slots=True)
class ValueNoise:
    """What residuals say of values; one entry per example."""

    p: Floats  # probability that the value is wrong
    p_low: Floats  # the same where errors are as rare as the likelihood allows, and as frequent
    p_high: Floats
    score: Floats  # in [0, 1], low for suspicious values, also where no error is believed in
    source: Ints  # the likeliest source if it is wrong, a place in `sources`; -1 for none
    sources: tuple[str, ...]
    rates: tuple[float, ...]  # share of all values that comes from each source
    gains: tuple[float, ...]  # nats that each gained on residuals that it was not fitted to
    trust: Floats  # weights of values in figures about right ones: small for those that are doubted or in the tails
    quantiles: tuple[float, float, float]  # 5%, 95% and deviation of right values, in units of `scales`
    freedom: tuple[float, float]  # degrees of the two tails


def judge_residuals(found: Residuals, seed: int = 0) -> ValueNoise:
    """Find which sources of errors the residuals support, and judge every value.

    Args:
        found: values, predictions and scales.
        seed: of the sample, and of the halves that are fitted and looked at in turn.
    """
    order = np.random.default_rng(seed).permutation(len(found.values))[:_FITTED]
    density = _Marginal.of(found)
    learnt = _Data.of(found.only(order), density)
    half = len(order) // 2
    halves = [(slice(0, half), slice(half, None)), (slice(half, None), slice(0, half))]
    world, gains = _World((), _fit(learnt, ())), list[float]()
    held = _held_out(learnt, halves, ())
    while len(gains) < _MOST_SOURCES:
        tried = {name: _held_out(learnt, halves, (*world.names, name)) for name in _promising(learnt, world)}
        if not tried:
            break
        best = max(tried, key=lambda name: float(tried[name].sum()))
        gain = tried[best] - held
        sure = _SURE_FACTOR if best in _FACTOR_NAMES else _SURE_GAIN
        if float(gain.sum()) < max(_LEAST_GAIN, sure * float(gain.std()) * math.sqrt(len(gain))):
            break
        names = (*world.names, best)
        world, held = _World(names, _fit(learnt, names)), tried[best]
        gains.append(float(gain.sum()))
    return _judge(world, learnt, _Data.of(found, density), tuple(gains))


@dataclass(frozen=True, slots=True)
class _Marginal:
    """Density of given values whatever the example, smooth, with a heavy tail so that no value is impossible."""

    edges: Floats
    heights: Floats
    middle: float
    width: float

    @classmethod
    def of(cls, found: Residuals) -> _Marginal:
        """Smooth a histogram of the values; never finer than the residuals are, or rounded values had atoms."""
        values = found.values
        low, first, middle, third, high = np.quantile(values, [0.001, 0.25, 0.5, 0.75, 0.999])
        width = max(float(third - first), 1e-9 * max(abs(float(middle)), 1e-300), float(np.median(found.scales)))
        smooth = max(0.9 * width / 1.34 * len(values) ** -0.2, 0.5 * float(np.median(found.scales)), 1e-300)
        low, high = float(low) - 4 * smooth, float(high) + 4 * smooth
        number = int(np.clip(4 * (high - low) / smooth, 64, _BINS))
        counts, edges = np.histogram(values.clip(low, high), number, (low, high))
        step = (high - low) / number
        reach = min(math.ceil(4 * smooth / step), number // 2)
        kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) * step / smooth) ** 2)
        heights = np.convolve(counts, kernel / kernel.sum(), "same") / (len(values) * step)
        return cls(edges, heights, float(middle), width)

    def log(self, values: Floats) -> Floats:
        """Log density of values."""
        place = np.searchsorted(self.edges, values, "right") - 1
        is_inside = (place >= 0) & (place < len(self.heights))
        near = np.where(is_inside, self.heights[place.clip(0, len(self.heights) - 1)], 0.0)
        tail = 1 / (math.pi * self.width * (1 + ((values - self.middle) / self.width) ** 2))
        return np.asarray(np.log(0.95 * near + 0.05 * tail))


@dataclass(frozen=True, slots=True)
class _Data:
    """Residuals as tensors, with what every source of errors needs of them."""

    standard: Tensor  # [n]
    by_factor: Tensor  # residuals were the value divided by each factor, [F, n]
    distance: Tensor  # from the prediction, [n]
    log_scale: Tensor
    scale: Tensor
    log_marginal: Tensor

    @classmethod
    def of(cls, found: Residuals, density: _Marginal) -> _Data:
        # a value of 0 is the same times any factor, and speaks for none
        usable = np.where(found.values == 0, np.inf, found.values)
        by_factor = [(usable / factor - found.predicted) / found.scales for factor in FACTORS]
        return cls(
            torch.from_numpy(found.standard),
            torch.from_numpy(np.stack(by_factor).clip(-1e9, 1e9)),
            torch.from_numpy(found.values - found.predicted),
            torch.from_numpy(np.log(found.scales)),
            torch.from_numpy(found.scales),
            torch.from_numpy(density.log(found.values)),
        )

    def part(self, rows: slice) -> _Data:
        """Some of the examples."""
        return _Data(*(getattr(self, name)[..., rows] for name in self.__slots__))


# place in the vector of parameters: middle, log scale and tail of either side, log of what is far, then log rates
_MIDDLE, _LEFT, _RIGHT, _LEFT_TAIL, _RIGHT_TAIL, _FAR, _RATES = range(7)


@dataclass(frozen=True, slots=True)
class _World:
    """Some sources of errors beside the values that are right."""

    names: tuple[str, ...]
    parameters: Tensor

    def log_parts(self, data: _Data) -> Tensor:
        """Log of the joint density of the value and of being right (first) or of each source, ``[1 + K, n]``."""
        at = self.parameters
        rates = torch.cat([at.new_zeros(1), at[_RATES:]]).log_softmax(0)
        parts = [_log_student(at, data.standard) - data.log_scale]
        parts += [_log_source(at, data, name) for name in self.names]
        return torch.stack(parts) + rates[:, None]

    def log_density(self, data: _Data) -> Tensor:
        """Log density of each value, ``[n]``."""
        return self.log_parts(data).logsumexp(0)


def _log_student(at: Tensor, standard: Tensor) -> Tensor:
    """Log density with a Student tail of its own on either side, continuous in between."""
    shifted = standard - at[_MIDDLE]
    freedom = _freedom(at)
    scales = torch.stack([at[_LEFT], at[_RIGHT]]).exp()
    mass = scales * (0.5 * (freedom * math.pi).log() + (freedom / 2).lgamma() - ((freedom + 1) / 2).lgamma()).exp()
    side = (shifted > 0).long()
    own, reach = freedom[side], shifted / scales[side]
    return -(own + 1) / 2 * torch.log1p(reach**2 / own) - (0.5 * mass.sum()).log()


def _freedom(at: Tensor) -> Tensor:
    least, most = _FREEDOM
    return least + (most - least) * torch.stack([at[_LEFT_TAIL], at[_RIGHT_TAIL]]).sigmoid()


def _log_source(at: Tensor, data: _Data, name: str) -> Tensor:
    """Log density of values by one source of errors, ``[n]``."""
    if name == ANOTHER:
        return data.log_marginal
    if name == FAR:  # a Student tail of three degrees, and nothing in the middle: what is near is not far
        own = 0.5 * (at[_LEFT].exp() + at[_RIGHT].exp())
        wide = at[_FAR].exp() + _FARTHER * own * data.scale
        reach = data.distance / wide
        near = (reach**2).clamp_min(1e-12).log() - 3 * torch.log1p(reach**2 / 3)
        return near - wide.log() + math.log(8 / (3 * math.sqrt(3) * math.pi))
    place = _FACTOR_NAMES.index(name)
    return _log_student(at, data.by_factor[place]) - data.log_scale - math.log(abs(FACTORS[place]))


def _name_factor(factor: float) -> str:
    if factor == -1:
        return "the sign is lost"
    return f"{factor:g} times too large" if factor > 1 else f"{1 / factor:g} times too small"


_FACTOR_NAMES = tuple(_name_factor(factor) for factor in FACTORS)


def _fit(data: _Data, names: Sequence[str]) -> Tensor:
    """Fit a world to residuals; beside sources of errors from light tails, so that these need not stand for errors."""
    start = torch.zeros(_RATES + len(names), dtype=torch.float64)
    middle = data.standard.abs().median().clamp_min(1e-9)
    start[_LEFT] = start[_RIGHT] = (1.3 * middle).log()
    start[_LEFT_TAIL] = start[_RIGHT_TAIL] = -0.5 if names else -2.0  # 12 degrees, or 5
    start[_FAR] = (8 * middle * data.scale.median()).log()
    start[_RATES:] = math.log(0.05)
    return _climb(data, tuple(names), start)


def _climb(data: _Data, names: tuple[str, ...], start: Tensor) -> Tensor:
    """Maximise the likelihood, with mild beliefs about every parameter that matter where examples are few."""
    free = start.clone().requires_grad_(True)
    optimizer = torch.optim.LBFGS([free], max_iter=_STEPS, tolerance_change=1e-6, line_search_fn="strong_wolfe")
    count = len(data.standard)

    def loss() -> Tensor:
        likely = _World(names, free).log_density(data).sum()
        sides = ((free[_LEFT] - free[_RIGHT]) / 0.5) ** 2 + ((free[_LEFT_TAIL] - free[_RIGHT_TAIL]) / 1.5) ** 2
        usual = (free[_MIDDLE] / 0.5) ** 2 + ((free[_LEFT_TAIL] + 2) / 2) ** 2 + ((free[_FAR] - start[_FAR]) / 1.5) ** 2
        rates = ((free[_RATES:] - math.log(0.03)) / 1.5).square().sum()
        found: Tensor = (0.5 * (sides + usual + rates) - likely) / count
        return found

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    with torch.enable_grad():
        optimizer.step(closure)
    found = free.detach()
    return found if bool(torch.isfinite(found).all()) else start


def _held_out(data: _Data, halves: Sequence[tuple[slice, slice]], names: Sequence[str]) -> Tensor:
    """Log density of every value by a fit to the other half, ``[n]``."""
    found = torch.empty_like(data.standard)
    for fitted, looked_at in halves:
        world = _World(tuple(names), _fit(data.part(fitted), names))
        found[looked_at] = world.log_density(data.part(looked_at))
    return found


def _promising(data: _Data, world: _World) -> list[str]:
    """Sources that are worth a fit: those that explain some values better than the world does.

    The general ones are tried at first in any case: heavy tails may stand for them.
    """
    now, names = world.log_density(data), list[str]()
    for name in (ANOTHER, FAR, *_FACTOR_NAMES):
        if name in world.names:
            continue
        better = _log_source(world.parameters, data, name) - now
        gains = [float(torch.log1p(rate * better.clamp_max(50).expm1()).sum()) for rate in (0.003, 0.01, 0.03, 0.1)]
        if max(gains) > 0.5 * _LEAST_GAIN or (not world.names and name in (ANOTHER, FAR)):
            names.append(name)
    return names


def _judge(world: _World, learnt: _Data, data: _Data, gains: tuple[float, ...]) -> ValueNoise:
    """Probabilities of all values, with the ends of their ranges."""
    parts = world.log_parts(data)
    odds = _odds(parts, 1.0)
    low, high = _range(world, learnt) if world.names else (0.0, 0.0)
    best = parts[1:].argmax(0) if world.names else torch.full_like(odds, -1, dtype=torch.int64)
    at = world.parameters
    with torch.no_grad():
        # without sources the order is that of the distance in deviations, whatever the side: one-sided errors make the
        # tail of their side heavy, and would hide in it
        far = -2.5 * torch.log1p(data.standard.square() / 4)
        if world.names:
            # what no source explains is suspicious too, by a rare one that spreads evenly around the prediction
            other = math.log(_UNKNOWN) - far
            p, score = odds.sigmoid(), (-torch.logaddexp(odds, other)).sigmoid()
            ends = [_odds(parts, scale).sigmoid() for scale in (low, high)]
        else:
            p, score = torch.zeros_like(odds), far.exp()
            ends = [p, _unnoticed(world, learnt, data)]
        side = (data.standard > at[_MIDDLE]).long()
        freedom, scales = _freedom(at), torch.stack([at[_LEFT], at[_RIGHT]]).exp()
        reach = (data.standard - at[_MIDDLE]) / scales[side]
        trust = (1 - p) * (freedom[side] + 1) / (freedom[side] + reach**2)
    rates = parts.new_zeros(0) if not world.names else torch.cat([at.new_zeros(1), at[_RATES:]]).softmax(0)[1:]
    return ValueNoise(
        p.numpy(),
        torch.minimum(p, ends[0]).numpy(),
        torch.maximum(p, ends[1]).numpy(),
        score.numpy(),
        best.numpy(),
        world.names,
        tuple(rates.tolist()),
        gains,
        trust.clamp(1e-4, 2.0).numpy(),
        _quantiles(at),
        (float(freedom[0]), float(freedom[1])),
    )


def _odds(parts: Tensor, scale: float) -> Tensor:
    """Log odds that a value is wrong, were errors so many times as frequent; all -inf without any source."""
    if len(parts) < 2:
        return torch.full_like(parts[0], -math.inf)
    return parts[1:].logsumexp(0) - parts[0] + math.log(scale)


def _range(world: _World, learnt: _Data) -> tuple[float, float]:
    """How many times as rare or as frequent errors may be, by the likelihood; the shape of the densities is kept."""
    parts = world.log_parts(learnt)
    wrong, right = parts[1:].logsumexp(0), parts[0]
    share = float(torch.cat([world.parameters.new_zeros(1), world.parameters[_RATES:]]).softmax(0)[1:].sum())
    likely = []
    for scale in _SCALES:
        rate = min(scale * share / (1 - share + scale * share), 0.999)
        mixed = torch.logaddexp(right + math.log((1 - rate) / (1 - share)), wrong + math.log(rate / share))
        likely.append(float(mixed.sum()))
    possible = _SCALES[np.array(likely) >= max(likely) - _RANGE]
    return float(min(possible.min(), 1.0)), float(max(possible.max(), 1.0))


def _unnoticed(world: _World, learnt: _Data, data: _Data) -> Tensor:
    """The probability of an error where there are as many as could go unnoticed, from either general source."""
    found = torch.zeros_like(data.standard)
    for name in (ANOTHER, FAR):
        better = _log_source(world.parameters, learnt, name) - world.log_density(learnt)
        rate = 0.0
        for tried in np.exp(np.linspace(math.log(1e-5), math.log(0.5), 60)):
            if float(torch.log1p(tried * better.clamp_max(300).expm1()).sum()) < -_RANGE:
                break
            rate = float(tried)
        if rate:
            odds = _log_source(world.parameters, data, name) - world.log_density(data) + math.log(rate / (1 - rate))
            found = torch.maximum(found, odds.sigmoid())
    return found


def _quantiles(at: Tensor) -> tuple[float, float, float]:
    """5%, 95% and half the width of the middle 68% of right values, by summing the density up."""
    grid = torch.sinh(torch.linspace(-7, 7, 4001, dtype=torch.float64)) * at[[_LEFT, _RIGHT]].exp().max() + at[_MIDDLE]
    density = _log_student(at, grid).exp()
    total = torch.cat([at.new_zeros(1), torch.cumulative_trapezoid(density, grid)])
    low, left, right, high = np.interp([0.05, 0.1587, 0.8413, 0.95], (total / total[-1]).numpy(), grid.numpy())
    return float(low), float(high), float(right - left) / 2
