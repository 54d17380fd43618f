"""How likely each label is wrong, from features alone; every assumption about the noise has to earn its place.

Cross-fitted heads are pooled by the likelihood of labels that they have not seen (:mod:`sgoif.scan.pool`). Which class
is given for which is counted among their surest predictions and shrunk (:mod:`sgoif.evidence.counts`). What was counted
is believed as far as it makes unseen labels likelier: a pattern of classes only if it beats errors that are spread
evenly, and as many errors as labels and counts agree on. Heads are fitted again through a pattern, or through many
errors; that is given up where a class would vanish.

A weak head is wrong where it is unsure, and noise is everywhere. So the share of labels that the very surest
predictions contradict is nearly all noise, and tells how often the heads are right about the true class.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
from sgoif.scan.folds import Progress, no_progress
from sgoif.scan.linear import NUM_FOLDS, Fold, Head, LinearHead
from sgoif.scan.neighbours import NeighbourHead
from sgoif.scan.pool import Pool, blocks, fit_pool, recover_logs
from sgoif.scan.tabular import MOST_COLUMNS, TreeHead, make_fourier_head

__all__ = [
    "NUM_FOLDS",
    "LabelEstimate",
    "PredictedHead",
    "estimate_columns",
    "estimate_labels",
    "make_folds",
    "make_heads",
]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_REPEATED, _MOST_REPEATS = 1_000, 3  # examples that few are brought to by predicting each several times
_COUNTED = 3  # times that the noise is counted on the first fits
_REFITS = 2
# A class may leak so much of what it keeps to one other while heads are fitted through it. Two classes that are each
# given for the other nearly every second time cannot be told apart, and one vanishes: then the leaks are halved.
_MOST_LEAK = (0.5, 0.25)
_SUREST, _LEAST_SUREST = 0.03, 100  # share and number of predictions whose labels are wrong by noise alone
# what a pattern has to gain: standard errors, nats, and the share of what it could
_SURE_GAIN, _LEAST_GAIN, _LEAST_SHARE = 3.0, 5.0, 0.1
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
    is_right: NDArray[np.bool_]  # whether the label is the most probable one by heads that took labels as they are
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
        return replace(self, transition=transition, suggested=suggested)

    def facts(self) -> dict[str, Any]:
        """What a run's information keeps."""
        return {
            "heads": self.exponents,
            "num_sure": self.num_sure,
            "num_sure_wrong": self.num_sure_wrong,
            "is_refitted": self.is_refitted,
            "expected_accuracy": self.expected_accuracy,
        }


class PredictedHead:
    """Predictions that cost too much to be made again: what they say of the true class is recovered from them."""

    name = "network"

    def __init__(self, log_p: Tensor) -> None:
        self.log_p = log_p

    def fit(self, given: Tensor) -> Tensor:
        """Log probabilities of the given class, ``[N, C]``."""
        del given
        return self.log_p

    def refit(
        self, given: Tensor, transition: Tensor, posterior: Callable[[Tensor], Tensor], *, restart: bool
    ) -> Tensor:
        """Log probabilities of the true class, ``[N, C]``."""
        del given, posterior, restart
        return recover_logs(self.log_p, transition)


def estimate_columns(
    estimate: LabelEstimate, ids: NDArray[Any], given: NDArray[np.int64], is_verified: NDArray[np.bool_]
) -> dict[str, NDArray[Any]]:
    """The estimate as columns of a table, with a row per example; a label that a person has verified is not doubted."""
    columns: dict[str, NDArray[Any]] = {"id": ids, "given_label": given}
    for tail, values in (("", estimate.p), ("_low", estimate.p_low), ("_high", estimate.p_high)):
        columns[f"p_mislabeled{tail}"] = np.where(is_verified, 0.0, values)
    for place in range(_TOP):
        columns["suggested_label" + (f"_{place + 1}" if place else "")] = estimate.suggested[:, place]
    return columns


def make_folds(ids: NDArray[Any], labels: NDArray[np.int64]) -> list[Fold]:
    """Split examples into stratified folds by the hash of their ids; few examples are split several times over."""
    repeats = int(np.clip(_REPEATED // max(len(labels), 1), 1, _MOST_REPEATS))
    code, found = hash_ids(ids), []
    for repeat in range(repeats):
        mixed = (code ^ np.uint64(0x9E3779B97F4A7C15 * repeat % 2**64)) * np.uint64(0xBF58476D1CE4E5B9)
        order = np.lexsort((mixed, labels))
        fold = np.empty(len(labels), np.int64)
        fold[order] = (np.arange(len(labels)) + repeat) % NUM_FOLDS
        for number in range(NUM_FOLDS):
            test = torch.from_numpy(np.flatnonzero(fold == number))
            found.append(Fold(torch.from_numpy(np.flatnonzero(fold != number)), test))
    return found


def make_heads(inputs: Tensor, num_classes: int, folds: Sequence[Fold]) -> list[Head]:
    """The heads for standardised features: tables have two more, which may bend."""
    heads: list[Head] = [LinearHead(inputs, num_classes, folds), NeighbourHead(inputs, num_classes, folds)]
    if inputs.shape[1] <= MOST_COLUMNS:
        heads += [make_fourier_head(inputs, num_classes, folds), TreeHead(inputs, num_classes, folds)]
    return heads


def estimate_labels(
    heads: Sequence[Head], given: NDArray[np.int64], num_classes: int, *, progress: Progress = no_progress
) -> LabelEstimate:
    """Estimate how likely each label is wrong.

    Args:
        heads: cross-fitted classifiers of the same examples.
        given: labels, ``[N]``.
        num_classes: ``C``.
        progress: told how far it is.
    """
    labels, stages, done = torch.from_numpy(given), len(heads) * (1 + _REFITS), 0

    def told(log_p: Tensor) -> Tensor:
        nonlocal done
        done = min(done + 1, stages)  # more where a class vanished, fewer where nothing is fitted again
        progress("fitting", done, stages)
        return log_p

    base = fit_pool([told(head.fit(labels)) for head in heads], labels)
    plain = _World(base, np.eye(num_classes), labels, is_recovered=True)
    is_right = plain.predict_all()[0].numpy() == given
    counts = plain.count()
    for _ in range(_COUNTED - 1):
        counts = _World(base, shrink_counts(counts), labels).count()
    found, is_refitted = _through(base.logs, base.exponents, spread_errors(counts), labels), False
    pattern = _through(base.logs, base.exponents, shrink_counts(counts, slack=0.0), labels)
    has_pattern = _is_likelier(pattern, found)
    first = _World(base, (pattern if has_pattern else found).transition, labels)
    if has_pattern or _rate(counts) > _MANY:
        for most in _MOST_LEAK:
            last, last_counts = _refit(heads, first, most, has_pattern, told)
            if (last.class_sizes() >= _VANISHED * first.class_sizes()).all():
                found, counts, is_refitted = last, last_counts, True
                break
        else:
            found = first
    progress("fitting", stages, stages)
    return _read(_scale(found, counts), counts, is_right, plain.expected_accuracy(), is_refitted, heads)


def _through(logs: Sequence[Tensor], exponents: Tensor, transition: Floats, given: Tensor) -> _World:
    """Pool predictions as those of the true class, of which the labels are seen through a transition."""
    return _World(fit_pool(logs, given, transition, exponents), transition, given, is_recovered=True)


def _is_likelier(pattern: _World, even: _World) -> bool:
    """Whether a pattern of classes makes unseen labels likelier than errors that are spread evenly.

    The gain must be beyond chance, and some of what is won where all errors of a class go to one other: heads that
    confuse classes see patterns too.
    """
    gain = pattern.log_likelihood() - even.log_likelihood()
    chance = float(gain.std()) * math.sqrt(len(gain))
    most = float(1 - even.transition[0, 0]) * len(gain) * math.log(len(even.transition) - 1)
    return float(gain.sum()) > max(_SURE_GAIN * chance, _LEAST_GAIN, _LEAST_SHARE * most)


def _refit(
    heads: Sequence[Head], first: _World, most: float, has_pattern: bool, told: Callable[[Tensor], Tensor]
) -> tuple[_World, Ints]:
    """Fit all heads anew, some times, through what was counted before; a class may leak so much at most."""
    world, given, exponents = first, first.given, first.pool.exponents
    counts = np.zeros(0, np.int64)
    for number in range(_REFITS if has_pattern else 1):
        through = limit_leaks(world.transition, most)
        noise = torch.from_numpy(through).float()
        logs = [told(head.refit(given, noise, world.posterior, restart=number == 0)) for head in heads]
        refitted = _through(logs, exponents, through, given)
        exponents = refitted.pool.exponents
        counts = refitted.count()
        recounted = shrink_counts(counts, slack=0.0) if has_pattern else spread_errors(counts)
        # few counts may no longer show a pattern that labels were likelier with
        worlds = [_through(logs, exponents, transition, given) for transition in (recounted, world.transition)]
        world = max(worlds, key=lambda one: float(one.log_likelihood().sum()))
    return world, counts


def _scale(world: _World, counts: Ints) -> _World:
    """Believe in as many errors as all labels and the counts agree on.

    Hard examples among the surest predictions are counted as errors, and make every other label less likely. The counts
    stand unless the labels contradict them beyond chance: where classes are easily told apart, labels do not care.
    """
    if not world.is_recovered:
        return world
    wrong, before = max(int(counts.sum() - np.trace(counts)), 0.5), world.log_likelihood()

    def at(scale: float) -> tuple[float, _World]:
        found = _through(world.pool.logs, world.pool.exponents, scale_errors(world.transition, scale), world.given)
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

    def posterior(self, rows: slice | Tensor, noise: Tensor | None = None) -> Tensor:
        """``P(true | input, given)`` of some examples, ``[n, C]``."""
        joint = self.true(rows) * (self._noise if noise is None else noise)[:, self.given[rows]].mT
        return joint / joint.sum(1, keepdim=True).clamp_min(1e-12)

    def log_likelihood(self) -> Tensor:
        """Log probability of every given label, ``[N]``."""
        parts = [(self.true(some) * self._noise[:, self.given[some]].mT).sum(1) for some in self._blocks()]
        return torch.cat(parts).double().clamp_min(1e-12).log()

    def predict_all(self) -> tuple[Tensor, Tensor]:
        """The most probable true class of every example, and its probability, ``[N]`` both."""
        found = [self.true(some).max(1) for some in self._blocks()]
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
        return torch.stack([self.posterior(some).double().sum(0) for some in self._blocks()]).sum(0).numpy()

    def _blocks(self) -> list[slice]:
        return list(blocks(len(self.given), self.pool.num_classes))


def _read(
    world: _World,
    counts: Ints,
    is_right: NDArray[np.bool_],
    expected_accuracy: float,
    is_refitted: bool,
    heads: Sequence[Head],
) -> LabelEstimate:
    num_sure = int(counts.sum())
    num_wrong = num_sure - int(np.trace(counts))
    low, high = _count_range(num_wrong)
    rates = [scale_errors(world.transition, value / max(num_wrong, 0.5)) for value in (low, high)]
    noises = [None, *(torch.from_numpy(rate).float() for rate in rates)]
    p: list[list[Tensor]] = [[], [], []]
    suggested = []
    top = min(_TOP, world.pool.num_classes - 1)
    for some in world._blocks():
        for place, noise in enumerate(noises):
            posterior = world.posterior(some, noise)
            own = world.given[some, None]
            p[place].append(1 - posterior.gather(1, own)[:, 0])
            if noise is None:
                suggested.append(posterior.scatter(1, own, -1.0).topk(top, 1).indices)
    values = [torch.cat(parts).double().clamp(0, 1).numpy() for parts in p]
    others = torch.cat(suggested).numpy()
    return LabelEstimate(
        p=values[0],
        p_low=np.minimum(values[0], values[1]),
        p_high=np.maximum(values[0], values[2]),
        suggested=np.pad(others, ((0, 0), (0, _TOP - top)), constant_values=-1),
        is_right=is_right,
        expected_accuracy=expected_accuracy,
        transition=world.transition,
        num_sure=num_sure,
        num_sure_wrong=num_wrong,
        is_refitted=is_refitted,
        exponents={head.name: round(float(a), 3) for head, a in zip(heads, world.pool.exponents, strict=True)},
    )


def _count_range(count: int) -> tuple[float, float]:
    """A 90% range of the mean of a Poisson count, by the approximation of Wilson and Hilferty."""
    low = count * max(1 - 1 / (9 * count) - 1.645 / (3 * math.sqrt(count)), 0.0) ** 3 if count > 0 else 0.0
    more = count + 1
    return low, more * (1 - 1 / (9 * more) + 1.645 / (3 * math.sqrt(more))) ** 3
