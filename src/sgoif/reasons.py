"""Why an example has no ``p_mislabeled``, in words: for the whole run, for its class, or for the example itself."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sgoif.findings.label import class_name
from sgoif.influence import MIN_HELD_OUT, why_not_judged
from sgoif.types import Columns

if TYPE_CHECKING:
    from sgoif.training.judged import RunJudge

__all__ = ["Reasons"]

log = logging.getLogger(__name__)


_NO_CLASS = "its target names no class (Mixup, CutMix or soft labels)"
_SHUT = "it was never seen while the scores could be trusted"
_NOT_FINITE = "its scores are not finite"
_ALONE = "no other held-out example of its class could judge it"
_SHOWN_CLASSES = 5


@dataclass(frozen=True, slots=True)
class Reasons:
    """Why examples of a run have no probability."""

    run: str | None  # why none of them has; None where some have
    known_classes: NDArray[np.bool_]  # classes whose labels can be judged, [C]
    held_out: Sequence[int]  # hold-out examples by class
    class_names: Sequence[str]

    @classmethod
    def of(cls, facts: Mapping[str, Any], judge: RunJudge | None) -> Reasons:
        """From the facts of a run, and what judged its labels."""
        why = facts.get("no_p_reason")
        names, held = facts.get("class_names") or (), facts.get("held_out_per_class") or ()
        if judge is None:
            return cls(why or "nothing judged the labels of this run", np.ones(0, bool), held, names)
        return cls(why, judge.known_classes, held, names)

    def of_examples(self, examples: Mapping[str, NDArray[Any]], p: NDArray[np.float64]) -> NDArray[np.object_]:
        """One sentence per example without a probability, None for the others, ``[N]``."""
        found = np.full(len(p), None, dtype=object)
        is_open = ~np.isfinite(p)
        if self.run is not None:
            found[is_open] = self.run
            return found
        given = examples["given_label"]
        found[is_open] = np.where(examples["confidence"][is_open] <= 0, _SHUT, _NOT_FINITE)
        self._name_classes(found, given, is_open & (given >= 0))
        found[is_open & (given < 0)] = _NO_CLASS
        return found

    def with_holdout(self, holdout: Columns) -> Columns:
        """The table of the hold-out with probabilities, empty ones where there are none, and the reason."""
        nothing = np.full(len(holdout["id"]), np.nan)
        found = {f"p_mislabeled{tail}": nothing for tail in ("", "_low", "_high")} | holdout
        reasons = np.full(len(nothing), None, dtype=object)
        is_open = np.isnan(found["p_mislabeled"])
        reasons[is_open] = self.run or _ALONE
        if self.run is None:
            self._name_classes(reasons, holdout["given_label"], is_open)
        return found | {"no_p_reason": reasons}

    def warn(self, examples: Mapping[str, NDArray[Any]]) -> None:
        """Log which classes of the training examples cannot be judged."""
        given = examples["given_label"]
        counts = np.bincount(given[given >= 0], minlength=len(self.known_classes))
        lost = np.flatnonzero((counts > 0) & ~self.known_classes)
        if len(lost):
            names = ", ".join(class_name(int(label), self.class_names) for label in lost[:_SHOWN_CLASSES])
            more = f" and {len(lost) - _SHOWN_CLASSES} more" if len(lost) > _SHOWN_CLASSES else ""
            log.warning(
                "%d labels have no probability: too few held-out examples of their class (%s%s) were seen.",
                counts[lost].sum(),
                names,
                more,
            )

    def _name_classes(self, found: NDArray[np.object_], given: NDArray[np.int64], asked: NDArray[np.bool_]) -> None:
        """Write the reason of examples whose class cannot be judged, in place."""
        is_unknown = asked & ~self.known_classes[given]
        labels, place = np.unique(given[is_unknown], return_inverse=True)
        found[is_unknown] = np.array([self._of_class(label) for label in labels.tolist()], dtype=object)[place]

    def _of_class(self, label: int) -> str:
        name = class_name(label, self.class_names)
        count = self.held_out[label] if label < len(self.held_out) else 0
        if count < MIN_HELD_OUT:
            return why_not_judged(name, count)
        return f"no held-out example of class {name} was looked at"
