"""A scorer made of a model and some in-distribution images: how far out of distribution are others?"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sgoif.errors import SgoifError
from sgoif.features.extraction import (
    HeadFeatures,
    concatenate_features,
    device_of,
    extract_all_features,
    extract_features,
    iterate_batches,
)
from sgoif.features.rule import Base, OodRule
from sgoif.files.sealed import read_tensors, write_tensors
from sgoif.gradients import quiet_eval
from sgoif.gradients.fingerprint import check_weights, hash_weights
from sgoif.gradients.models import default_forward, plain_model
from sgoif.inputs.items import move_to
from sgoif.ood.conformal import Conformal

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["OodScorer"]

_LEAST = 40  # images: below, neither half says anything
_FORMAT, _ENTRY = 1, "sgoif_ood"  # of the file's header


@dataclass(frozen=True, slots=True)
class ScorerFile:
    """All of a scorer but the model, as one safetensors file holds it: no code runs on reading."""

    head: str
    weights: str  # hash, see hash_weights
    rule: OodRule
    calibration: Conformal

    def write(self, url: str | os.PathLike[str]) -> None:
        """Write to a path or any fsspec URL, so that the file is there in full or not at all."""
        tensors, rule = self.rule.pack()
        tensors["calibration"] = torch.from_numpy(self.calibration.scores)
        header = {"format": _FORMAT, "head": self.head, "weights": self.weights, **rule}
        write_tensors(url, tensors, header, entry=_ENTRY)

    @classmethod
    def read(cls, url: str | os.PathLike[str]) -> ScorerFile:
        """Read a scorer."""

        def build(tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> ScorerFile:
            kept = Conformal(tensors["calibration"].numpy())
            return cls(header["head"], header["weights"], OodRule.unpack(tensors, header), kept)

        return read_tensors(url, build, entry=_ENTRY, known=_FORMAT, kind="scorer", writer="OodScorer.save(path)")


class OodScorer:
    """Scores inputs, high where they are unlike those that it was calibrated with.

    Made by :meth:`fit` or :meth:`load`. The model is the user's own and is left as found.

    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> scorer = OodScorer.fit(model, torch.randn(200, 4))
    >>> bool(scorer(50 * torch.ones(1, 4))[0] > scorer.threshold(0.05))
    True
    """

    def __init__(
        self,
        model: nn.Module,
        kept: ScorerFile,
        *,
        forward: Callable[[Any], Tensor] | None = None,
        batch_size: int = 256,
    ) -> None:
        self.model, self._kept, self.batch_size = plain_model(model), kept, batch_size
        self._forward = forward or default_forward(self.model)
        self._device = device_of(self.model)
        self.rule = kept.rule.to(self._device)

    @classmethod
    def fit(
        cls,
        model: nn.Module,
        calibration: Any,
        *,
        base: Base = "margin",
        gate_weight: float = 1.0,
        head: str | None = None,
        forward: Callable[[Any], Tensor] | None = None,
        batch_size: int = 256,
        seed: int = 0,
    ) -> OodScorer:
        """Calibrate with in-distribution images: one forward pass in eval mode, then one factorisation per layer.

        A random half fits the score, the other half sets the thresholds; without the division alarms would be more
        frequent than stated.

        Args:
            model: a classifier with one linear head, or a 1x1 convolution that is averaged.
            calibration: 500 to 2,000 in-distribution images that the model was **not** trained on: a tensor, a
                dataset, a ``DataLoader``. Labels are not used.
            base: ``"margin"``, or ``"energy"`` for a network that fits its task badly.
            gate_weight: of the hidden layers; 0 leaves them out.
            head: its name, where it cannot be found.
            forward: from inputs to logits ``[B, C]``; ``model(inputs)`` by default.
            batch_size: images at once.
            seed: of the division.

        Raises:
            SgoifError: There are too few images, or the network's numbers for them are not finite.
        """
        plain = plain_model(model)
        run = forward or default_forward(plain)
        found, seen = extract_all_features(plain, run, calibration, head, batch_size, with_hidden=gate_weight != 0)
        rule, kept = _calibrate(seen, base, gate_weight, seed)
        file = ScorerFile(found, hash_weights(plain), rule.to("cpu"), kept)
        return cls(plain, file, forward=forward, batch_size=batch_size)

    def __call__(self, images: Any) -> NDArray[np.float64]:
        """Score images, ``[N]``, high is unlike: whatever :meth:`fit` takes, in its order."""
        return self._score(images)[1]

    def _score(self, images: Any) -> tuple[list[Any], NDArray[np.float64]]:
        """Ids and scores; nothing else of a batch is kept."""
        ids: list[Any] = []
        parts = [np.zeros(0)]
        with quiet_eval(self.model):
            for names, inputs in iterate_batches(images, self.batch_size):
                seen = extract_features(
                    self.model, self._forward, move_to(inputs, self._device), self._kept.head, self.layers
                )
                parts.append(self.rule.scores(seen).cpu().double().numpy())
                ids += names
        return ids, np.concatenate(parts)

    @property
    def layers(self) -> list[str]:
        """Hidden layers that are looked at."""
        return list(self.rule.hidden)

    @property
    def calibration(self) -> Conformal:
        """Scores of the in-distribution images that set the thresholds."""
        return self._kept.calibration

    def threshold(self, false_alarm_rate: float = 0.05) -> float:
        """The score above which an input is an alarm.

        An in-distribution input, drawn like the calibration images, raises one with probability at most
        ``false_alarm_rate``.

        Raises:
            SgoifError: The rate is below what so few images can promise.
        """
        return self.calibration.threshold(false_alarm_rate)

    def table(self, images: Any, *, false_alarm_rate: float = 0.05) -> pa.Table:
        """Rows of ``id``, ``score``, ``flag``, ``confidence`` and ``raw_score``, the farthest out first.

        ``score`` in [0, 1] is one minus the conformal p-value: the share of in-distribution images that are nearer.
        ``flag`` marks alarms, ``confidence`` how surely the image is on its side of the threshold, ``raw_score`` orders
        what is beyond all in-distribution images.
        """
        import pyarrow as pa

        ids, raw = self._score(images)
        order = np.argsort(-raw, kind="stable")
        columns = self.judge(raw[order], false_alarm_rate=false_alarm_rate)
        return pa.table({"id": [ids[i] for i in order], **columns})

    def judge(self, raw: NDArray[np.float64], *, false_alarm_rate: float = 0.05) -> dict[str, NDArray[Any]]:
        """The columns of :meth:`table` for scores that this scorer gave."""
        return {
            "score": 1.0 - self.calibration.p_values(raw),
            "flag": raw > self.threshold(false_alarm_rate),
            "confidence": self.calibration.confidence(raw, false_alarm_rate),
            "raw_score": raw,
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the scorer, without the model, as one safetensors file; a path or any fsspec URL."""
        self._kept.write(path)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        model: nn.Module,
        *,
        forward: Callable[[Any], Tensor] | None = None,
        batch_size: int = 256,
    ) -> OodScorer:
        """Read a scorer for the model that it was made with.

        Raises:
            SgoifError: There is none, it is damaged or from a newer sgoif, or the model has other weights.
        """
        kept = ScorerFile.read(path)
        check_weights(plain_model(model), kept.weights, None, "scorer")
        return cls(model, kept, forward=forward, batch_size=batch_size)


def _calibrate(seen: list[HeadFeatures], base: Base, gate_weight: float, seed: int) -> tuple[OodRule, Conformal]:
    count = sum(len(part.logits) for part in seen)
    if count < _LEAST:
        raise SgoifError(f"calibration needs {_LEAST} images at least, 500 to 2,000 for good, got {count}.")
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    whole, order = concatenate_features(seen), order.to(seen[0].logits.device)
    rule = OodRule.fit(whole.take(order[: count // 2]), base=base, gate_weight=gate_weight)
    scores = rule.scores(whole.take(order[count // 2 :]))
    return rule, Conformal(np.sort(scores.cpu().double().numpy()))
