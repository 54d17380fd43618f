"""What is wrong with labels, and the judging of any examples by a fitted noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sgoif.evidence import Competence
from sgoif.judging.fitting import FittedNoise
from sgoif.judging.noise import NoiseModel, weigh
from sgoif.judging.weakness import Belief, Kind
from sgoif.types import Floats, Ints

__all__ = ["Judged", "Judgement", "judge_fitted", "judge_others", "why_no_probabilities"]

_TOP = 3


class Judged(NamedTuple):
    """What is wrong with the labels of some examples."""

    p: Floats  # probability that the label is wrong, [n]; where nothing can be told, what ranks the labels
    p_low: Floats  # the same where there are as few errors as counts and labels allow, and as many
    p_high: Floats
    suggested: Ints  # the most probable other classes, [n, 3]; -1 for none
    p_suggested: Floats  # that they are the true class, [n, 3]; 0 for none


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is wrong with labels: :class:`Judged` of all examples, and what it was learnt from."""

    p: Floats
    p_low: Floats
    p_high: Floats
    suggested: NDArray[np.int64]
    p_suggested: Floats
    sampled: NDArray[np.int64]  # rows that it was learnt from
    predicted: NDArray[np.int64]  # of those: the class that heads which took labels as they are find most probable
    expected_accuracy: float  # how often the heads are right about the true class
    transition: Floats  # P(given | true), [C, C]
    num_sure: int  # sure predictions that the noise was counted among
    num_sure_wrong: int  # those of them with another label
    is_refitted: bool
    exponents: dict[str, float]  # of the heads
    kind: Kind  # what is believed of the noise
    evidence: float  # nats by which what was counted beats weakness of the heads

    def at_classes(self, classes: NDArray[np.int64], num_classes: int) -> Judgement:
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
            "kind": self.kind,
            "evidence": round(self.evidence, 1),
        }


def why_no_probabilities(kind: Kind, competence: Competence) -> str | None:
    """Why labels can be ranked and no number can be given, in words; None where one can."""
    if competence.why_not is not None or kind != "unknown":
        return competence.why_not
    return (
        "the model's own doubt explains the labels as well as errors would: between none and "
        f"{competence.most_wrong:.1%} of them may be wrong, and nobody can tell how many; check 50 with `sgoif verify`"
    )


def judge_fitted(fitted: FittedNoise) -> Judgement:
    """Judge the examples that the noise was fitted to."""
    belief, likely = fitted.belief, fitted.belief.likely
    parts = [_judge(belief, fitted.num_wrong, some) for some in likely.blocks()]
    columns = Judged(*(np.concatenate(values) for values in zip(*parts, strict=True)))
    exponents = zip(fitted.names, likely.pool.exponents, strict=True)
    return Judgement(
        *columns,
        sampled=np.arange(len(columns.p)),
        predicted=fitted.predicted,
        expected_accuracy=fitted.expected_accuracy,
        transition=likely.transition,
        num_sure=int(fitted.counts.sum()),
        num_sure_wrong=fitted.num_wrong,
        is_refitted=fitted.is_refitted,
        exponents={name: round(float(a), 3) for name, a in exponents},
        kind=belief.kind,
        evidence=belief.evidence,
    )


def judge_others(fitted: FittedNoise, logs: Sequence[Tensor], given: Tensor) -> Judged:
    """Judge other examples by the log probabilities that the same heads give them, ``[n, C]`` each."""
    belief = fitted.belief.of_others(logs, given)
    return _judge(belief, fitted.num_wrong, slice(0, len(given)))


def _judge(belief: Belief, num_wrong: int, some: slice) -> Judged:
    likely = belief.likely
    own, top = likely.given[some, None], min(_TOP, likely.pool.num_classes - 1)
    true = likely.true(some)
    posterior = _weigh(likely, true, own)
    p, others = _other(posterior, own), posterior.scatter(1, own, -1.0).topk(top, 1)
    # what was not counted has no counts that could be fewer
    scales = _scales(num_wrong) if belief.kind == "counted" else (1.0, 1.0)
    low, high = (_other(_weigh(likely.scaled(scale), true, own), own) for scale in scales)
    for model in (None if belief.lowest is None else belief.lowest.scaled(scales[0]), belief.highest):
        if model is not None:
            end = _other(_weigh(model, model.true(some), own), own)
            low, high = np.minimum(low, end), np.maximum(high, end)
    missing = ((0, 0), (0, _TOP - top))
    return Judged(
        p,
        np.minimum(p, low),
        np.maximum(p, high),
        np.pad(others.indices.numpy(), missing, constant_values=-1),
        np.pad(others.values.double().clamp(0, 1).numpy(), missing),
    )


def _weigh(model: NoiseModel, true: Tensor, own: Tensor) -> Tensor:
    return weigh(true, torch.from_numpy(model.transition).float(), own[:, 0])


def _other(posterior: Tensor, own: Tensor) -> Floats:
    """The probability of any class but the given one, ``[n]``."""
    return np.asarray((1 - posterior.gather(1, own)[:, 0]).double().clamp(0, 1).numpy())


def _scales(count: int) -> tuple[float, float]:
    """The ends of a 90% range of the mean of a Poisson count, in units of the count (Wilson and Hilferty)."""
    low = count * max(1 - 1 / (9 * count) - 1.645 / (3 * math.sqrt(count)), 0.0) ** 3 if count > 0 else 0.0
    more = count + 1
    high = more * (1 - 1 / (9 * more) + 1.645 / (3 * math.sqrt(more))) ** 3
    return low / max(count, 0.5), high / max(count, 0.5)
