"""How likely each label is wrong, from features alone; the data must support each assumption about the noise.

Cross-fitted heads are pooled by the likelihood of labels that they have not seen (:mod:`sgoif.scanning.pool`). Which
class is given for which is counted among their surest predictions and shrunk (:mod:`sgoif.evidence.counts`), towards
errors spread evenly or towards classes that the heads confuse, whichever makes unseen labels likelier. What was counted
is believed as far as it does so: a pattern of classes only if it beats errors spread evenly, and as many errors as
labels and counts agree on. Heads are fitted again through a pattern, or through many
errors; that is given up where a class would vanish.

A weak head is wrong where it is unsure, and noise is everywhere. So the share of labels that the very surest
predictions contradict is nearly all noise, and tells how often the heads are right about the true class.

Where there are many examples, all of this is learnt from a sample, and the others are judged by it block by block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sgoif.evidence import hash_ids
from sgoif.evidence.counts import (
    count_sure,
    limit_leaks,
    recover_true,
    scale_errors,
    shrink_counts,
    spread_errors,
)
from sgoif.scanning import Progress, no_progress
from sgoif.scanning.head import FeatureHead, Fold, Head, make_folds
from sgoif.scanning.linear import LinearHead
from sgoif.scanning.neighbours import NeighbourHead
from sgoif.scanning.pool import Pool, blocks, fit_pool
from sgoif.scanning.tabular import MOST_COLUMNS, TreeHead, make_fourier_head
from sgoif.types import Floats, Ints

__all__ = ["LabelEstimate", "estimate_features", "estimate_labels", "make_heads"]


_Shrink = Callable[[Ints], Floats]

_SAMPLE, _LEAST_SAMPLED = 200_000, 20  # examples that are learnt from, and of each class at least
_JUDGED = 20_000  # others that are judged at once: a head may make hundreds of features of each
_COUNTED = 3  # times that the noise is counted on the first fits
_REFITS = 2
# A class may leak so much of what it keeps to one other while heads are fitted through it. Two classes that are each
# given for the other nearly every second time cannot be told apart, and one vanishes: then the leaks are halved.
_MOST_LEAK = (0.5, 0.25)
_SUREST, _LEAST_SUREST = 0.03, 100  # share and number of predictions whose labels are wrong by noise alone
# what a pattern has to gain: standard errors, nats, and the share of what it could, more where it is of near classes
_SURE_GAIN, _LEAST_GAIN, _LEAST_SHARE, _LEAST_NEAR_SHARE, _CLEAR_SHARE = 3.0, 5.0, 0.1, 0.2, 0.5
_FAR = 0.1  # of the errors of a class that go to any other alike, where the others go to near ones
_MANY = 0.05  # wrong labels among the surest predictions, from which on heads are fitted again without a pattern too
_SURE_SCALE = 2.0  # standard errors of the likelihood
_SCALE_STEP, _LEAST_SCALE = 1.4, 0.02  # of the number of errors that is believed, in units of what was counted
_VANISHED = 0.5  # of the examples that a class is believed to have: a refit that leaves fewer is given up
_TOP = 3


@dataclass(frozen=True, slots=True)
class LabelEstimate:
    """What the features say of labels; one entry per example."""

    p: Floats  # probability that the label is wrong
    p_low: Floats  # the same where the noise is as weak as its counts allow, and as strong
    p_high: Floats
    suggested: NDArray[np.int64]  # the most probable other classes, [N, 3]; -1 for none
    p_suggested: Floats  # that they are the true class, [N, 3]; 0 for none
    sampled: NDArray[np.int64]  # rows that it was learnt from
    predicted: NDArray[np.int64]  # of those: the class that heads which took labels as they are find most probable
    expected_accuracy: float  # how often the heads are right about the true class
    transition: Floats  # P(given | true), [C, C]
    num_sure: int  # sure predictions that the noise was counted among
    num_sure_wrong: int  # those of them with another label
    is_refitted: bool
    exponents: dict[str, float]  # of the heads

    def at_classes(self, classes: NDArray[np.int64], num_classes: int) -> LabelEstimate:
        """The same where the classes that were judged are some of all."""
        if len(classes) == num_classes:
            return self
        transition = np.eye(num_classes)
        transition[np.ix_(classes, classes)] = self.transition
        suggested = np.where(self.suggested >= 0, classes[self.suggested], -1)
        return replace(self, transition=transition, suggested=suggested, predicted=classes[self.predicted])

    def facts(self) -> dict[str, Any]:
        """What a run's information keeps."""
        return {
            "heads": self.exponents,
            "num_sure": self.num_sure,
            "num_sure_wrong": self.num_sure_wrong,
            "is_refitted": self.is_refitted,
            "expected_accuracy": self.expected_accuracy,
        }


def make_heads(inputs: Tensor, num_classes: int, folds: Sequence[Fold]) -> list[FeatureHead]:
    """The heads for standardised features: tables have two more, which may bend."""
    heads: list[FeatureHead] = [LinearHead(inputs, num_classes, folds), NeighbourHead(inputs, num_classes, folds)]
    if inputs.shape[1] <= MOST_COLUMNS:
        heads += [make_fourier_head(inputs, num_classes, folds), TreeHead(inputs, num_classes, folds)]
    return heads


def estimate_features(
    inputs: Tensor,
    ids: NDArray[Any],
    given: NDArray[np.int64],
    num_classes: int,
    *,
    progress: Progress = no_progress,
) -> LabelEstimate:
    """Estimate how likely each label is wrong from standardised features.

    Args:
        inputs: ``[N, D]``.
        ids: by whose hashes examples are split and sampled, ``[N]``.
        given: labels, ``[N]``; every class has one.
        num_classes: ``C``.
        progress: called with the stage, what is done, and the total.
    """
    rows = _sample_rows(ids, given)
    is_all = len(rows) == len(given)
    learnt_from = inputs if is_all else inputs[torch.from_numpy(rows)]
    heads = make_heads(learnt_from, num_classes, make_folds(ids[rows], given[rows]))
    learnt = _learn(heads, given[rows], num_classes, progress)
    found = replace(learnt.read(), sampled=rows)
    if is_all:
        return found
    predictors = [head.predictor(is_refitted=learnt.is_refitted) for head in heads]
    del heads, learnt_from
    others = np.setdiff1d(np.arange(len(given)), rows, assume_unique=True)
    columns = {}
    for name in ("p", "p_low", "p_high", "suggested", "p_suggested"):
        values = getattr(found, name)
        columns[name] = np.zeros((len(given), *values.shape[1:]), values.dtype)
        columns[name][rows] = values
    for start in range(0, len(others), _JUDGED):
        some = others[start : start + _JUDGED]
        mine = inputs[torch.from_numpy(some)]
        logs, labels = [predict(mine) for predict in predictors], torch.from_numpy(given[some])
        for name, values in zip(columns, learnt.judge(logs, labels), strict=True):
            columns[name][some] = values
        progress("judging", start + len(some), len(others))
    return replace(found, **columns)  # type: ignore[arg-type]


def estimate_labels(
    heads: Sequence[Head], given: NDArray[np.int64], num_classes: int, *, progress: Progress = no_progress
) -> LabelEstimate:
    """Estimate how likely each label is wrong.

    Args:
        heads: cross-fitted classifiers of the same examples.
        given: labels, ``[N]``.
        num_classes: ``C``.
        progress: called with the stage, what is done, and the total.
    """
    return _learn(heads, given, num_classes, progress).read()


def _sample_rows(ids: NDArray[Any], given: Ints) -> Ints:
    """Which examples are learnt from, ascending: all, or by the hash of ids as many of each class as its share."""
    count = len(given)
    if count <= _SAMPLE:
        return np.arange(count)
    order = np.lexsort((hash_ids(ids), given))
    sizes = np.bincount(given)
    rank = np.arange(count) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    wanted = np.maximum(np.ceil(sizes * _SAMPLE / count).astype(np.int64), _LEAST_SAMPLED)
    return np.sort(order[rank < np.repeat(wanted, sizes)])


def _learn(heads: Sequence[Head], given: Ints, num_classes: int, progress: Progress) -> _Learnt:
    """Fit the heads, count the noise, and settle what is believed of it."""
    labels, stages, done = torch.from_numpy(given), len(heads) * (1 + _REFITS), 0

    def tell(log_p: Tensor) -> Tensor:
        nonlocal done
        done = min(done + 1, stages)  # more where a class vanished, fewer where nothing is fitted again
        progress("fitting", done, stages)
        return log_p

    base = fit_pool([tell(head.fit(labels)) for head in heads], labels)
    plain = _World(base, np.eye(num_classes), labels, is_recovered=True)
    predicted = plain.predict_all()[0].numpy()
    counts = plain.count()
    for _ in range(_COUNTED - 1):
        counts = _World(base, shrink_counts(counts), labels).count()
    found, is_refitted = _through(base.logs, base.exponents, spread_errors(counts), labels), False
    near = _find_near(plain) if num_classes > 2 else None
    believed, shrink = _find_pattern(base, counts, near, found)
    first = _World(base, believed.transition, labels)
    if shrink is not None or _rate(counts) > _MANY:
        recounts = [spread_errors] if shrink is None else [shrink] * _REFITS
        for most in _MOST_LEAK:
            last, last_counts = _refit(heads, first, believed.pool.exponents, most, recounts, tell)
            if (last.class_sizes() >= _VANISHED * first.class_sizes()).all():
                found, counts, is_refitted = last, last_counts, True
                break
        else:
            found = first
    progress("fitting", stages, stages)
    names = [head.name for head in heads]
    world = _scale(found, counts, is_refitted=is_refitted)
    return _Learnt(world, counts, predicted, plain.expected_accuracy(), is_refitted, names)


def _through(
    logs: Sequence[Tensor], exponents: Tensor, transition: Floats, given: Tensor, *, is_tied: bool = False
) -> _World:
    """Pool predictions as those of the true class, of which the labels are seen through a transition."""
    pool = fit_pool(logs, given, transition, exponents, is_tied=is_tied)
    return _World(pool, transition, given, is_recovered=True)


def _find_near(world: _World) -> Floats:
    """Which other class is given for each, if errors go where predictions do, ``[C, C]``.

    Squared: the nearest class takes more of the errors than of the predictions. Some errors go to any other class, lest
    those that go far were thought impossible.
    """
    size = world.pool.num_classes
    total = torch.zeros(size, size, dtype=torch.float64)
    for some in world.blocks():
        total.index_add_(0, world.given[some], world.true(some).double())
    shares = (total / total.sum(1, keepdim=True)).square().fill_diagonal_(0)
    near = (1 - _FAR) * shares / shares.sum(1, keepdim=True).clamp_min(1e-300) + _FAR / (size - 1)
    return near.fill_diagonal_(0).numpy()


def _find_pattern(base: Pool, counts: Ints, near: Floats | None, even: _World) -> tuple[_World, _Shrink | None]:
    """The pattern of classes that makes the labels likeliest, and how its counts were shrunk; or errors spread evenly.

    Hard examples are counted as errors, so that a clean set is likelier under any pattern than under as many errors
    spread evenly. A pattern must gain over as many of these as suit the labels best, too, unless its errors go to one
    class each: hard examples do not. Heads that confuse classes take hard examples for near errors: these have to gain
    more, also over the pattern that was counted.
    """
    candidates: list[tuple[_Shrink, float]] = [(partial(shrink_counts, slack=0.0), _LEAST_SHARE)]
    if near is not None:
        candidates.append((partial(shrink_counts, slack=0.0, near=near), _LEAST_NEAR_SHARE))
    best: tuple[_World, _Shrink | None] = even, None
    fewer: _World | None = None
    for shrink, least in candidates:
        found = _through(base.logs, base.exponents, shrink(counts), even.given)
        if not (_is_likelier(found, even, least) and _is_likelier(found, best[0])):
            continue
        if not _is_likelier(found, even, _CLEAR_SHARE):
            fewer = fewer or _scale(even, counts, is_refitted=False)
            if not _is_likelier(_scale(found, counts, is_refitted=False), fewer):
                continue
        best = found, shrink
    return best


def _is_likelier(pattern: _World, other: _World, least: float = 0.0) -> bool:
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
    first: _World,
    exponents: Tensor,
    most: float,
    recounts: Sequence[_Shrink],
    tell: Callable[[Tensor], Tensor],
) -> tuple[_World, Ints]:
    """Fit all heads anew, some times, through what was counted before; a class may leak so much at most.

    Heads that are fitted again have seen a little of each label: neighbours vote by what they are believed to be, and
    that is judged by fits that the label was part of. So what they count for is learnt before, and only sharpened here.
    """
    world, given = first, first.given
    counts = np.zeros(0, np.int64)
    for number, recount in enumerate(recounts):
        through = limit_leaks(world.transition, most)
        noise = torch.from_numpy(through).float()
        logs = [tell(head.refit(given, noise, world.posterior, restart=number == 0)) for head in heads]
        counts = _through(logs, exponents, through, given, is_tied=True).count()
        # few counts may no longer show a pattern that labels were likelier with
        worlds = [_through(logs, exponents, one, given, is_tied=True) for one in (recount(counts), world.transition)]
        world = max(worlds, key=_World.total)
    return world, counts


def _scale(world: _World, counts: Ints, *, is_refitted: bool) -> _World:
    """Believe in as many errors as all labels and the counts agree on.

    Hard examples among the surest predictions are counted as errors, and make every other label less likely. The counts
    stand unless the labels contradict them beyond chance: where classes are easily told apart, labels do not care.
    After a refit the exponents are kept, see :func:`_refit`: with fewer errors they would leave the head that has seen
    most of the labels.
    """
    if not world.is_recovered:
        return world
    wrong, before = max(int(counts.sum() - np.trace(counts)), 0.5), world.log_likelihood()

    def at(scale: float) -> tuple[float, _World]:
        transition = scale_errors(world.transition, scale)
        if is_refitted:
            found = _World(world.pool, transition, world.given, is_recovered=True)
        else:
            found = _through(world.pool.logs, world.pool.exponents, transition, world.given)
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


class _World:
    """Pooled predictions, and which class is given for which."""

    def __init__(self, pool: Pool, transition: Floats, given: Tensor, *, is_recovered: bool = False) -> None:
        self.pool, self.transition, self.given = pool, transition, given
        self.is_recovered = is_recovered  # the pool predicts the true class
        self._noise = torch.from_numpy(transition).float()

    def true(self, rows: slice | Tensor) -> Tensor:
        """``P(true | input)`` of some examples, ``[n, C]``."""
        found = self.pool.predict(rows)
        if self.is_recovered:
            return found
        return torch.from_numpy(recover_true(found.numpy(), self._noise.numpy()))

    def posterior(self, rows: slice | Tensor) -> Tensor:
        """``P(true | input, given)`` of some examples, ``[n, C]``."""
        return _weigh(self.true(rows), self._noise, self.given[rows])

    def log_likelihood(self) -> Tensor:
        """Log probability of every given label, ``[N]``."""
        parts = [(self.true(some) * self._noise[:, self.given[some]].mT).sum(1) for some in self.blocks()]
        return torch.cat(parts).double().clamp_min(1e-12).log()

    def total(self) -> float:
        """Log probability of all given labels."""
        return float(self.log_likelihood().sum())

    def predict_all(self) -> tuple[Tensor, Tensor]:
        """The most probable true class of every example, and its probability, ``[N]`` both."""
        found = [self.true(some).max(1) for some in self.blocks()]
        return torch.cat([part.indices for part in found]), torch.cat([part.values for part in found])

    def count(self) -> Ints:
        """Given labels of the surest predictions, ``[C, C]``."""
        predicted, confidence = (values.numpy() for values in self.predict_all())
        return count_sure(predicted, confidence, self.given.numpy(), self.pool.num_classes)

    def expected_accuracy(self) -> float:
        """How often the most probable class is the true one: agreement with the labels, by that of the very surest."""
        predicted, confidence = self.predict_all()
        agrees = (predicted == self.given).double()
        surest = confidence.topk(min(max(_LEAST_SUREST, int(_SUREST * len(agrees))), len(agrees))).indices
        return min(1.0, float(agrees.mean()) / max(float(agrees[surest].mean()), 1e-12))

    def class_sizes(self) -> Floats:
        """How many examples each class is believed to have, ``[C]``."""
        return torch.stack([self.posterior(some).double().sum(0) for some in self.blocks()]).sum(0).numpy()

    def blocks(self) -> list[slice]:
        """Examples that are worked on at once."""
        return list(blocks(len(self.given), self.pool.num_classes))


def _weigh(true: Tensor, noise: Tensor, given: Tensor) -> Tensor:
    """``P(true | input, given)`` from ``P(true | input)``, ``[n, C]`` both."""
    joint = true * noise[:, given].mT
    return joint / joint.sum(1, keepdim=True).clamp_min(1e-12)


@dataclass(frozen=True, slots=True)
class _Learnt:
    """What was learnt from some examples, for them and others."""

    world: _World
    counts: Ints
    predicted: NDArray[np.int64]
    expected_accuracy: float
    is_refitted: bool
    names: Sequence[str]  # of the heads

    def read(self) -> LabelEstimate:
        """What it says of the examples that it was learnt from."""
        world, num_sure = self.world, int(self.counts.sum())
        parts = [self._judge(world, some) for some in world.blocks()]
        p, low, high, suggested, probable = (np.concatenate(values) for values in zip(*parts, strict=True))
        exponents = zip(self.names, world.pool.exponents, strict=True)
        return LabelEstimate(
            p=p,
            p_low=low,
            p_high=high,
            suggested=suggested,
            p_suggested=probable,
            sampled=np.arange(len(p)),
            predicted=self.predicted,
            expected_accuracy=self.expected_accuracy,
            transition=world.transition,
            num_sure=num_sure,
            num_sure_wrong=self.num_wrong,
            is_refitted=self.is_refitted,
            exponents={name: round(float(a), 3) for name, a in exponents},
        )

    def judge(self, logs: Sequence[Tensor], given: Tensor) -> tuple[Floats, Floats, Floats, Ints, Floats]:
        """Judge other examples by the log probabilities that the same heads give them, ``[n, C]`` each."""
        world = self.world
        pool = Pool(logs, world.pool.exponents)
        return self._judge(_World(pool, world.transition, given, is_recovered=world.is_recovered), slice(0, len(given)))

    @property
    def num_wrong(self) -> int:
        """Labels of sure predictions that are another class."""
        return int(self.counts.sum() - np.trace(self.counts))

    def _judge(self, world: _World, some: slice) -> tuple[Floats, Floats, Floats, Ints, Floats]:
        """``p_mislabeled`` of some examples, its two ends, and the most probable other classes with theirs."""
        own, top, found = world.given[some, None], min(_TOP, world.pool.num_classes - 1), []
        scales = [value / max(self.num_wrong, 0.5) for value in _count_range(self.num_wrong)]
        true = world.true(some)
        for scale in (None, *scales):
            noise = world.transition if scale is None else scale_errors(world.transition, scale)
            posterior = _weigh(true, torch.from_numpy(noise).float(), own[:, 0])
            found.append((1 - posterior.gather(1, own)[:, 0]).double().clamp(0, 1).numpy())
            if scale is None:
                others = posterior.scatter(1, own, -1.0).topk(top, 1)
        missing = ((0, 0), (0, _TOP - top))
        suggested = np.pad(others.indices.numpy(), missing, constant_values=-1)
        probable = np.pad(others.values.double().clamp(0, 1).numpy(), missing)
        return found[0], np.minimum(found[0], found[1]), np.maximum(found[0], found[2]), suggested, probable


def _count_range(count: int) -> tuple[float, float]:
    """A 90% range of the mean of a Poisson count, by the approximation of Wilson and Hilferty."""
    low = count * max(1 - 1 / (9 * count) - 1.645 / (3 * math.sqrt(count)), 0.0) ** 3 if count > 0 else 0.0
    more = count + 1
    return low, more * (1 - 1 / (9 * more) + 1.645 / (3 * math.sqrt(more))) ** 3
