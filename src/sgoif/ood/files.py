"""A scorer as one safetensors file: tensors under plain names, the rest as JSON in its header. No code runs on reading.

The model is not in it, only a hash of its weights.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from sgoif.adaptors.conformal import Conformal
from sgoif.adaptors.leverage import Leverage
from sgoif.adaptors.ood import OodRule, Scale
from sgoif.errors import SgoifError

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

    from sgoif.store.places import place_of

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
    folder, name = os.path.split(os.fspath(url))
    place_of(folder or ".").write(name, bytes(save(tensors, {_ENTRY: json.dumps(header)})))


def read_scorer(url: str | os.PathLike[str]) -> ScorerFile:
    """Read a scorer.

    Raises:
        SgoifError: There is none, or it was written by a newer sgoif, or is damaged.
    """
    from sgoif.store.places import place_of

    folder, name = os.path.split(os.fspath(url))
    try:
        data = place_of(folder or ".").read(name)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise SgoifError(f"there is no scorer '{url}'; `OodScorer.save(path)` writes one.") from error
    try:
        return _decoded(data)
    except SgoifError:
        raise
    except Exception as error:  # whatever a damaged file makes of its readers
        raise SgoifError(f"'{url}' cannot be read as a scorer: {type(error).__name__}: {error}") from error


def _decoded(data: bytes) -> ScorerFile:
    from safetensors.torch import load

    size = int.from_bytes(data[:8], "little")
    metadata = json.loads(data[8 : 8 + size]).get("__metadata__", {})
    if _ENTRY not in metadata:
        raise SgoifError(f"this safetensors file is no scorer: its header has no entry `{_ENTRY}`.")
    header: dict[str, Any] = json.loads(metadata[_ENTRY])
    found = header["format"]
    if not isinstance(found, int) or found > FORMAT:
        raise SgoifError(f"the scorer has format {found}, this sgoif reads up to {FORMAT}; install a newer one.")
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
