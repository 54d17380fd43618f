"""Everything that is needed to judge an example, and the judging: tensors in, columns out.

The model that gives features and logits is the user's and is not part of it; see :mod:`sgoif.gradients.fingerprint`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sgoif.errors import SgoifError
from sgoif.evidence import LikelyOthers, Standardiser
from sgoif.gradients.contractions import widen
from sgoif.influence import MIN_HELD_OUT, HeadJudge, why_not_judged
from sgoif.judging.judge import Judge, fit_judge
from sgoif.judging.observations import Heldout, Observations
from sgoif.judging.predictions import TopPredictions
from sgoif.judging.probe import Probe, last_word
from sgoif.records import GradientRows
from sgoif.tasks.classification import logit_gradients

__all__ = ["About", "Snapshot"]

Columns = Mapping[str, NDArray[Any]]

_STANDARDISED = ("harm", "worst")
_LAST = ("p_given_last", "margin_last", "runner_up_last")  # the word of a probe
_NEEDED = ("loss", "margin", "p_given", "harm", "worst")  # that must be finite


@dataclass(frozen=True, slots=True)
class About:
    """What a snapshot is of, in words and numbers that JSON has."""

    weights: str  # hash, see hash_weights
    head: str
    has_bias: bool
    num_classes: int
    class_names: tuple[str, ...] = ()
    label_smoothing: float = 0.0
    is_cross_entropy: bool = True  # else gradients at the logits must be given with every batch
    autocast: str | None = None  # the precision of the hold-out's forward pass
    trusted: bool = False
    held_out_per_class: tuple[int, ...] = ()
    competence: Mapping[str, Any] | None = None  # of the model, on the hold-out
    no_p_reason: str | None = None  # why it gives no probabilities
    step: int | None = None
    num_adapted: int = 0  # examples that the probabilities were adapted to
    scales: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # median and MAD of a signal there
    made_with: Mapping[str, str] = field(default_factory=dict)
    made: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What judges examples and their labels, and what it is of.

    Made by ``monitor.snapshot()`` or ``sgoif.audit(snapshot=...)``; read by :func:`sgoif.snapshot.read_snapshot`.
    """

    about: About
    judge: HeadJudge
    heldout: Heldout | None = None  # predictions of hold-out examples; None where labels cannot be judged
    labels: Judge | None = None  # learnt from the hold-out, then from it and training examples
    held_out: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))  # hashes of ids, ascending
    probe: Probe | None = None  # a head of verified held-out labels, by whose word labels are judged

    def score(
        self, features: Tensor, logits: Tensor, labels: Tensor, gradients: Tensor | None = None
    ) -> dict[str, NDArray[Any]]:
        """Judge a batch: the columns that an audit of the same model has for it.

        Args:
            features: inputs of the head, ``[B, D]``; of a convolutional head their mean over positions.
            logits: ``[B, C]``.
            labels: given classes, ``[B]``.
            gradients: of each example's loss at its logits, ``[B, C]``; those of cross-entropy if left out.

        Returns:
            Signals, ``suggested_label``, and where labels are judged ``p_mislabeled`` with its range, ``[B]`` each;
            NaN where the model's output is not finite.
        """
        return self.judged(self.signals(features, logits, labels, gradients), labels.cpu().numpy())

    @torch.no_grad()
    def signals(
        self, features: Tensor, logits: Tensor, labels: Tensor, gradients: Tensor | None = None
    ) -> dict[str, NDArray[Any]]:
        """The signals of a batch, in one transfer to the host; arguments as for :meth:`score`."""
        outputs = widen(logits)
        if gradients is None:
            if not self.about.is_cross_entropy:
                raise SgoifError("this snapshot's loss is not cross-entropy: pass the gradients at the logits.")
            gradients = logit_gradients(outputs, labels, label_smoothing=self.about.label_smoothing)
        inputs = widen(features)
        if self.about.has_bias:
            inputs = torch.cat([inputs, torch.ones_like(inputs[:, :1])], 1)
        rows = GradientRows(self.about.head, inputs[:, None, :, None], widen(gradients)[:, None, :, None])
        found = self.judge.signals(rows, outputs, labels)
        if self.probe is not None:
            found |= zip(_LAST, last_word(self.probe.logs(inputs), labels), strict=True)
        packed = torch.stack([column.to(self.judge.known.weights.dtype) for column in found.values()], 1).cpu().numpy()
        return {name: packed[:, i] for i, name in enumerate(found)}

    def judged(self, signals: Columns, labels: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Add to signals what they mean: a suggested label, standardised scores, probabilities."""
        is_sound = _is_sound(signals)
        nothing, likely = np.full(len(labels), np.nan), np.full(len(labels), -1)
        found = (nothing, nothing, nothing)
        if self.labels is not None:
            judged = self.labels.judge(self._observe(signals, labels, is_sound & self._is_known(labels)))
            likely = judged.suggested[:, 0]
            found = (nothing,) * 3 if self.labels.no_p_reason is not None else judged[:3]
        anchor = np.where(is_sound, signals["worst_anchor"], -1).astype(np.int64)
        columns = {name: np.where(is_sound, column, np.nan) for name, column in signals.items()}
        columns |= {"suggested_label": np.where(likely >= 0, likely, anchor)}
        columns |= {"runner_up": np.where(is_sound, signals["runner_up"], -1)}
        for name, (centre, scale) in self.about.scales.items():
            columns[f"{name}_std"] = _standardiser(centre, scale).transform(columns[name])
        columns |= {f"p_mislabeled{tail}": values for tail, values in zip(("", "_low", "_high"), found, strict=True)}
        return columns | {"no_p_reason": self._reasons(is_sound, labels)}

    def _reasons(self, is_sound: NDArray[np.bool_], labels: NDArray[np.int64]) -> NDArray[np.object_]:
        """Why examples have no probability, None for those that have one, ``[B]``."""
        found = np.full(len(labels), None, dtype=object)
        found[~is_sound] = "its scores are not finite"
        is_unknown = ~self._is_known(labels)
        for label in np.unique(labels[is_unknown]).tolist():
            found[is_unknown & (labels == label)] = self._why_not(label)
        why = self.about.no_p_reason if self.labels is None else self.labels.no_p_reason
        if self.labels is None or why is not None:
            found[:] = why or "the snapshot was made without probabilities"
        return found

    def adapted(self, signals: Columns, labels: NDArray[np.int64]) -> Snapshot:
        """Learn from the signals of training examples how many errors there are, and of which kind.

        Some ten thousand examples will do, drawn at random from what is to be scored.
        """
        can = _is_sound(signals) & self._is_known(labels)
        if self.heldout is None or can.sum() < 2:
            return self
        scales = {name: _scale_of(signals[name]) for name in _STANDARDISED}
        judge = fit_judge(self._observe(signals, labels, can, self.heldout))
        about = replace(
            self.about,
            num_adapted=int(can.sum()),
            scales=scales,
            competence=asdict(judge.competence),
            no_p_reason=judge.no_p_reason,
        )
        return replace(self, about=about, labels=judge)

    def _observe(
        self, signals: Columns, labels: NDArray[np.int64], can: NDArray[np.bool_], heldout: Heldout | None = None
    ) -> Observations:
        """What is asked about examples; the labels of those that cannot be judged are none."""
        names = ("p_given", "margin", "runner_up") if self.probe is None else _LAST
        p_given, margin, runner_up = (signals[name] for name in names)
        others = LikelyOthers.of_visit(p_given, margin, runner_up)
        view = TopPredictions.of_given(labels, p_given.astype(np.float64), others, self.about.num_classes)
        return Observations(
            ids=np.arange(len(labels)), labels=np.where(can, labels, -1), views={"final": view}, heldout=heldout
        )

    def _is_known(self, labels: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whose class has enough hold-out examples, ``[B]``; without them a label cannot be judged."""
        return np.asarray(self.about.held_out_per_class)[labels] >= MIN_HELD_OUT

    def _why_not(self, label: int) -> str:
        names = self.about.class_names
        return why_not_judged(names[label] if label < len(names) else str(label), self.about.held_out_per_class[label])


def _is_sound(signals: Columns) -> NDArray[np.bool_]:
    return np.asarray(np.all([np.isfinite(signals[name]) for name in _NEEDED], axis=0))


def _scale_of(values: NDArray[Any]) -> tuple[float, float]:
    seen = Standardiser()
    seen.observe(values)
    return seen.centre, seen.scale


def _standardiser(centre: float, scale: float) -> Standardiser:
    known = Standardiser()
    known.centre, known.scale = centre, scale
    return known
