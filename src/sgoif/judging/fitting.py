"""The noise of labels, fitted to predictions that have not seen them; each assumption must make labels likelier.

Which class is given for which is counted among the surest predictions and shrunk (:mod:`sgoif.evidence.counts`),
towards errors spread evenly or towards classes that the heads confuse, whichever makes unseen labels likelier. What was
counted is believed as far as it does so: a pattern of classes only if it beats errors spread evenly, as many errors as
labels and counts agree on, and any only if weak heads do not explain the labels as well
(:mod:`sgoif.judging.weakness`). Heads are fitted again through a pattern, or through many errors; that is given up
where a class would vanish.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sgoif.evidence.counts import limit_leaks, scale_errors, shrink_counts, spread_errors
from sgoif.judging.heads import Head
from sgoif.judging.noise import NoiseModel
from sgoif.judging.pool import Pool, fit_pool
from sgoif.judging.weakness import Belief, settle
from sgoif.types import Floats, Ints

__all__ = ["FittedNoise", "OnFit", "fit_noise", "fit_through"]

OnFit = Callable[[int, int], None]  # fits that are done, and how many there are
_Shrink = Callable[[Ints], Floats]

_COUNTED = 3  # times that the noise is counted on the first fits
_REFITS = 2
# A class may leak so much of what it keeps to one other while heads are fitted through it. Two classes that are each
# given for the other nearly every second time cannot be told apart, and one vanishes: then the leaks are halved.
_MOST_LEAK = (0.5, 0.25)
# what a pattern has to gain: standard errors, nats, and the share of what it could, more where it is of near classes
_SURE_GAIN, _LEAST_GAIN, _LEAST_SHARE, _LEAST_NEAR_SHARE, _CLEAR_SHARE = 3.0, 5.0, 0.1, 0.2, 0.5
_FAR = 0.1  # of the errors of a class that go to any other alike, where the others go to near ones
_MANY = 0.05  # wrong labels among the surest predictions, from which on heads are fitted again without a pattern too
_SURE_SCALE = 2.0  # standard errors of the likelihood
_SCALE_STEP, _LEAST_SCALE = 1.4, 0.02  # of the number of errors that is believed, in units of what was counted
_VANISHED = 0.5  # of the examples that a class is believed to have: a refit that leaves fewer is given up


@dataclass(frozen=True, slots=True)
class FittedNoise:
    """What was learnt of the noise from some examples."""

    belief: Belief
    counts: Ints  # of given classes (columns) among the surest predictions of each class (rows), [C, C]
    predicted: NDArray[np.int64]  # the class that heads which took labels as they are find most probable, [N]
    expected_accuracy: float  # how often they are right about the true class
    is_refitted: bool  # whether what is believed reads the heads' last fit, and not their first
    names: Sequence[str]  # of the heads

    @property
    def num_wrong(self) -> int:
        """Sure predictions whose label is another class."""
        return int(self.counts.sum() - np.trace(self.counts))


def fit_noise(heads: Sequence[Head], given: Ints, num_classes: int, on_fit: OnFit | None = None) -> FittedNoise:
    """Fit the heads, count the noise, and settle what is believed of it.

    Args:
        heads: cross-fitted classifiers of the same examples.
        given: labels, ``[N]``.
        num_classes: ``C``.
        on_fit: called after each fit of a head.
    """
    labels, stages, done = torch.from_numpy(given), len(heads) * (1 + _REFITS), 0

    def note(log_p: Tensor) -> Tensor:
        nonlocal done
        done = min(done + 1, stages)  # more where a class vanished, fewer where nothing is fitted again
        if on_fit is not None:
            on_fit(done, stages)
        return log_p

    base = fit_pool([note(head.fit(labels)) for head in heads], labels)
    plain = NoiseModel(base, np.eye(num_classes), labels, is_recovered=True)
    predicted = plain.predict_all()[0].numpy()
    counts = plain.count()
    for _ in range(_COUNTED - 1):
        counts = NoiseModel(base, shrink_counts(counts), labels).count()
    found, is_refitted = fit_through(base.logs, base.exponents, spread_errors(counts), labels), False
    near = _find_near(plain) if num_classes > 2 else None
    believed, shrink = _find_pattern(base, counts, near, found)
    first = NoiseModel(base, believed.transition, labels)
    if shrink is not None or _rate(counts) > _MANY:
        recounts = [spread_errors] if shrink is None else [shrink] * _REFITS
        for most in _MOST_LEAK:
            last, last_counts = _refit(heads, first, believed.pool.exponents, most, recounts, note)
            if (last.class_sizes() >= _VANISHED * first.class_sizes()).all():
                found, counts, is_refitted = last, last_counts, True
                break
        else:
            found = first
    if on_fit is not None:
        on_fit(stages, stages)
    belief = settle(base, _scale(found, counts, is_refitted=is_refitted), near)
    accuracy = plain.expected_accuracy()
    if belief.kind != "counted":  # the surest predictions are contradicted by weakness, too
        accuracy = min(1.0, float((predicted == given).mean()) / (1 - belief.rate))
    names = [head.name for head in heads]
    return FittedNoise(belief, counts, predicted, accuracy, is_refitted and belief.kind != "spread", names)


def fit_through(
    logs: Sequence[Tensor], exponents: Tensor, transition: Floats, given: Tensor, *, is_tied: bool = False
) -> NoiseModel:
    """Pool predictions as those of the true class, of which the labels are seen through a transition."""
    pool = fit_pool(logs, given, transition, exponents, is_tied=is_tied)
    return NoiseModel(pool, transition, given, is_recovered=True)


def _find_near(world: NoiseModel) -> Floats:
    """Which other class is given for each, if errors go where predictions do, ``[C, C]``.

    Squared: the nearest class takes more of the errors than of the predictions. Some errors go to any other class, lest
    those that go far were thought impossible.
    """
    size = world.pool.num_classes
    total = torch.zeros(size, size, dtype=torch.float64)
    for some in world.blocks():
        total.index_add_(0, world.given[some], world.true(some).double())
    shares = (total / total.sum(1, keepdim=True).clamp_min(1e-300)).square().fill_diagonal_(0)  # no label, no share
    near = (1 - _FAR) * shares / shares.sum(1, keepdim=True).clamp_min(1e-300) + _FAR / (size - 1)
    return near.fill_diagonal_(0).numpy()


def _find_pattern(base: Pool, counts: Ints, near: Floats | None, even: NoiseModel) -> tuple[NoiseModel, _Shrink | None]:
    """The pattern of classes that makes the labels likeliest, and how its counts were shrunk; or errors spread evenly.

    Hard examples are counted as errors, so that a clean set is likelier under any pattern than under as many errors
    spread evenly. A pattern must gain over as many of these as suit the labels best, too, unless its errors go to one
    class each: hard examples do not. Heads that confuse classes take hard examples for near errors: these have to gain
    more, also over the pattern that was counted.
    """
    candidates: list[tuple[_Shrink, float]] = [(partial(shrink_counts, slack=0.0), _LEAST_SHARE)]
    if near is not None:
        candidates.append((partial(shrink_counts, slack=0.0, near=near), _LEAST_NEAR_SHARE))
    best: tuple[NoiseModel, _Shrink | None] = even, None
    fewer: NoiseModel | None = None
    for shrink, least in candidates:
        found = fit_through(base.logs, base.exponents, shrink(counts), even.given)
        if not (_is_likelier(found, even, least) and _is_likelier(found, best[0])):
            continue
        if not _is_likelier(found, even, _CLEAR_SHARE):
            fewer = fewer or _scale(even, counts, is_refitted=False)
            if not _is_likelier(_scale(found, counts, is_refitted=False), fewer):
                continue
        best = found, shrink
    return best


def _is_likelier(pattern: NoiseModel, other: NoiseModel, least: float = 0.0) -> bool:
    """Whether a pattern of classes makes unseen labels likelier than another, or than errors that are spread evenly.

    The gain must be beyond chance, and the least share of what is won where all errors of a class go to one other
    instead of any: heads that confuse classes see patterns too.
    """
    gain = pattern.log_likelihood() - other.log_likelihood()
    chance = float(gain.std()) * math.sqrt(len(gain))
    most = float(1 - other.transition[0, 0]) * len(gain) * math.log(len(other.transition) - 1)
    return float(gain.sum()) > max(_SURE_GAIN * chance, _LEAST_GAIN, least * most)


def _refit(
    heads: Sequence[Head],
    first: NoiseModel,
    exponents: Tensor,
    most: float,
    recounts: Sequence[_Shrink],
    note: Callable[[Tensor], Tensor],
) -> tuple[NoiseModel, Ints]:
    """Fit all heads anew, some times, through what was counted before; a class may leak so much at most.

    Heads that are fitted again have seen a little of each label: neighbours vote by what they are believed to be, and
    that is judged by fits that the label was part of. So what they count for is learnt before, and only sharpened here.
    """
    world, given = first, first.given
    counts = np.zeros(0, np.int64)
    for number, recount in enumerate(recounts):
        through = limit_leaks(world.transition, most)
        noise = torch.from_numpy(through).float()
        logs = [note(head.refit(given, noise, world.posterior, restart=number == 0)) for head in heads]
        counts = fit_through(logs, exponents, through, given, is_tied=True).count()
        # few counts may no longer show a pattern that labels were likelier with
        worlds = [fit_through(logs, exponents, one, given, is_tied=True) for one in (recount(counts), world.transition)]
        world = max(worlds, key=NoiseModel.total)
    return world, counts


def _scale(world: NoiseModel, counts: Ints, *, is_refitted: bool) -> NoiseModel:
    """Believe in as many errors as all labels and the counts agree on.

    Hard examples among the surest predictions are counted as errors, and make every other label less likely. The counts
    stand unless the labels contradict them beyond chance: where classes are easily told apart, labels do not care.
    After a refit the exponents are kept, see :func:`_refit`: with fewer errors they would leave the head that has seen
    most of the labels.
    """
    if not world.is_recovered:
        return world
    wrong, before = max(int(counts.sum() - np.trace(counts)), 0.5), world.log_likelihood()

    def at(scale: float) -> tuple[float, NoiseModel]:
        transition = scale_errors(world.transition, scale)
        if is_refitted:
            found = NoiseModel(world.pool, transition, world.given, is_recovered=True)
        else:
            found = fit_through(world.pool.logs, world.pool.exponents, transition, world.given)
        gain = found.log_likelihood() - before
        chance = _SURE_SCALE * float(gain.std()) * math.sqrt(len(gain))
        return float(gain.sum()) - chance + wrong * (math.log(scale) - scale), found

    best, found = -wrong, world
    for step in (1 / _SCALE_STEP, _SCALE_STEP):
        scale = step
        while _LEAST_SCALE < scale < 1 / _LEAST_SCALE:
            value, other = at(scale)
            if value <= best:
                break
            best, found, scale = value, other, scale * step
    return found


def _rate(counts: Ints) -> float:
    return 1 - float(np.trace(counts)) / max(int(counts.sum()), 1)
