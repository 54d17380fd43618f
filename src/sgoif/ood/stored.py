"""Stored pictures, which need no labels, scored batch after batch: a folder of files, or Parquet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sgoif.errors import SgoifError
from sgoif.ood.scorer import OodScorer
from sgoif.pictures.decode import decode, square
from sgoif.pictures.sources import ID_COLUMNS, IMAGE_COLUMNS, SUFFIXES, bytes_of, find_column

__all__ = ["Scored", "score_stored"]

_SIDE = 224  # of pictures for a model that does not say

Transform = Callable[[Any], Tensor]


@dataclass(slots=True)
class Scored:
    """What pictures gave: scores of those that could be read, reasons of those that could not."""

    ids: list[Any] = field(default_factory=list)
    broken: list[tuple[str, str]] = field(default_factory=list)  # id and reason
    parts: list[NDArray[np.float64]] = field(default_factory=list)

    @property
    def scores(self) -> NDArray[np.float64]:
        return np.concatenate(self.parts) if self.parts else np.zeros(0)


def score_stored(scorer: OodScorer, data: str, *, transform: Transform | None = None) -> Scored:
    """Score every picture below a folder, or of Parquet files; one that is broken is put aside with the reason.

    Args:
        scorer: of the model.
        data: a folder of pictures, at any depth, a Parquet file with encoded ones, or a folder of such.
        transform: a PIL picture, 8-bit RGB and upright, to an input; by default the model's attribute ``transform``;
            where it has none, a square cut of ``input_size`` (else 224) pixels, float32 in [0, 1].
    """
    prepare = transform or getattr(scorer.model, "transform", None) or _cut(scorer)
    found, left = Scored(), _pictures(Path(data))
    while batch := list(islice(left, scorer.batch_size)):
        ids, inputs = [], []
        for id, picture in batch:
            try:
                inputs.append(prepare(decode(picture)))
                ids.append(id)
            except Exception as error:  # the user's transform may raise anything
                found.broken.append((str(id), f"{type(error).__name__}: {error}"[:300]))
        if inputs:
            found.ids += ids
            found.parts.append(scorer(torch.stack(inputs)))
    return found


def _cut(scorer: OodScorer) -> Transform:
    side = int(getattr(scorer.model, "input_size", _SIDE))
    return lambda picture: torch.from_numpy(square(picture, side).copy()).permute(2, 0, 1).float().div_(255)


def _pictures(path: Path) -> Iterator[tuple[Any, bytes | Path]]:
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


def _rows(path: Path) -> Iterator[tuple[Any, bytes | Path]]:
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
