"""A snapshot as one safetensors file: tensors under plain names, everything else as JSON in its header.

No code runs when a stranger's file is read. ``safetensors`` alone reads it too: the header's ``sgoif`` entry is JSON.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sgoif.files.sealed import read_header, read_sealed, write_sealed
from sgoif.influence import ClassAnchors, HeadJudge
from sgoif.influence.scoring import KnownAnchors
from sgoif.judging.judge import Judge
from sgoif.judging.observations import Heldout
from sgoif.judging.predictions import TopPredictions
from sgoif.judging.probe import Probe
from sgoif.judging.sealed import judge_from_plain, judge_to_plain
from sgoif.snapshot.snapshot import About, Snapshot

__all__ = ["FORMAT", "decode_snapshot", "encode_snapshot", "read_snapshot", "write_snapshot"]

FORMAT = 6
_PROBE = ("centre", "scale", "weights")

Tensors = dict[str, Tensor]


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
    header: dict[str, Any] = {"format": FORMAT, "weighting": judge.weighting, **asdict(snapshot.about)}
    if snapshot.heldout is not None:
        held = snapshot.heldout
        tensors |= {"holdout/labels": _tensor(held.labels), **_predicted("predicted", held.predictions)}
        tensors |= {} if held.probe is None else _predicted("probed", held.probe)
    if snapshot.probe is not None:
        tensors |= {f"label_probe/{name}": getattr(snapshot.probe, name) for name in _PROBE}
    if snapshot.labels is not None:
        arrays, header["label_judge"] = judge_to_plain(snapshot.labels)
        tensors |= {f"label_judge/{name}": _tensor(values) for name, values in arrays.items()}
    whole = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    return bytes(save(whole, {"sgoif": json.dumps(header)}))


def decode_snapshot(data: bytes, device: torch.device | str = "cpu") -> Snapshot:
    """A snapshot from the bytes of its file."""
    from safetensors.torch import load

    header = read_header(data, entry="sgoif", kind="snapshot", known=FORMAT)
    weighting, judge_document = header.pop("weighting"), header.pop("label_judge", None)
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
    heldout, labels = _read_heldout(tensors, about), _read_judge(tensors, judge_document)
    held_out, probe = tensors["holdout/id_hash"].numpy(), _read_probe(tensors, device)
    return Snapshot(about, judge, heldout, labels, held_out, probe)


def _read_heldout(tensors: Tensors, about: About) -> Heldout | None:
    if "holdout/labels" not in tensors:
        return None
    predictions, probed = (_read_predicted(kind, tensors, about) for kind in ("predicted", "probed"))
    assert predictions is not None
    labels = tensors["holdout/labels"].numpy()
    return Heldout(labels=labels, predictions=predictions, trusted=about.trusted, probe=probed)


def _predicted(kind: str, predictions: TopPredictions) -> Tensors:
    names = f"holdout/{kind}_labels", f"holdout/{kind}_p"
    return dict(zip(names, (_tensor(predictions.labels), _tensor(predictions.p)), strict=True))


def _read_predicted(kind: str, tensors: Tensors, about: About) -> TopPredictions | None:
    if f"holdout/{kind}_labels" not in tensors:
        return None
    labels, p = (tensors[f"holdout/{kind}_{name}"].numpy() for name in ("labels", "p"))
    return TopPredictions(labels, p, about.num_classes)


def _read_probe(tensors: Tensors, device: torch.device | str) -> Probe | None:
    if "label_probe/weights" not in tensors:
        return None
    centre, scale, weights = (tensors[f"label_probe/{name}"].to(device) for name in _PROBE)
    return Probe(centre, scale, weights, torch.zeros(0, weights.shape[1]))


def _read_judge(tensors: Tensors, document: Mapping[str, Any] | None) -> Judge | None:
    if document is None:
        return None
    start = "label_judge/"
    arrays = {name.removeprefix(start): t.numpy() for name, t in tensors.items() if name.startswith(start)}
    return judge_from_plain(arrays, document)


def _tensor(values: Any) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values))


def _move(value: Tensor | None, device: torch.device | str) -> Tensor | None:
    return None if value is None else value.to(device)
