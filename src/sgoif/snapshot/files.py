"""A snapshot as one safetensors file: tensors under plain names, everything else as JSON in its header.

No code runs when a stranger's file is read. ``safetensors`` alone reads it too: the header's ``sgoif`` entry is JSON.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sgoif.evidence import (
    CalibrationDraws,
    Canaries,
    CanaryCalibration,
    LabelCalibration,
    LargestPredictions,
    WatchedNoise,
)
from sgoif.evidence.logistic import Logistic
from sgoif.files.sealed import read_header, read_sealed, write_sealed
from sgoif.influence import ClassAnchors, HeadJudge
from sgoif.influence.scoring import KnownAnchors
from sgoif.snapshot.snapshot import About, Snapshot

__all__ = ["FORMAT", "decode_snapshot", "encode_snapshot", "read_snapshot", "write_snapshot"]

FORMAT = 5

Tensors = dict[str, Tensor]

_CANARIES = [field.name for field in fields(Canaries) if field.name != "num_classes"]
_FITTED = ("centre", "scale", "slopes", "class_intercepts", "intercept", "prior", "shift")


def write_snapshot(snapshot: Snapshot, url: str | os.PathLike[str]) -> None:
    """Write a snapshot to a path or any fsspec URL, so that it is there in full or not at all."""
    write_sealed(url, encode_snapshot(snapshot))


def read_snapshot(url: str | os.PathLike[str], device: torch.device | str = "cpu") -> Snapshot:
    """Read a snapshot.

    Raises:
        SgoifError: There is none, or it is of another format, or damaged.
    """
    return read_sealed(
        url, lambda data: decode_snapshot(data, device), kind="snapshot", writer="monitor.snapshot(path)"
    )


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """The bytes of a snapshot's file."""
    from safetensors.torch import save

    judge, tensors = snapshot.judge, dict[str, Tensor]()
    assert judge.directions is not None
    tracked, plain, solved = judge.directions.chunk(3)
    tensors |= {"directions/tracked": tracked, "directions/plain": plain, "directions/solved": solved}
    tensors |= {"anchors/known": ~judge.known.absent, "holdout/id_hash": torch.from_numpy(snapshot.held_out)}
    tensors |= {} if judge.confidence is None else {"anchors/confidence": judge.confidence}
    tensors |= {} if judge.probe is None else {"probe/weight": judge.probe}
    if judge.class_anchors is not None:
        tensors |= {f"class_anchors/{name}": value for name, value in judge.class_anchors.tensors().items()}
    if snapshot.canaries is not None:
        tensors |= {f"canaries/{name}": _tensor(getattr(snapshot.canaries, name)) for name in _CANARIES}
    if snapshot.calibration is not None:
        tensors |= _calibration_tensors(snapshot.calibration, snapshot.draws)
    if snapshot.noise is not None:
        tensors |= {"noise/transition": _tensor(snapshot.noise.transition)}
        tensors |= {"noise/raised": torch.tensor(snapshot.noise.raised, dtype=torch.float64)}
    if snapshot.predictions is not None:
        tensors |= {"holdout/predicted_labels": _tensor(snapshot.predictions.labels)}
        tensors |= {"holdout/predicted_p": _tensor(snapshot.predictions.probabilities)}
    tensors |= {} if snapshot.may_doubt is None else {"canaries/may_doubt": _tensor(snapshot.may_doubt)}
    header = {"format": FORMAT, "weighting": judge.weighting, **asdict(snapshot.about)}
    whole = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    return bytes(save(whole, {"sgoif": json.dumps(header)}))


def decode_snapshot(data: bytes, device: torch.device | str = "cpu") -> Snapshot:
    """A snapshot from the bytes of its file."""
    from safetensors.torch import load

    header = read_header(data, entry="sgoif", kind="snapshot", known=FORMAT)
    weighting = header.pop("weighting")
    tensors: Tensors = load(data)
    known = tensors["anchors/known"].to(device)
    kinds = [tensors[f"directions/{kind}"] for kind in ("tracked", "plain", "solved")]
    directions = torch.cat(kinds).to(device)
    class_anchors = {
        name.split("/", 1)[1]: value.to(device) for name, value in tensors.items() if name.startswith("class_anchors/")
    }
    judge = HeadJudge(
        directions,
        KnownAnchors.of(known, directions.dtype),
        _move(tensors.get("anchors/confidence"), device),
        _move(tensors.get("probe/weight"), device),
        ClassAnchors.from_tensors(class_anchors) if class_anchors else None,
        weighting,
    )
    for name in ("class_names", "held_out_per_class"):
        header[name] = tuple(header[name])
    header["scales"] = {name: tuple(pair) for name, pair in header["scales"].items()}
    about = About(**header)
    canaries = _read_canaries(tensors, about.num_classes)
    calibration, draws = _read_calibration(tensors, canaries)
    doubted = tensors.get("canaries/may_doubt")
    noise = None
    if "noise/raised" in tensors:
        noise = WatchedNoise(tensors["noise/transition"].numpy(), float(tensors["noise/raised"]))
    held = tensors["holdout/id_hash"].numpy()
    return Snapshot(
        about,
        judge,
        canaries,
        calibration,
        draws,
        predictions=_read_predictions(tensors),
        may_doubt=None if doubted is None else doubted.numpy(),
        noise=noise,
        held_out=held,
    )


def _calibration_tensors(calibration: LabelCalibration, draws: CalibrationDraws | None) -> Tensors:
    sides: dict[str, tuple[CanaryCalibration, ...]] = {"believed": (calibration.believed,)}
    sides |= {} if calibration.as_given is None else {"as_given": (calibration.as_given,)}
    if draws is not None:
        sides |= {"draws_upper": draws.upper}
        sides |= {} if draws.lower is draws.upper else {"draws_lower": draws.lower}
    tensors = {"calibration/transition": _tensor(calibration.transition)}
    tensors["calibration/is_counted"] = torch.tensor(calibration.is_counted)
    for side, fits in sides.items():
        for name in _FITTED:
            values = [np.asarray(getattr(fit if hasattr(fit, name) else fit.model, name)) for fit in fits]
            tensors[f"calibration/{side}/{name}"] = _tensor(np.stack(values))
    return tensors


def _read_calibration(
    tensors: Tensors, canaries: Canaries | None
) -> tuple[LabelCalibration | None, CalibrationDraws | None]:
    if canaries is None or "calibration/transition" not in tensors:
        return None, None
    believed, as_given = _read_side(tensors, "believed"), _read_side(tensors, "as_given")
    transition = tensors["calibration/transition"].numpy()
    calibration = LabelCalibration(
        canaries,
        transition,
        believed[0],
        as_given[0] if as_given else None,
        is_counted=bool(tensors["calibration/is_counted"]),
    )
    upper = _read_side(tensors, "draws_upper")
    return calibration, CalibrationDraws(_read_side(tensors, "draws_lower") or upper, upper) if upper else None


def _read_side(tensors: Tensors, side: str) -> tuple[CanaryCalibration, ...]:
    if f"calibration/{side}/centre" not in tensors:
        return ()
    values = {name: tensors[f"calibration/{side}/{name}"].numpy() for name in _FITTED}
    return tuple(
        CanaryCalibration(
            values["centre"][i],
            values["scale"][i],
            Logistic(float(values["intercept"][i]), values["slopes"][i], values["class_intercepts"][i]),
            float(values["prior"][i]),
            values["shift"][i],
        )
        for i in range(len(values["centre"]))
    )


def _read_canaries(tensors: Tensors, num_classes: int) -> Canaries | None:
    if "canaries/label" not in tensors:
        return None
    columns: Mapping[str, Any] = {name: tensors[f"canaries/{name}"].numpy() for name in _CANARIES}
    return Canaries(**columns, num_classes=num_classes)


def _read_predictions(tensors: Tensors) -> LargestPredictions | None:
    if "holdout/predicted_labels" not in tensors:
        return None
    return LargestPredictions(*(tensors[f"holdout/predicted_{name}"].numpy() for name in ("labels", "p")))


def _tensor(values: Any) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values))


def _move(value: Tensor | None, device: torch.device | str) -> Tensor | None:
    return None if value is None else value.to(device)
