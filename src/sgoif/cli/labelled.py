"""Labelled pictures on disk as a dataset for a model of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from sgoif.errors import SgoifError
from sgoif.pictures.decode import PictureError, decode
from sgoif.sources.labelled import Source

_BLOCK = 256  # pictures whose files are asked for together: rows of a Parquet group are not read one by one


class LabelledPictures(Dataset[tuple[Tensor, int]]):
    """Pictures that have a label, by position; ``ids_by_position`` has their names.

    One that cannot be read is an input of zeros and stands in ``broken``: among a million there is always one.

    Raises:
        SgoifError: There is no label, or none of the first pictures can be read.
    """

    def __init__(self, source: Source, prepare: Callable[[Any], Tensor]) -> None:
        self._source, self._prepare = source, prepare  # a PIL picture to an input
        self._positions = np.flatnonzero(source.labels >= 0)
        self.targets = source.labels[self._positions].tolist()
        self.ids_by_position = [source.ids[int(i)] for i in self._positions]
        self.broken: dict[int, str] = {}  # reasons by position
        self._block, self._held = -1, list[bytes | Path | PictureError]()
        self._shape = self._first_shape()

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, position: int) -> tuple[Tensor, int]:
        found = self._read(position)
        return (torch.zeros(self._shape) if found is None else found), self.targets[position]

    def _read(self, position: int) -> Tensor | None:
        try:
            return self._prepare(decode(self._read_encoded(position)))
        except Exception as error:  # broken files, and the user's transform may raise anything
            self.broken[position] = f"{type(error).__name__}: {error}"[:300]
            return None

    def _read_encoded(self, position: int) -> bytes | Path | PictureError:
        block, place = divmod(position, _BLOCK)
        if block != self._block:
            self._held = list(self._source.encoded(self._positions[block * _BLOCK : (block + 1) * _BLOCK]))
            self._block = block
        return self._held[place]

    def _first_shape(self) -> torch.Size:
        for position in range(min(_BLOCK, len(self))):
            found = self._read(position)
            if found is not None:
                return found.shape
        reason = next(iter(self.broken.values()), "no example has a label")
        raise SgoifError(f"none of the first pictures can be given to the model: {reason}.")
