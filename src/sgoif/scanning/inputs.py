"""What labels are judged by: embeddings that are given, made by a backbone, or made of texts and columns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sgoif.backbones import describe_backbones, load_encoder
from sgoif.errors import SgoifError
from sgoif.evidence import EMBEDDINGS_NEARLY_SAME
from sgoif.scanning import Progress
from sgoif.scanning.embeddings import sketch_rows
from sgoif.scanning.examples import ScanExamples, read_embeddings, read_text_embeddings
from sgoif.scanning.features import order_of
from sgoif.scanning.rows import make_features, read_vectors
from sgoif.scanning.standardise import check_features
from sgoif.sources.labelled import Source, TableSource

__all__ = ["Inputs", "Means", "make_inputs"]

Way = Literal["features", "backbone", "text", "table"]


@dataclass(frozen=True, slots=True)
class Means:
    """What the user gives to judge examples by; nothing of it is needed."""

    features: Any = None  # an array [N, D], a file, or a column of lists
    feature_ids: str | Path | None = None
    backbone: str | None = None
    weights: str | Path | None = None
    device: str = "cpu"


class Inputs(NamedTuple):
    """Embeddings, of the examples that have one."""

    rows: NDArray[Any]  # [N, D]
    found: ScanExamples
    path: Way
    notes: tuple[str, ...] = ()
    order: str | None = None  # by what given embeddings belong to examples


def make_inputs(source: Source, found: ScanExamples, means: Means, out: str | None, progress: Progress) -> Inputs:
    """Take the embeddings that are given, or make some of what the examples are.

    Raises:
        SgoifError: They cannot be read or made, as those of pictures without a backbone; or what is given contradicts
            itself.
    """
    if means.features is not None and means.backbone is not None:
        raise SgoifError("features and a backbone were both named; pass one of them.")
    table = source if isinstance(source, TableSource) else None
    if means.features is not None:
        return _take_features(source, found, means, progress)
    if means.backbone is not None:
        return _embed(source, found, means, out, progress)
    if table is not None and table.roles.vector is not None:
        return _by_rows(read_vectors(table, table.roles.vector), found, "by row of the table")
    if source.kind == "text":
        assert table is not None
        note = (
            "Texts are judged by hashed words and character sequences. A sentence encoder finds more: pass --backbone "
            "sentence:NAME or hf:NAME; `sgoif doctor` says what is installed."
        )
        return _embed_texts(table, found, None, out, progress, (note,))
    if source.kind == "row":
        assert table is not None
        made = make_features(table)
        inputs = _by_rows(made.rows, found, None)
        return inputs._replace(path="table", notes=made.notes)
    raise _ask_for_backbone()


def _ask_for_backbone() -> SgoifError:
    """What to pass for pictures, which nothing here can judge by itself."""
    here = [dict(one.suggested)["pictures"] for one in describe_backbones() if "pictures" in one.recommended]
    way = f"--backbone {here[0]}" if here else "--backbone timm:tf_efficientnet_lite0, after pip install timm"
    return SgoifError(
        f"pictures are judged by what a pretrained model sees of them: name one ({way}; `sgoif doctor` lists others), "
        "pass embeddings that you have with --features FILE, or watch your own training with sgoif.watch()."
    )


def _take_features(source: Source, found: ScanExamples, means: Means, progress: Progress) -> Inputs:
    features = means.features
    if not isinstance(features, str | Path):
        rows = check_features(features, len(source.ids), "features")
        return _by_rows(np.asarray(rows), found, _by_position(source))
    if isinstance(source, TableSource) and str(features) in source.reader.schema.names:
        return _by_rows(read_vectors(source, str(features)), found, "by row of the table")
    rows, kept = read_embeddings(source, found, features, means.feature_ids, None, None, progress)
    return Inputs(rows, kept, "features", order=order_of(features, means.feature_ids, source.ids))


def _by_position(source: Source) -> str:
    return f"by position: row 0 is {str(source.ids[0])!r}, the last row is {str(source.ids[-1])!r}"


def _by_rows(rows: NDArray[Any], found: ScanExamples, order: str | None) -> Inputs:
    """One row for each example of the source, with a label or without."""
    mine = rows[found.positions]
    kept = found.add_sketches(sketch_rows(mine, found.ids), EMBEDDINGS_NEARLY_SAME)
    return Inputs(mine, kept, "features", order=order)


def _embed(source: Source, found: ScanExamples, means: Means, out: str | None, progress: Progress) -> Inputs:
    assert means.backbone is not None
    if source.kind == "row":
        raise SgoifError(
            f"the backbone {means.backbone!r} needs pictures or texts, and the data has none: name their column with "
            "--image or --text."
        )
    if source.kind == "picture":
        options: dict[str, Any] = {"weights": means.weights, "device": means.device}
        rows, kept = read_embeddings(source, found, None, None, means.backbone, out, progress, **options)
        return Inputs(rows, kept, "backbone")
    assert isinstance(source, TableSource)
    encoder = load_encoder(means.backbone, takes="texts", weights=means.weights, device=means.device)
    return _embed_texts(source, found, encoder, out, progress, ())


def _embed_texts(
    source: TableSource, found: ScanExamples, encoder: Any, out: str | None, progress: Progress, notes: tuple[str, ...]
) -> Inputs:
    options: dict[str, Any] = {"files": source.files or None, "out": out, "progress": progress}
    rows, kept, truncated = read_text_embeddings(partial(source.texts, found.positions), found, encoder, **options)
    if truncated:
        notes = (*notes, f"Of {truncated:,} long texts the model read the beginning only.")
    return Inputs(rows, kept, "text" if encoder is None else "backbone", notes)
