"""A sentinel and where it stands in its stream, as one safetensors file; the model is not in it, only a hash."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor

from sgoif.files.sealed import read_header, read_sealed, write_sealed
from sgoif.ood.files import packed_rule, unpacked_rule
from sgoif.shift.sequential import Memory, Tail
from sgoif.shift.statistics import StreamParts
from sgoif.shift.whitening import Coordinates

__all__ = ["FORMAT", "SentinelFile", "read_sentinel", "write_sentinel"]

FORMAT = 1
_ENTRY = "sgoif_shift"  # of the header


@dataclass(frozen=True, slots=True)
class SentinelFile:
    """All of a sentinel but the model."""

    head: str
    weights: str  # hash, see hash_weights
    parts: StreamParts
    tails: Mapping[str, Tail]
    calibrated: int  # images
    batch_size: int  # that the tails are for
    false_alarms: float  # per batch
    memory: Memory
    num_batches: int  # seen so far

    def at(self, memory: Memory, num_batches: int) -> SentinelFile:
        """The same, elsewhere in its stream."""
        return replace(self, memory=memory, num_batches=num_batches)


def write_sentinel(kept: SentinelFile, url: str | os.PathLike[str]) -> None:
    """Write a sentinel to a path or any fsspec URL, so that it is there in full or not at all."""
    from safetensors.torch import save

    tensors, rule = packed_rule(kept.parts.rule)
    for name, part in kept.parts.coordinates.items():
        fields = {"mean": part.mean, "whitener": part.whitener, "low": part.low, "high": part.high}
        tensors |= {f"part/{name}/{field}": value.contiguous() for field, value in fields.items()}
    memory = kept.memory
    tensors |= {"memory/sums": torch.tensor(memory.sums), "memory/counts": torch.tensor(memory.counts)}
    header = {
        "format": FORMAT,
        "head": kept.head,
        "weights": kept.weights,
        "rule": rule,
        "layer_scales": dict(kept.parts.layer_scales),
        "parts": list(kept.parts.coordinates),
        "tails": {name: asdict(tail) for name, tail in kept.tails.items()},
        "calibrated": kept.calibrated,
        "batch_size": kept.batch_size,
        "false_alarms": kept.false_alarms,
        "num_batches": kept.num_batches,
    }
    write_sealed(url, bytes(save(tensors, {_ENTRY: json.dumps(header)})))


def read_sentinel(url: str | os.PathLike[str]) -> SentinelFile:
    """Read a sentinel.

    Raises:
        SgoifError: There is none, or it was written by a newer sgoif, or is damaged.
    """
    return read_sealed(url, _decoded, kind="sentinel", writer="ShiftSentinel.save(path)")


def _decoded(data: bytes) -> SentinelFile:
    from safetensors.torch import load

    header = read_header(data, entry=_ENTRY, kind="sentinel", newest=FORMAT)
    tensors = load(data)
    coordinates = {name: _coordinates(tensors, name) for name in header["parts"]}
    return SentinelFile(
        header["head"],
        header["weights"],
        StreamParts(unpacked_rule(tensors, header["rule"]), header["layer_scales"], coordinates),
        {name: Tail(**tail) for name, tail in header["tails"].items()},
        header["calibrated"],
        header["batch_size"],
        header["false_alarms"],
        Memory(tensors["memory/sums"].numpy(), tensors["memory/counts"].numpy()),
        header["num_batches"],
    )


def _coordinates(tensors: Mapping[str, Tensor], name: str) -> Coordinates:
    return Coordinates(*(tensors[f"part/{name}/{field}"] for field in ("mean", "whitener", "low", "high")))
