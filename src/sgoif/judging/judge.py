"""The one judge of class labels: fitted to observations, applied to these and any others, block by block.

Out-of-sample predictions are pooled by the likelihood of the labels, and the noise is fitted to them as they are
(:mod:`sgoif.judging.fitting`). A model that was trained on the labels that it is asked about needs held-out rows: what
it has learnt by heart is taken off (:mod:`sgoif.judging.memory`); the noise is fitted to the held-out rows alone, and
to them and the corrected training rows together; of those that are more than weakness the one is believed under which
the held-out labels are likelier.

Measured on 20 noisy short trainings with hold-outs as given (``python -m benchmarks run judge --judge judge``): AP 3.4
above the better of margin and loss of the same training or its audit, 3.7 below it in the worst.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sgoif.errors import SgoifError
from sgoif.evidence import Competence, hash_ids, measure_competence
from sgoif.judging.fitting import FittedNoise, fit_noise, fit_through
from sgoif.judging.heads import PredictedHead
from sgoif.judging.judgement import Judged, judge_others, why_no_probabilities
from sgoif.judging.memory import OddsMap, match_odds, match_order
from sgoif.judging.observations import Heldout, Observations, unseen_observations
from sgoif.judging.predictions import TopPredictions, log_odds, set_log_odds
from sgoif.judging.probe import LEAST_RIGHT
from sgoif.judging.weakness import Kind
from sgoif.types import Floats, Ints

__all__ = ["LEAST_UNSEEN", "Judge", "Verdict", "fit_judge", "judge", "sample_rows"]

SAMPLE, _LEAST_SAMPLED = 200_000, 20  # examples that are learnt from, and of each class at least
_TRAINED = 20_000  # training rows that are learnt from beside held-out ones
_NUMBERS = 1 << 24  # of predictions that are worked on at once
_BY_HEART = 1.0  # contradicted training labels, in units of the wrong ones, below which they were learnt by heart
# The same where held-out labels cannot tell how many are wrong: in units of the labels that mean predictions over
# visits contradict. Means over few visits are of a model that knew little; there nearly all must have gone.
_MOSTLY, _NEARLY_ALL, _MANY_VISITS = 0.75, 0.3, 5.0
LEAST_UNSEEN = 300  # held-out rows that noise is learnt from; of 100, up to 18% of clean labels were claimed
_OWN_LABELS = 3.0  # nats that a fit to the held-out rows alone has over one to others, by having seen their labels
_SURE = 2.0  # standard errors between the shares of contradicted labels in training and held-out rows
_LOWEST = -20.0  # log probability


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is wrong with the labels of some examples, and what is said of all of them."""

    labels: Judged  # NaN and -1 for labels that cannot be judged
    kind: Kind
    competence: Competence
    no_p_reason: str | None  # why there are no probabilities; then `labels.p` ranks them, and is to be shown nobody
    transition: Floats  # P(given | true), [C, C]


@dataclass(frozen=True, slots=True)
class Judge:
    """What was learnt of the noise, to judge any observations by the same models."""

    classes: Ints  # that are judged, ascending
    num_classes: int
    fitted: FittedNoise
    competence: Competence
    moved: OddsMap | None = None  # of the given class, where the model was trained on the labels
    is_by_order: bool = False  # whether the mean loss has the order

    @property
    def kind(self) -> Kind:
        """What is believed of the noise."""
        return self.fitted.belief.kind

    @property
    def no_p_reason(self) -> str | None:
        """Why it gives no probabilities; None where it does."""
        return why_no_probabilities(self.kind, self.competence)

    @property
    def transition(self) -> Floats:
        """``P(given | true)`` of all classes, ``[C, C]``."""
        found = np.eye(self.num_classes)
        found[np.ix_(self.classes, self.classes)] = self.fitted.belief.likely.transition
        return found

    def judge(self, observations: Observations) -> Judged:
        """Judge labels of classes that are judged; NaN for the others."""
        place = np.full(self.num_classes, -1)
        place[self.classes] = np.arange(len(self.classes))
        labels = np.where(observations.labels >= 0, place[observations.labels], -1)
        if self.is_by_order and observations.mean_loss is not None:
            labels = np.where(np.isfinite(observations.mean_loss), labels, -1)
        p, low, high = np.full((3, len(labels)), np.nan)
        found = Judged(p, low, high, np.full((len(labels), 3), -1), np.zeros((len(labels), 3)))
        for rows in _blocks(np.flatnonzero(labels >= 0), len(self.classes)):
            logs = [torch.from_numpy(part).float() for part in self._logs(observations, rows, labels[rows])]
            given = torch.from_numpy(labels[rows])
            for values, part in zip(found, judge_others(self.fitted, logs, given), strict=True):
                values[rows] = part
        found.suggested[:] = np.where(found.suggested >= 0, self.classes[found.suggested], -1)
        return found

    def _logs(self, observations: Observations, rows: Ints, given: Ints) -> list[Floats]:
        if self.moved is None:
            return [_known_logs(view, rows, self.classes) for view in observations.views.values()]
        return [_moved_logs(observations, rows, given, self.classes, self.moved, by_order=self.is_by_order)]

    def judge_unseen(self, held: Heldout) -> Judged:
        """Judge rows that the model was not trained on."""
        return replace(self, moved=None, is_by_order=False).judge(unseen_observations(held))

    def facts(self) -> dict[str, Any]:
        """What a run's information keeps."""
        fitted = self.fitted
        return {
            "kind": self.kind,
            "evidence": round(fitted.belief.evidence, 1),
            "num_sure": int(fitted.counts.sum()),
            "num_sure_wrong": fitted.num_wrong,
            "expected_accuracy": fitted.expected_accuracy,
            "is_by_order": self.is_by_order,
        }

    def verdict(self, observations: Observations) -> Verdict:
        """Judge labels, and say what is said of all of them."""
        return Verdict(self.judge(observations), self.kind, self.competence, self.no_p_reason, self.transition)


def judge(observations: Any, *, by: Judge | None = None) -> Verdict:
    """Say which labels are wrong.

    Args:
        observations: :class:`Observations`, or a table of them, see :meth:`Observations.from_table`.
        by: what to judge by; learnt from the observations themselves if left out.
    """
    seen = observations if isinstance(observations, Observations) else Observations.from_table(observations)
    return (fit_judge(seen) if by is None else by).verdict(seen)


def fit_judge(observations: Observations) -> Judge:
    """Learn the noise from observations.

    Raises:
        SgoifError: There are fewer than two classes to judge.
    """
    held = observations.heldout
    if held is not None:
        return _fit_trained(observations, held)
    classes = np.unique(observations.labels[observations.labels >= 0])
    _need_two(classes)
    rows = np.flatnonzero(observations.labels >= 0)
    rows = rows[sample_rows(observations.ids[rows], observations.labels[rows])]
    given = np.searchsorted(classes, observations.labels[rows])
    heads = [
        PredictedHead(_tensor(_known_logs(view, rows, classes)), name) for name, view in observations.views.items()
    ]
    fitted = fit_noise(heads, given, len(classes))
    if fitted.is_refitted:
        fitted = _read_through([head.log_p for head in heads], fitted, torch.from_numpy(given))
    competence = measure_competence(fitted.predicted == given, given, len(classes), fitted.expected_accuracy)
    return Judge(classes, observations.num_classes, fitted, competence)


def sample_rows(ids: Any, given: Ints, most: int = SAMPLE) -> Ints:
    """Which examples are learnt from, ascending: all, or by the hash of ids as many of each class as its share."""
    count = len(given)
    if count <= most:
        return np.arange(count)
    order = np.lexsort((hash_ids(ids), given))
    sizes = np.bincount(given)
    rank = np.arange(count) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    wanted = np.maximum(np.ceil(sizes * most / count).astype(np.int64), _LEAST_SAMPLED)
    return np.sort(order[rank < np.repeat(wanted, sizes)])


def _fit_trained(observations: Observations, held: Heldout) -> Judge:
    """Learn the noise from a model that was trained on the labels, and from rows that it was not trained on."""
    rows, classes = _trained_rows(observations, held)
    labels = np.searchsorted(classes, observations.labels[rows])
    unseen, unseen_labels = _choose(held.predictions if held.probe is None else held.probe, held.labels, classes)
    final = _known_logs(observations.final, rows, classes)
    if held.probe is not None:
        return _fit_probed(observations, final, labels, classes, unseen.argmax(1) == unseen_labels, unseen_labels)
    agrees = final.argmax(1) == labels
    if held.trusted or len(unseen) < LEAST_UNSEEN:
        fitted, moved, is_by_order = _fit_seen(observations, rows, labels, classes, unseen.argmax(1) != unseen_labels)
    else:
        alone = fit_noise([PredictedHead(_tensor(unseen))], unseen_labels, len(classes))
        wrong = float(judge_others(alone, [_tensor(unseen)], torch.from_numpy(unseen_labels)).p.mean())
        is_by_order = observations.mean_loss is not None and bool((~agrees).mean() < _BY_HEART * wrong)
        moved = _move(observations, rows, log_odds(final, labels), log_odds(unseen, unseen_labels), is_by_order)
        logs = _moved_logs(observations, rows, labels, classes, moved, by_order=is_by_order)
        both = _tensor(np.concatenate([logs, unseen])), np.concatenate([labels, unseen_labels])
        together = fit_noise([PredictedHead(both[0])], both[1], len(classes))
        fitted = _choose_fit(alone, together, _tensor(unseen), torch.from_numpy(unseen_labels))
    is_right = unseen.argmax(1) == unseen_labels
    expected = None if held.trusted or len(unseen) < LEAST_UNSEEN else fitted.expected_accuracy
    competence = measure_competence(is_right, unseen_labels, len(classes), expected)
    return Judge(classes, observations.num_classes, fitted, competence, moved, is_by_order)


def _fit_probed(
    observations: Observations,
    logs: Floats,
    labels: Ints,
    classes: Ints,
    is_right: NDArray[np.bool_],
    unseen_labels: Ints,
) -> Judge:
    """Learn the noise from a head that was fitted to verified held-out rows alone, and has not seen other labels."""
    fitted = fit_noise([PredictedHead(_tensor(logs))], labels, len(classes))
    if is_right.mean() < LEAST_RIGHT:
        fitted = replace(fitted, belief=replace(fitted.belief, kind="unknown"))
    if fitted.is_refitted:
        fitted = _read_through([_tensor(logs)], fitted, torch.from_numpy(labels))
    competence = measure_competence(is_right, unseen_labels, len(classes))
    return Judge(classes, observations.num_classes, fitted, competence)


def _trained_rows(observations: Observations, held: Heldout) -> tuple[Ints, Ints]:
    """Training rows that are learnt from, and the classes among them and held-out rows, both ascending."""
    is_usable = observations.labels >= 0
    if observations.mean_loss is not None:
        is_usable = is_usable & np.isfinite(observations.mean_loss)
    rows = np.flatnonzero(is_usable)
    classes = np.union1d(observations.labels[rows], held.labels[held.labels >= 0])
    _need_two(classes)
    return rows[sample_rows(observations.ids[rows], observations.labels[rows], _most_trained(len(classes)))], classes


def _fit_seen(
    observations: Observations, rows: Ints, labels: Ints, classes: Ints, is_unseen_wrong: NDArray[np.bool_]
) -> tuple[FittedNoise, OddsMap, bool]:
    """Learn the noise from training rows alone, where held-out labels are known to be right or few: they show none.

    So nobody knows how far training has silenced what the model has against its labels. Where it contradicts fewer of
    them than of held-out ones, or more and still finds none wrong, only their order is known and no number.
    """
    final, visits = _known_logs(observations.final, rows, classes), observations.over_visits
    is_wrong, is_by_order = final.argmax(1) != labels, False
    if visits is not None and observations.mean_loss is not None:
        usual = _known_logs(visits, rows, classes)
        visits_each = 0.0 if observations.num_visits is None else float(observations.num_visits[rows].mean())
        share = _MOSTLY if visits_each >= _MANY_VISITS else _NEARLY_ALL
        is_by_order = bool(is_wrong.mean() < share * (usual.argmax(1) != labels).mean())
    odds = log_odds(usual if is_by_order else final, labels)
    moved = _move(observations, rows, odds, odds, is_by_order)
    logs = _moved_logs(observations, rows, labels, classes, moved, by_order=is_by_order)
    fitted = fit_noise([PredictedHead(_tensor(logs))], labels, len(classes))
    belief = fitted.belief
    is_silenced = is_wrong.mean() < is_unseen_wrong.mean()
    if is_by_order or is_silenced or (belief.kind == "clean" and not _is_alike(is_wrong, is_unseen_wrong)):
        fitted = replace(fitted, belief=replace(belief, kind="unknown"))
    if fitted.is_refitted:
        fitted = _read_through([_tensor(logs)], fitted, torch.from_numpy(labels))
    return fitted, moved, is_by_order


def _is_alike(seen: NDArray[np.bool_], unseen: NDArray[np.bool_]) -> bool:
    """Whether training labels are contradicted no more often than right ones are: more where some are wrong."""
    gap = float(seen.mean() - unseen.mean())
    chance = math.sqrt(sum(part.mean() * (1 - part.mean()) / max(len(part), 1) for part in (seen, unseen)))
    return gap <= _SURE * chance


def _move(observations: Observations, rows: Ints, seen: Floats, unseen: Floats, is_by_order: bool) -> OddsMap:
    if not is_by_order:
        return match_odds(seen, unseen)
    assert observations.mean_loss is not None
    return match_order(-observations.mean_loss[rows], unseen)


def _choose_fit(alone: FittedNoise, together: FittedNoise, unseen: Tensor, labels: Tensor) -> FittedNoise:
    """The fit under which held-out labels are likelier, of those that are the most to be believed."""
    found = []
    for fitted, bonus in ((alone, _OWN_LABELS), (together, 0.0)):
        read = _read_through([unseen], fitted, labels)
        found.append((read.belief.likely.total() - bonus, read))
    ranks = {"counted": 0, "spread": 1, "clean": 2, "unknown": 2}
    return min(found, key=lambda item: (ranks[item[1].belief.kind], -item[0]))[1]


def _read_through(logs: Sequence[Tensor], fitted: FittedNoise, labels: Tensor) -> FittedNoise:
    """The same for predictions as they are, through what was counted: nobody recovers others' true classes first."""
    likely = fitted.belief.likely
    model = fit_through(logs, likely.pool.exponents, likely.transition, labels)
    return replace(fitted, belief=replace(fitted.belief, likely=model), is_refitted=False)


def _moved_logs(
    observations: Observations, rows: Ints, given: Ints, classes: Ints, moved: OddsMap, *, by_order: bool
) -> Floats:
    """Predictions of training rows without what was learnt by heart, ``[n, C]``."""
    if not by_order:
        logs = _known_logs(observations.final, rows, classes)
        return set_log_odds(logs, given, moved(log_odds(logs, given)))
    assert observations.mean_loss is not None
    view = observations.final if observations.over_visits is None else observations.over_visits
    return set_log_odds(_known_logs(view, rows, classes), given, moved(-observations.mean_loss[rows]))


def _choose(predictions: TopPredictions, labels: Ints, classes: Ints) -> tuple[Floats, Ints]:
    """Predictions and labels of rows whose class is one of some."""
    rows = np.flatnonzero(np.isin(labels, classes))
    rows = rows[sample_rows(rows, labels[rows], _most_trained(len(classes)))]
    return _known_logs(predictions, rows, classes), np.searchsorted(classes, labels[rows])


def _known_logs(predictions: TopPredictions, rows: Ints, classes: Ints) -> Floats:
    """Log probabilities of some classes, as if there were no others, ``[n, C]``."""
    logs = predictions.logs(rows)
    if len(classes) == predictions.num_classes:
        return logs
    logs = logs[:, classes]
    return np.asarray(logs - np.log(np.exp(logs).sum(1, keepdims=True)))


def _tensor(logs: Floats) -> Tensor:
    return torch.from_numpy(logs).float().clamp_min(_LOWEST)


def _most_trained(num_classes: int) -> int:
    return min(_TRAINED, max(2_000, _NUMBERS // num_classes))


def _blocks(rows: Ints, num_classes: int) -> Iterator[Ints]:
    step = max(1, _NUMBERS // num_classes)
    for start in range(0, len(rows), step):
        yield rows[start : start + step]


def _need_two(classes: Ints) -> None:
    if len(classes) < 2:
        raise SgoifError(f"labels are judged among at least two classes, and {len(classes)} can be judged.")
