"""Several annotators per example: who is how often right, and which class an example has, by expectation-maximisation.

After Dawid and Skene, with few parameters unless the labels support more. An annotator has an accuracy, shrunk towards
that of all; what is given instead of the right class is spread evenly, or follows a confusion that all share, or one of
the annotator's own. The richer model is taken only where it makes labels of examples likelier that it was not fitted
to. A model's out-of-fold prediction is one voice more: ``P(k) ∝ prior(k)^(1-t) P_model(k)^t``, with the ``t`` under
which the labels are likeliest; 0 ignores the model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sgoif.types import Floats, Ints

__all__ = ["Annotation", "Votes", "judge_votes"]

STRUCTURES = ("accuracy", "shared confusion", "own confusion")
_TRUST = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)  # of the model's log probabilities
_ROUNDS, _EVERY = 30, 5  # of expectation and maximisation; how often the model's trust is chosen anew
_STRENGTH = 6.0  # labels that the accuracy of all is worth in that of one
_CELLS = 20_000_000  # of all confusion matrices: beyond, annotators have an accuracy alone
_WORK = 20_000_000  # labels x classes: beyond, the same
_LEAST_GAIN, _SURE_GAIN = 5.0, 2.0  # what a richer model has to gain: nats, and standard errors
_LEAST_OVERLAP = 30  # examples with several labels, from which on annotators can be held against each other
_NORMAL = 1.645  # standard errors of a 90% interval
_HIGHEST = 1 - 1e-6


@dataclass(frozen=True, slots=True)
class Votes:
    """Labels that annotators gave, one entry per label."""

    example: Ints
    annotator: Ints
    label: Ints
    num_examples: int
    num_annotators: int
    num_classes: int

    @classmethod
    def of(cls, labels: Ints, num_classes: int) -> Votes:
        """From a table ``[N, A]`` with -1 where there is none."""
        example, annotator = np.nonzero(labels >= 0)
        given, (rows, columns) = labels[example, annotator].astype(np.int64), labels.shape
        return cls(example, annotator, given, rows, columns, num_classes)

    def only(self, rows: NDArray[np.bool_]) -> Votes:
        """Labels of some examples; the examples are numbered anew."""
        kept, place = rows[self.example], np.cumsum(rows) - 1
        return replace(
            self,
            example=place[self.example[kept]],
            annotator=self.annotator[kept],
            label=self.label[kept],
            num_examples=int(rows.sum()),
        )

    def count_classes(self) -> Floats:
        """How often each class was given, ``[N, C]``."""
        size = self.num_examples * self.num_classes
        flat = np.bincount(self.example * self.num_classes + self.label, minlength=size)
        return flat.reshape(self.num_examples, self.num_classes).astype(np.float64)


@dataclass(frozen=True, slots=True)
class Annotation:
    """What labels of several annotators say."""

    majority: Ints  # class that most gave, [N]; of several the likelier
    consensus: Ints  # the likeliest class, [N]
    p_consensus: Floats  # its probability
    p_majority_wrong: Floats
    p_majority_wrong_low: Floats  # the same were annotators as good as their intervals allow, and as bad
    p_majority_wrong_high: Floats
    suggested: Ints  # the likeliest classes besides the majority's, [N, 3]; -1 for none
    agreement: Floats  # share of the example's labels that are the consensus; NaN without any
    num_labels: Ints  # of each example
    ask_gain: Floats  # by how much one more label raises the probability of being right, on average
    quality: Floats  # accuracy of each annotator, [A]
    quality_low: Floats
    quality_high: Floats
    annotator_agreement: Floats  # share of each annotator's labels that others gave most, where others gave any, [A]
    annotator_labels: Ints  # how many each gave, [A]
    structure: str  # of the confusions, see above
    gain: float  # nats per 1,000 labels that it gained over an accuracy alone, on examples it was not fitted to
    model_trust: float  # 0: the model is ignored
    num_overlapping: int  # examples with several labels
    why_not: str | None  # why no label can be judged


@dataclass(frozen=True, slots=True)
class _Fit:
    """Parameters of annotators and classes."""

    structure: str
    quality: Floats  # [A]
    prior: Floats  # [C]
    trust: float
    spread: Floats | None = None  # log P(given | true), [A, C, C] or [1, C, C]; None: errors are spread evenly

    def voices(self, votes: Votes) -> Floats:
        """Log likelihood of the labels of every example under each class, ``[N, C]``."""
        found = np.zeros((votes.num_examples, votes.num_classes))
        quality = self.quality[votes.annotator]
        if self.spread is None:
            other = (1 - quality) / max(votes.num_classes - 1, 1)
            np.add.at(found, (votes.example, votes.label), np.log(quality) - np.log(other))
            return found + np.bincount(votes.example, np.log(other), votes.num_examples)[:, None]
        which = votes.annotator if len(self.spread) > 1 else np.zeros_like(votes.annotator)
        rows = self.spread[which, :, votes.label]  # of errors, [M, C]
        rows = rows + np.log1p(-quality)[:, None]
        rows[np.arange(len(rows)), votes.label] = np.log(quality)
        np.add.at(found, votes.example, rows)
        return found

    def beliefs(self, log_p: Floats | None) -> Floats | NDArray[np.float64]:
        """Log of what is believed of each class before any label, ``[N, C]`` or ``[1, C]``."""
        prior = np.log(self.prior)[None]
        if log_p is None or self.trust == 0:
            return prior
        mixed = self.trust * log_p + (1 - min(self.trust, 1.0)) * prior
        return np.asarray(mixed - _log_sum(mixed)[:, None])

    def likelihood(self, votes: Votes, log_p: Floats | None) -> Floats:
        """Log likelihood of the labels of each example, ``[N]``."""
        return _log_sum(self.voices(votes) + self.beliefs(log_p))

    def posterior(self, votes: Votes, log_p: Floats | None) -> Floats:
        """Probability of each class, ``[N, C]``."""
        joint = self.voices(votes) + self.beliefs(log_p)
        return np.asarray(np.exp(joint - _log_sum(joint)[:, None]))


def judge_votes(votes: Votes, log_p: Floats | None) -> Annotation:
    """Judge examples and annotators from all labels.

    Args:
        votes: the labels.
        log_p: log probabilities of a model that has not seen the example's labels, ``[N, C]``; None without a model.
    """
    structure, gain = _choose_structure(votes, log_p)
    fit = _maximise(votes, log_p, structure)
    posterior = fit.posterior(votes, log_p)
    low, high = _quality_interval(votes, fit, posterior)
    counts = votes.count_classes()
    majority = (counts + 0.5 * posterior).argmax(1)
    rows, consensus = np.arange(votes.num_examples), posterior.argmax(1)
    wrong = [1 - each[rows, majority] for each in (
        posterior,
        replace(fit, quality=high).posterior(votes, log_p),
        replace(fit, quality=low).posterior(votes, log_p),
    )]  # fmt: skip
    others = posterior.copy()
    others[rows, majority] = -1
    top = min(3, votes.num_classes - 1)
    suggested = np.argsort(-others, axis=1, kind="stable")[:, :top]
    total = counts.sum(1)
    overlapping = int((total > 1).sum())
    why = None
    if overlapping < _LEAST_OVERLAP and fit.trust == 0:
        why = (
            f"{overlapping:,} examples have labels of several annotators, at least {_LEAST_OVERLAP} are needed to hold "
            "them against each other, and no model predicts the labels well enough to be a second voice"
        )
    with np.errstate(invalid="ignore"):
        agreement = counts[rows, consensus] / total
    return Annotation(
        majority=majority,
        consensus=consensus,
        p_consensus=posterior[rows, consensus],
        p_majority_wrong=wrong[0].clip(0, 1),
        p_majority_wrong_low=np.minimum.reduce(wrong).clip(0, 1),
        p_majority_wrong_high=np.maximum.reduce(wrong).clip(0, 1),
        suggested=np.pad(suggested, ((0, 0), (0, 3 - top)), constant_values=-1),
        agreement=agreement,
        num_labels=total.astype(np.int64),
        ask_gain=_ask_gain(posterior, _mean_quality(votes, fit)),
        quality=fit.quality,
        quality_low=low,
        quality_high=high,
        annotator_agreement=_annotator_agreement(votes, counts),
        annotator_labels=np.bincount(votes.annotator, minlength=votes.num_annotators),
        structure=structure,
        gain=gain,
        model_trust=fit.trust,
        num_overlapping=overlapping,
        why_not=why,
    )


def _choose_structure(votes: Votes, log_p: Floats | None) -> tuple[str, float]:
    """The simplest structure of the confusions that a richer one does not clearly beat on unseen examples."""
    size, labels = votes.num_annotators * votes.num_classes**2, len(votes.label)
    is_small = size <= _CELLS and labels * votes.num_classes <= _WORK
    if (votes.num_classes < 3 and votes.num_annotators == 1) or not is_small or votes.num_examples < 20:
        return STRUCTURES[0], 0.0
    half = np.random.default_rng(0).permutation(votes.num_examples) % 2 == 0
    likely = {}
    for structure in STRUCTURES:
        found = np.zeros(votes.num_examples)
        for seen in (half, ~half):
            mine, rest = (None if log_p is None else log_p[rows] for rows in (seen, ~seen))
            fit = _maximise(votes.only(seen), mine, structure, rounds=_ROUNDS // 2)
            found[~seen] = fit.likelihood(votes.only(~seen), rest)
        likely[structure] = found
    best = STRUCTURES[0]
    for structure in STRUCTURES[1:]:
        gain = likely[structure] - likely[best]
        if gain.sum() > max(_LEAST_GAIN, _SURE_GAIN * gain.std() * math.sqrt(len(gain))):
            best = structure
    return best, 1000 * float((likely[best] - likely[STRUCTURES[0]]).sum()) / max(labels, 1)


def _maximise(votes: Votes, log_p: Floats | None, structure: str, rounds: int = _ROUNDS) -> _Fit:
    """Fit annotators and classes by expectation-maximisation, from the majority of the labels."""
    counts = votes.count_classes()
    start = counts + 0.1 / votes.num_classes
    if log_p is not None:
        start = start + 0.5 * np.exp(log_p)
    posterior = start / start.sum(1, keepdims=True)
    fit = _Fit(
        STRUCTURES[0], np.full(votes.num_annotators, 0.7), np.full(votes.num_classes, 1 / votes.num_classes), 0.0
    )
    for number in range(rounds):
        fit = _update(fit, votes, posterior, structure)
        if log_p is not None and number % _EVERY == 0:
            voices = fit.voices(votes)
            tried = [replace(fit, trust=trust) for trust in _TRUST]
            likely = [float(_log_sum(voices + each.beliefs(log_p)).sum()) for each in tried]
            fit = tried[int(np.argmax(likely))]
        before, posterior = posterior, fit.posterior(votes, log_p)
        if number > _EVERY and np.abs(posterior - before).max() < 1e-4:
            break
    return fit


def _update(fit: _Fit, votes: Votes, posterior: Floats, structure: str) -> _Fit:
    """The parameters under which the labels are likeliest, were the classes known as far as they are believed."""
    right = posterior[votes.example, votes.label]
    given = np.bincount(votes.annotator, minlength=votes.num_annotators)
    overall = float((right.sum() + 1) / (len(right) + 2))
    quality = (np.bincount(votes.annotator, right, votes.num_annotators) + _STRENGTH * overall) / (given + _STRENGTH)
    quality = quality.clip(1 / votes.num_classes * 0.5, _HIGHEST)
    prior = posterior.sum(0) + 1
    found = replace(fit, structure=structure, quality=quality, prior=prior / prior.sum(), spread=None)
    if structure == STRUCTURES[0]:
        return found
    return replace(found, spread=_spread(votes, posterior, is_own=structure == STRUCTURES[2]))


def _spread(votes: Votes, posterior: Floats, *, is_own: bool) -> Floats:
    """Log probability of each wrong class given the true one, shrunk: own towards shared, shared towards even."""
    size, shared = votes.num_classes, np.zeros((votes.num_classes, votes.num_classes))
    np.add.at(shared.T, votes.label, posterior[votes.example])
    off = 1 - np.eye(size)
    shared = (shared * off) + off * 1.0  # one error of each kind, seen before
    shared = shared / shared.sum(1, keepdims=True).clip(min=1e-12)
    if not is_own:
        return np.asarray(np.log(shared.clip(min=1e-9)))[None]
    own = np.zeros((votes.num_annotators, size, size))
    np.add.at(own.transpose(0, 2, 1), (votes.annotator, votes.label), posterior[votes.example])
    own = own * off + _STRENGTH * shared * off
    return np.asarray(np.log((own / own.sum(2, keepdims=True).clip(min=1e-12)).clip(min=1e-9)))


def _quality_interval(votes: Votes, fit: _Fit, posterior: Floats) -> tuple[Floats, Floats]:
    """A 90% interval of each accuracy: from the number of labels, and from not knowing which of them are right."""
    right = posterior[votes.example, votes.label]
    count = np.bincount(votes.annotator, minlength=votes.num_annotators) + _STRENGTH
    unsure = np.bincount(votes.annotator, right * (1 - right), votes.num_annotators) / count**2
    mean = fit.quality
    half = _NORMAL * np.sqrt(mean * (1 - mean) / count + unsure + (_NORMAL / (2 * count)) ** 2)
    centre = (mean + _NORMAL**2 / (2 * count)) / (1 + _NORMAL**2 / count)
    low, high = (centre + side * half / (1 + _NORMAL**2 / count) for side in (-1, 1))
    return np.minimum(low, mean).clip(1e-3, _HIGHEST), np.maximum(high, mean).clip(1e-3, _HIGHEST)


def _mean_quality(votes: Votes, fit: _Fit) -> float:
    return float(fit.quality[votes.annotator].mean()) if len(votes.annotator) else 0.5


def _ask_gain(posterior: Floats, quality: float) -> Floats:
    """How much likelier the consensus would be right after one more label of a usual annotator, on average."""
    other = (1 - quality) / max(posterior.shape[1] - 1, 1)
    order = np.partition(posterior, -2, axis=1)[:, -2:]
    second, first = order[:, :1], order[:, 1:]
    rest = np.where(posterior == first, second, first)  # the largest besides each class itself
    after = np.maximum(quality * posterior, other * rest).sum(1)
    return np.asarray((after - first[:, 0]).clip(min=0))


def _annotator_agreement(votes: Votes, counts: Floats) -> Floats:
    """Share of an annotator's labels that no class of the others' labels outnumbers, where there are others."""
    largest = np.partition(counts, -2, axis=1)[:, -2:][votes.example]
    own = counts[votes.example, votes.label]
    rival = np.where(own == largest[:, 1], largest[:, 0], largest[:, 1])  # of the classes besides
    has_others = counts.sum(1)[votes.example] > 1
    agrees = has_others & (own - 1 >= rival)
    known = np.bincount(votes.annotator, has_others, votes.num_annotators)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.bincount(votes.annotator, agrees, votes.num_annotators) / known)


def _log_sum(values: Floats) -> Floats:
    most = values.max(1, keepdims=True)
    return np.asarray(np.log(np.exp(values - most).sum(1)) + most[:, 0])
