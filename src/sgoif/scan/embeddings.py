"""Embeddings: read from a file, or made once by a frozen backbone and kept beside the run."""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from sgoif.errors import SgoifError
from sgoif.evidence import SKETCH_COLUMNS, picture_sketch
from sgoif.pictures.decode import PictureError, decode, square
from sgoif.pictures.sources import Source

__all__ = ["Embedded", "embed", "load_backbone", "read_features"]

Floats = NDArray[np.float32]


class Embedded(NamedTuple):
    """Embedded pictures."""

    rows: Floats  # [N, D]; zero where a picture could not be read
    readable: NDArray[np.bool_]  # [N]
    sketches: NDArray[np.int64]  # [N, 4], of the pictures


def read_features(path: str | Path, ids: Sequence[Any]) -> Floats:
    """Read one row per id, in the order of ``ids``.

    ``.npy`` holds ``[N, D]`` in the order of the data. Parquet holds a column ``id`` and either one column of lists or
    one number per column.

    Raises:
        SgoifError: The file has another form, or lacks some of the ids.
    """
    place = Path(path)
    if not place.is_file():
        raise SgoifError(f"'{place}' does not exist; pass embeddings as .npy or .parquet.")
    if place.suffix == ".npy":
        values = np.load(place, mmap_mode="r", allow_pickle=False)
        if values.ndim != 2 or len(values) != len(ids):
            raise SgoifError(f"'{place}' holds {values.shape}, needed is one row for each of {len(ids)} examples.")
        return np.asarray(values, dtype=np.float32)
    if place.suffix != ".parquet":
        raise SgoifError(f"'{place}' is neither .npy nor .parquet.")
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(place)
    if "id" not in table.column_names:
        raise SgoifError(f"'{place}' has no column `id`: it has {', '.join(table.column_names)}.")
    lists = [
        field.name for field in table.schema if pa.types.is_list(field.type) or pa.types.is_fixed_size_list(field.type)
    ]
    if lists:
        rows = np.stack([np.asarray(row, dtype=np.float32) for row in table[lists[0]].to_pylist()])
    else:
        numbers = [f.name for f in table.schema if pa.types.is_floating(f.type)]
        rows = np.stack([table[name].to_numpy().astype(np.float32) for name in numbers], 1)
    known = {str(value): number for number, value in enumerate(table["id"].to_pylist())}
    missing = [value for value in ids if str(value) not in known]
    if missing:
        raise SgoifError(f"'{place}' lacks {len(missing)} of {len(ids)} ids, the first is {str(missing[0])[:80]!r}.")
    return np.asarray(rows[[known[str(value)] for value in ids]])


def load_backbone(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """Call ``module:factory`` and return what it makes: a frozen model from pictures to embeddings.

    A model takes float32 pictures ``[B, 3, S, S]`` in [0, 1]; where it has an attribute ``input_size``, pictures have
    that side, else 224. Whatever it gives is averaged over positions.
    """
    module, _, factory = name.partition(":")
    if not factory:
        raise SgoifError(f"a backbone is module:factory, got {name!r}.")
    try:
        made = getattr(importlib.import_module(module), factory)()
    except (ImportError, AttributeError) as error:
        raise SgoifError(f"the backbone {name!r} cannot be made: {error}") from error
    if not callable(made):
        raise SgoifError(f"the backbone {name!r} is no model: {type(made).__name__}.")
    return made  # type: ignore[no-any-return]


def embed(
    source: Source,
    positions: NDArray[np.int64],
    backbone: Callable[[torch.Tensor], torch.Tensor],
    *,
    cache: Path | None = None,
    key: str = "",
    batch: int = 64,
    progress: Callable[[str, int, int], None] | None = None,
) -> Embedded:
    """Embed pictures once.

    Args:
        source: where the pictures are.
        positions: which of them.
        backbone: pictures ``[B, 3, S, S]`` in [0, 1] to embeddings.
        cache: a folder for the result.
        key: names the backbone and the data in the cache.
        batch: pictures at once.
        progress: told how far it is.
    """
    digest = hashlib.sha256("\n".join([key, *(str(source.ids[i]) for i in positions)]).encode()).hexdigest()[:20]
    file = None if cache is None else cache / f"embeddings-2-{digest}.npz"  # 2: with sketches
    if file is not None and file.is_file():
        with np.load(file, allow_pickle=False) as kept:
            return Embedded(kept["rows"], kept["readable"], kept["sketches"])
    side = int(getattr(backbone, "input_size", 224))
    if isinstance(backbone, torch.nn.Module):
        backbone.eval()
    readable = np.zeros(len(positions), bool)
    parts: list[Floats] = []
    words: list[NDArray[np.int64]] = []
    pictures: list[NDArray[np.uint8]] = []
    for number, item in enumerate(source.encoded(positions)):
        try:
            pictures.append(square(decode(item), side))
            readable[number] = True
        except PictureError:
            pass
        if len(pictures) == batch or (number + 1 == len(positions) and pictures):
            parts.append(_forward(backbone, np.stack(pictures)))
            words.append(picture_sketch(np.stack(pictures)))
            pictures = []
            if progress is not None:
                progress("embedding pictures", number + 1, len(positions))
    if not parts:
        raise SgoifError(f"none of {len(positions)} pictures could be read.")
    found = np.concatenate(parts)
    rows = np.zeros((len(positions), found.shape[1]), np.float32)
    rows[readable] = found
    sketches = np.zeros((len(positions), len(SKETCH_COLUMNS)), np.int64)
    sketches[readable] = np.concatenate(words)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(f".{os.getpid()}.part")
        with partial.open("wb") as handle:
            np.savez(handle, rows=rows, readable=readable, sketches=sketches)
        os.replace(partial, file)
    return Embedded(rows, readable, sketches)


def _forward(backbone: Callable[[torch.Tensor], torch.Tensor], pictures: NDArray[np.uint8]) -> Floats:
    inputs = torch.from_numpy(pictures).permute(0, 3, 1, 2).float().div_(255)
    inputs = inputs.contiguous(memory_format=torch.channels_last)
    with torch.inference_mode():
        out = backbone(inputs).float()
    if out.dim() == 4:  # [B, D, H, W]
        out = out.mean((2, 3))
    elif out.dim() == 3:  # [B, tokens, D]
        out = out.mean(1)
    return out.numpy()
