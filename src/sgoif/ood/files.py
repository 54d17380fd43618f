"""A scorer as one safetensors file: tensors under plain names, the rest as JSON in its header. No code runs on reading.

The model is not in it, only a hash of its weights.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from sgoif.files.sealed import read_header, read_sealed, write_sealed
from sgoif.ood.conformal import Conformal
from sgoif.ood.leverage import Leverage
from sgoif.ood.rule import OodRule, Scale

__all__ = ["FORMAT", "ScorerFile", "packed_rule", "read_scorer", "unpacked_rule", "write_scorer"]

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

    tensors, said = packed_rule(kept.rule)
    tensors["calibration"] = torch.from_numpy(kept.calibration.scores)
    header = {"format": FORMAT, "head": kept.head, "weights": kept.weights, **said}
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
    rule = unpacked_rule(tensors, header)
    return ScorerFile(header["head"], header["weights"], rule, Conformal(tensors["calibration"].numpy()))


def packed_rule(rule: OodRule) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """A rule as named tensors, and what goes into a header of JSON."""
    tensors: dict[str, Tensor] = {}
    for name, part in _parts(rule).items():
        tensors |= {f"{name}/mean": part.mean.contiguous(), f"{name}/whitener": part.whitener.contiguous()}
    return tensors, {
        "count": rule.head.count,
        "base": rule.base,
        "gate_weight": rule.gate_weight,
        "base_scale": asdict(rule.base_scale),
        "gate": asdict(rule.gate),
        "hidden": {name: asdict(scale) for name, scale in rule.hidden_scales.items()},
    }


def unpacked_rule(tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> OodRule:
    """The rule of :func:`packed_rule`."""

    def part(name: str, *, is_centred: bool) -> Leverage:
        return Leverage(tensors[f"{name}/mean"], tensors[f"{name}/whitener"], header["count"], is_centred)

    return OodRule(
        part("head", is_centred=False),
        {name: part(f"hidden/{name}", is_centred=True) for name in header["hidden"]},
        header["base"],
        header["gate_weight"],
        Scale(**header["base_scale"]),
        {name: Scale(**scale) for name, scale in header["hidden"].items()},
        Scale(**header["gate"]),
    )


def _parts(rule: OodRule) -> dict[str, Leverage]:
    return {"head": rule.head, **{f"hidden/{name}": part for name, part in rule.hidden.items()}}
