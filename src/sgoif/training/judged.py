"""From a run's table and its hold-out to what the judge of labels is asked (:mod:`sgoif.judging.judge`).

The model was trained on the labels that are judged: its last word on each, and on held-out examples of the same moment,
are the observations; after a training the mean loss over visits besides, whose order stands where labels were learnt by
heart.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgoif.errors import SgoifError
from sgoif.evidence import LikelyOthers
from sgoif.influence import MIN_HELD_OUT
from sgoif.judging.judge import LEAST_UNSEEN, Judge, fit_judge
from sgoif.judging.judgement import Judged
from sgoif.judging.observations import Heldout, Observations
from sgoif.judging.predictions import TopPredictions
from sgoif.types import Floats

__all__ = ["NoProbabilities", "RunJudge", "judge_run", "observe_examples"]

log = logging.getLogger(__name__)

_LEAST = 1e-12  # probability of a given class

Table = Mapping[str, NDArray[Any]]  # one row per training example


class NoProbabilities(SgoifError):
    """A run's labels cannot be judged; the message is a sentence that says why."""


@dataclass(frozen=True, slots=True)
class RunJudge:
    """Judges the labels of a run's examples, and of its hold-out."""

    by: Judge
    heldout: Heldout
    known_classes: NDArray[np.bool_]  # those with enough hold-out examples; labels of the others are ranked only, [C]

    @property
    def no_p_reason(self) -> str | None:
        """Why no probability is shown; None where some are."""
        why, held = self.by.no_p_reason, self.heldout
        if why is None or not self.by.competence.is_competent or held.probe is not None:
            return why
        if held.trusted:
            return (
                "the hold-out's labels are verified, so they show no noise, and nothing shows how far the model has "
                "learnt wrong labels by heart; pass the training examples to monitor.close(dataset), or audit the model"
            )
        if len(held.labels) < LEAST_UNSEEN:
            return (
                f"the hold-out has {len(held.labels)} examples, and how labels are wrong is learnt from at least "
                f"{LEAST_UNSEEN}; hold out more, or have its labels verified"
            )
        return why

    @property
    def transition(self) -> Floats:
        """``P(given | true)`` of classes whose labels are judged, ``[C, C]``; nothing is claimed of the others."""
        is_other = ~self.known_classes
        found = self.by.transition.copy()
        found[is_other], found[:, is_other] = 0, 0
        found[is_other, is_other] = 1
        return np.asarray(found / found.sum(1, keepdims=True))

    def judge(self, examples: Table) -> Judged:
        """Judge training examples; NaN where one cannot be judged at all."""
        return self.by.judge(observe_examples(examples, self.by.num_classes))

    def judge_unseen(self) -> Judged:
        """Judge the labels of the hold-out, which the model was not trained on."""
        held = self.heldout
        found = self.by.judge_unseen(held)
        is_sure = np.full(len(held.labels), held.trusted)  # people have verified them: they are not doubted here
        return found._replace(p=np.where(is_sure, 0.0, found.p), p_low=np.where(is_sure, 0.0, found.p_low))

    def shows(self, given: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whose probability is shown: of judged classes, where the run gives any, ``[n]``."""
        known = (given >= 0) & self.known_classes[np.maximum(given, 0)]
        return np.asarray(known & (self.no_p_reason is None))

    def facts(self, expected_errors: float) -> dict[str, Any]:
        """What the run's information says of it; numbers of errors only where they are to be believed."""
        why = self.no_p_reason
        if why is not None:
            log.warning("this run has no probabilities: %s. Its labels are ranked by `label_score`.", why)
        return {
            "no_totals_reason": None,
            "expected_errors": expected_errors if why is None else None,
            "transition": self.transition.tolist(),
            "estimate": self.by.facts(),
        }


def judge_run(examples: Table, heldout: Heldout, known_classes: NDArray[np.bool_]) -> RunJudge:
    """Learn the noise of a run's labels.

    Args:
        examples: the run's table, or a sample of it.
        heldout: examples that the model was not trained on.
        known_classes: those with enough of them, ``[C]``.

    Raises:
        NoProbabilities: There is too little to learn from.
    """
    if not len(examples["id"]):
        raise NoProbabilities("no training example was scored")
    if (examples["given_label"] < 0).all():
        raise NoProbabilities("no target names one class (Mixup, CutMix or soft labels), so there is no label to judge")
    if known_classes.sum() < 2:
        raise NoProbabilities(
            f"the hold-out is too small: {known_classes.sum()} of {len(known_classes):,} classes have at least "
            f"{MIN_HELD_OUT} held-out examples, and two are needed"
        )
    try:
        by = fit_judge(observe_examples(examples, len(known_classes), heldout))
    except SgoifError as error:
        raise NoProbabilities(str(error)) from error
    return RunJudge(by, heldout, known_classes)


def observe_examples(examples: Table, num_classes: int, heldout: Heldout | None = None) -> Observations:
    """What a run has seen of training examples; labels without a finite prediction are none."""
    given = np.asarray(examples["given_label"], dtype=np.int64)
    final = _last_view(examples, given, num_classes)
    is_seen = np.isfinite(final.p[:, 0])
    was_trained = int(examples["n_visits"].max(initial=0)) > 1  # an audit looks once, when the training is over
    others = LikelyOthers.from_columns({name: values for name, values in examples.items() if "runner_up" in name})
    means = TopPredictions.of_given(given, np.asarray(examples["p_given"]), others, num_classes)
    return Observations(
        ids=examples["id"],
        labels=np.where(is_seen, given, -1),
        views={"final": final},
        heldout=heldout,
        over_visits=means if was_trained else None,
        num_visits=np.asarray(examples["n_visits"]) if was_trained else None,
        mean_loss=np.asarray(examples["loss"], dtype=np.float64) if was_trained else None,
    )


def _last_view(examples: Table, given: NDArray[np.int64], num_classes: int) -> TopPredictions:
    """What the model said of each example last."""
    if "p_given_last" in examples:
        names = ("p_given_last", "margin_last", "runner_up_last")
        p, margin, other = (np.asarray(examples[name], dtype=np.float64) for name in names)
        others = LikelyOthers.of_visit(np.maximum(p, _LEAST), margin, other)  # of no probability, no margin tells
        return TopPredictions.of_given(given, p, others, num_classes)
    others = LikelyOthers.from_columns({name: values for name, values in examples.items() if "runner_up" in name})
    return TopPredictions.of_given(given, np.asarray(examples["p_given"], dtype=np.float64), others, num_classes)
