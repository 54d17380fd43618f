"""Stored pictures, which need no labels, read and scored batch after batch: a folder of files, or Parquet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sgoif.errors import SgoifError
from sgoif.ood.scorer import OodScorer
from sgoif.pictures.decode import PictureError, decode, square
from sgoif.sources.columns import ID_COLUMNS, IMAGE_COLUMNS, SUFFIXES, bytes_of, find_column

__all__ = ["Broken", "Scored", "Transform", "picture_input", "score_stored", "stored_batches", "stored_pictures"]

_SIDE = 224  # of pictures for a model that does not say

Transform = Callable[[Any], Tensor]
Picture = bytes | Path | PictureError  # an error where a table names a file that must not be read
Broken = list[tuple[str, str]]  # id and reason


@dataclass(slots=True)
class Scored:
    """What pictures gave: scores of those that could be read, reasons of those that could not."""

    ids: list[Any] = field(default_factory=list)
    broken: Broken = field(default_factory=list)
    parts: list[NDArray[np.float64]] = field(default_factory=list)

    @property
    def scores(self) -> NDArray[np.float64]:
        return np.concatenate(self.parts) if self.parts else np.zeros(0)


def score_stored(scorer: OodScorer, data: str, *, transform: Transform | None = None) -> Scored:
    """Score every picture below a folder, or of Parquet files; one that is broken is put aside with the reason."""
    found = Scored()
    for ids, inputs in stored_batches(data, scorer.model, scorer.batch_size, found.broken, transform=transform):
        found.ids += ids
        found.parts.append(scorer(inputs))
    return found


def stored_batches(
    data: str, model: nn.Module, batch_size: int, broken: Broken, *, transform: Transform | None = None
) -> Iterator[tuple[list[Any], Tensor]]:
    """Ids and inputs of each batch, in the order of the files.

    Args:
        data: a folder of pictures, at any depth, a Parquet file with encoded ones, or a folder of such.
        model: whom they are for.
        batch_size: pictures at once; a broken one leaves its place empty.
        broken: where those go that cannot be read.
        transform: see :func:`picture_input`.
    """
    prepare, left = picture_input(model, transform), stored_pictures(Path(data))
    while batch := list(islice(left, batch_size)):
        ids, inputs = [], []
        for id, picture in batch:
            try:
                inputs.append(prepare(decode(picture)))
                ids.append(id)
            except Exception as error:  # the user's transform may raise anything
                broken.append((str(id), f"{type(error).__name__}: {error}"[:300]))
        if inputs:
            yield ids, torch.stack(inputs)


def picture_input(model: nn.Module, transform: Transform | None = None) -> Transform:
    """What makes an input of a PIL picture, 8-bit RGB and upright.

    The function given, else the model's attribute ``transform``; where it has none, a square cut of ``input_size``
    (else 224) pixels, float32 in [0, 1].
    """
    own: Transform | None = transform or getattr(model, "transform", None)
    if own is not None:
        return own
    side = int(getattr(model, "input_size", _SIDE))
    return lambda picture: torch.from_numpy(square(picture, side).copy()).permute(2, 0, 1).float().div_(255)


def stored_pictures(path: Path) -> Iterator[tuple[Any, Picture]]:
    """Ids and files of all pictures, in order."""
    tables = [path] if path.suffix == ".parquet" and path.is_file() else sorted(path.glob("*.parquet"))
    if tables:
        for table in tables:
            yield from _rows(table)
        return
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES) if path.is_dir() else []
    if not files:
        raise SgoifError(f"'{path}' is neither a folder with pictures or .parquet, nor a .parquet file.")
    for file in files:
        yield file.relative_to(path).as_posix(), file


def _rows(path: Path) -> Iterator[tuple[Any, Picture]]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        names = file.schema_arrow.names
        image = find_column(names, IMAGE_COLUMNS, "an encoded picture", path)
        key = next((name for name in ID_COLUMNS if name in names and name != image), None)
        number = 0
        for batch in file.iter_batches(256, columns=[image] if key is None else [image, key], use_threads=False):
            pictures = batch[image].to_pylist()
            ids = [f"{path.stem}/{number + i}" for i in range(len(pictures))] if key is None else batch[key].to_pylist()
            yield from ((id, bytes_of(picture, path.parent)) for id, picture in zip(ids, pictures, strict=True))
            number += len(pictures)
