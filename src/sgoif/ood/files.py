"""A scorer as one safetensors file: tensors under plain names, the rest as JSON in its header. No code runs on reading.

The model is not in it, only a hash of its weights.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from sgoif.adaptors.conformal import Conformal
from sgoif.adaptors.leverage import Leverage
from sgoif.adaptors.ood import OodRule, Scale
from sgoif.snapshot.sealed import read_header, read_sealed, write_sealed

__all__ = ["FORMAT", "ScorerFile", "read_scorer", "write_scorer"]

FORMAT = 1
_ENTRY = "sgoif_ood"  # of the header


@dataclass(frozen=True, slots=True)
class ScorerFile:
    """All of a scorer but the model."""

    head: str
    weights: str  # hash, see hash_weights
    rule: OodRule
    calibration: Conformal


def write_scorer(kept: ScorerFile, url: str | os.PathLike[str]) -> None:
    """Write a scorer to a path or any fsspec URL, so that it is there in full or not at all."""
    from safetensors.torch import save

    rule = kept.rule
    tensors: dict[str, Tensor] = {"calibration": torch.from_numpy(kept.calibration.scores)}
    for name, part in _parts(rule).items():
        tensors |= {f"{name}/mean": part.mean.contiguous(), f"{name}/whitener": part.whitener.contiguous()}
    header = {
        "format": FORMAT,
        "head": kept.head,
        "weights": kept.weights,
        "count": rule.head.count,
        "base": rule.base,
        "gate_weight": rule.gate_weight,
        "base_scale": asdict(rule.base_scale),
        "gate": asdict(rule.gate),
        "hidden": {name: asdict(scale) for name, scale in rule.hidden_scales.items()},
    }
    write_sealed(url, bytes(save(tensors, {_ENTRY: json.dumps(header)})))


def read_scorer(url: str | os.PathLike[str]) -> ScorerFile:
    """Read a scorer.

    Raises:
        SgoifError: There is none, or it was written by a newer sgoif, or is damaged.
    """
    return read_sealed(url, _decoded, kind="scorer", writer="OodScorer.save(path)")


def _decoded(data: bytes) -> ScorerFile:
    from safetensors.torch import load

    header = read_header(data, entry=_ENTRY, kind="scorer", newest=FORMAT)
    tensors = load(data)

    def part(name: str, *, is_centred: bool) -> Leverage:
        return Leverage(tensors[f"{name}/mean"], tensors[f"{name}/whitener"], header["count"], is_centred)

    rule = OodRule(
        part("head", is_centred=False),
        {name: part(f"hidden/{name}", is_centred=True) for name in header["hidden"]},
        header["base"],
        header["gate_weight"],
        Scale(**header["base_scale"]),
        {name: Scale(**scale) for name, scale in header["hidden"].items()},
        Scale(**header["gate"]),
    )
    return ScorerFile(header["head"], header["weights"], rule, Conformal(tensors["calibration"].numpy()))


def _parts(rule: OodRule) -> dict[str, Leverage]:
    return {"head": rule.head, **{f"hidden/{name}": part for name, part in rule.hidden.items()}}
