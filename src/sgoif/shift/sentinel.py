"""A sentinel over a stream of inputs: fed batch after batch, it says when their distribution has shifted."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from sgoif.errors import SgoifError
from sgoif.features.extraction import (
    concatenate_features,
    device_of,
    extract_all_features,
    extract_features,
    iterate_batches,
)
from sgoif.features.rule import OodRule
from sgoif.files.sealed import read_tensors, write_tensors
from sgoif.gradients import quiet_eval
from sgoif.gradients.fingerprint import check_weights, hash_weights
from sgoif.gradients.models import default_forward, plain_model
from sgoif.inputs.items import move_to, take_apart
from sgoif.shift.null_streams import learn_tails
from sgoif.shift.sequential import Memory, Tail, find_shift, longest_window
from sgoif.shift.statistics import Coordinates, StreamParts

__all__ = ["ShiftReading", "ShiftSentinel"]

_LEAST = 100  # calibration images: below, variances of 32 directions mean nothing
_MOST = 20_000  # that count: more make means better still, but playing streams from them takes minutes
_RAREST = 1e12  # batches: what is rarer is not told apart
_FORMAT, _ENTRY = 1, "sgoif_shift"  # of the file's header
_PLAIN = ("head", "weights", "calibrated", "batch_size", "false_alarms", "num_batches")  # in the header as they are


@dataclass(frozen=True, slots=True)
class SentinelFile:
    """All of a sentinel but the model, and where it stands in its stream, as one safetensors file holds it."""

    head: str
    weights: str  # hash, see hash_weights
    parts: StreamParts
    tails: Mapping[str, Tail]
    calibrated: int  # images
    batch_size: int  # that the tails are for
    false_alarms: float  # per batch
    memory: Memory
    num_batches: int  # seen so far

    def write(self, url: str | os.PathLike[str]) -> None:
        """Write to a path or any fsspec URL, so that the file is there in full or not at all."""
        tensors, rule = self.parts.rule.pack()
        for name, part in self.parts.coordinates.items():
            tensors |= {f"part/{name}/{field}": getattr(part, field).contiguous() for field in _COORDINATES}
        memory = {"sums": torch.tensor(self.memory.sums), "counts": torch.tensor(self.memory.counts)}
        header = {
            "format": _FORMAT,
            **{name: getattr(self, name) for name in _PLAIN},
            "rule": rule,
            "layer_scales": dict(self.parts.layer_scales),
            "parts": list(self.parts.coordinates),
            "tails": {name: asdict(tail) for name, tail in self.tails.items()},
        }
        write_tensors(url, tensors | {f"memory/{name}": part for name, part in memory.items()}, header, entry=_ENTRY)

    @classmethod
    def read(cls, url: str | os.PathLike[str]) -> SentinelFile:
        """Read a sentinel."""

        def build(tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> SentinelFile:
            coordinates = {
                name: Coordinates(*(tensors[f"part/{name}/{field}"] for field in _COORDINATES))
                for name in header["parts"]
            }
            return cls(
                parts=StreamParts(OodRule.unpack(tensors, header["rule"]), header["layer_scales"], coordinates),
                tails={name: Tail(**tail) for name, tail in header["tails"].items()},
                memory=Memory(tensors["memory/sums"].numpy(), tensors["memory/counts"].numpy()),
                **{name: header[name] for name in _PLAIN},
            )

        return read_tensors(url, build, entry=_ENTRY, known=_FORMAT, kind="sentinel", writer="ShiftSentinel.save(path)")


_COORDINATES = [field.name for field in fields(Coordinates)]


@dataclass(frozen=True, slots=True)
class ShiftReading:
    """What the stream looks like after a batch."""

    batch: int  # counted from 1
    once_in: float  # an in-distribution stream looks as unusual once in so many batches
    nearness: float  # to the alarm: 0 for nothing at all, 1 at the alarm
    is_alarm: bool
    part: str  # that moved most: "unlike", "classes" or "features"
    changed_at: int  # the first batch after the likeliest change
    parts: Mapping[str, float]  # `once_in` by part


class ShiftSentinel:
    """Watches a stream of batches, and raises a false alarm once in ``1 / false_alarms`` of them.

    Made by :meth:`fit` or :meth:`load`. The model is the user's own and is left as found.

    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> sentinel = ShiftSentinel.fit(model, torch.randn(400, 4), batch_size=20)
    >>> [sentinel.update(torch.randn(20, 4)).is_alarm for _ in range(3)]
    [False, False, False]
    >>> [sentinel.update(torch.randn(20, 4) + 2).is_alarm for _ in range(3)][-1]
    True
    """

    def __init__(self, model: nn.Module, kept: SentinelFile, *, forward: Callable[[Any], Tensor] | None = None) -> None:
        self.model, self._kept = plain_model(model), kept
        self._forward = forward or default_forward(self.model)
        self._device = device_of(self.model)
        self._parts = kept.parts.to(self._device)
        self._longest = longest_window(kept.calibrated, kept.batch_size)

    @classmethod
    def fit(
        cls,
        model: nn.Module,
        calibration: Any,
        *,
        batch_size: int = 64,
        false_alarms: float = 1 / 10_000,
        head: str | None = None,
        forward: Callable[[Any], Tensor] | None = None,
        seed: int = 0,
    ) -> ShiftSentinel:
        """Calibrate with in-distribution images: one forward pass in eval mode, then some seconds for the rate.

        Args:
            model: a classifier with one linear head, or a 1x1 convolution that is averaged.
            calibration: 2,000 to 20,000 in-distribution images that the model was **not** trained on: a tensor, a
                dataset, a ``DataLoader``. Labels are not used. More images find smaller shifts.
            batch_size: of the batches that will come, for which the rate is stated.
            false_alarms: alarms per batch while nothing has changed.
            head: its name, where it cannot be found.
            forward: from inputs to logits ``[B, C]``; ``model(inputs)`` by default.
            seed: of the streams that are played.

        Raises:
            SgoifError: There are too few images, the network's numbers for them are not finite, or the rate is none.
        """
        plain, rate = plain_model(model), _check_rate(false_alarms)
        found, looks = extract_all_features(plain, forward or default_forward(plain), calibration, head, batch_size)
        num_images = sum(len(part.logits) for part in looks)
        if num_images < _LEAST:
            raise SgoifError(f"calibration needs {_LEAST} images at least, 2,000 for good, got {num_images}.")
        calibrated = min(num_images, _MOST)
        longest_window(calibrated, batch_size)  # a batch that is too large is refused before the work
        parts, coordinates = StreamParts.fit(concatenate_features(looks))
        chosen = torch.randperm(num_images, generator=torch.Generator().manual_seed(seed))[:calibrated]
        tails = learn_tails(coordinates.cpu()[chosen], parts.sizes, batch_size, seed=seed)
        start = Memory.empty(parts.sizes), 0
        settings = tails, calibrated, batch_size, rate
        file = SentinelFile(found, hash_weights(plain), parts.to("cpu"), *settings, *start)
        return cls(plain, file, forward=forward)

    def update(self, batch: Any) -> ShiftReading:
        """Take the next batch: inputs, or a tuple that begins with them. One forward pass in eval mode.

        Raises:
            SgoifError: The batch is empty.
        """
        inputs = take_apart(batch).input
        with quiet_eval(self.model):
            layers = list(self._parts.rule.hidden)
            seen = extract_features(self.model, self._forward, move_to(inputs, self._device), self._kept.head, layers)
        if not len(seen.logits):
            raise SgoifError("the batch is empty.")
        memory = self._kept.memory.after(self._parts.of(seen).cpu().double().numpy(), self._longest)
        self._kept = replace(self._kept, memory=memory, num_batches=self._kept.num_batches + 1)
        return self._reading()

    def watch(self, images: Any) -> Iterator[ShiftReading]:
        """Take all batches of a stream: a ``DataLoader``, or what :meth:`fit` takes, cut into batches.

        Only the model's pass is guarded: a loader that shuffles draws random numbers, as it would without a sentinel.
        """
        for _, inputs in iterate_batches(images, self.batch_size):
            yield self.update(inputs)

    def reset(self) -> None:
        """Forget the stream, after an alarm that was looked into, or before another stream; batches count on."""
        self._kept = replace(self._kept, memory=Memory.empty(self._parts.sizes))

    @property
    def batch_size(self) -> int:
        """Of the batches for which the rate is stated."""
        return self._kept.batch_size

    @property
    def false_alarms(self) -> float:
        """Alarms per batch while nothing has changed."""
        return self._kept.false_alarms

    @property
    def num_batches(self) -> int:
        """Batches seen so far."""
        return self._kept.num_batches

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the sentinel and where it stands, without the model, as one safetensors file; a path or fsspec URL."""
        self._kept.write(path)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        model: nn.Module,
        *,
        false_alarms: float | None = None,
        forward: Callable[[Any], Tensor] | None = None,
    ) -> ShiftSentinel:
        """Read a sentinel for the model that it was made with; it goes on where it was saved.

        Args:
            path: or any fsspec URL.
            model: with the same weights.
            false_alarms: another rate than that of the file.
            forward: as for :meth:`fit`.

        Raises:
            SgoifError: There is none, it is damaged or from a newer sgoif, or the model has other weights.
        """
        kept = SentinelFile.read(path)
        check_weights(plain_model(model), kept.weights, None, "sentinel")
        if false_alarms is not None:
            kept = replace(kept, false_alarms=_check_rate(false_alarms))
        return cls(model, kept, forward=forward)

    def _reading(self) -> ShiftReading:
        kept = self._kept
        found = find_shift(kept.memory, self._parts.sizes, kept.tails, kept.calibrated)
        rarest = found.log_once_in[found.part]
        nearness = max(0.0, rarest / -math.log(kept.false_alarms))
        return ShiftReading(
            kept.num_batches,
            _batches(rarest),
            nearness,
            nearness >= 1.0,
            found.part,
            kept.num_batches - found.window + 1,
            {name: _batches(value) for name, value in found.log_once_in.items()},
        )


def _batches(log_once_in: float) -> float:
    return math.exp(min(max(log_once_in, 0.0), math.log(_RAREST)))


def _check_rate(false_alarms: float) -> float:
    if not 0 < false_alarms < 0.5:
        raise SgoifError(f"false_alarms is a share of batches, such as 1/10,000, got {false_alarms}.")
    return float(false_alarms)
