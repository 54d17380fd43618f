"""Embeddings made once by a frozen backbone, and kept beside the run."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from sgoif.errors import SgoifError
from sgoif.evidence import SKETCH_COLUMNS, picture_sketch
from sgoif.pictures.decode import PictureError, decode, square
from sgoif.sources.labelled import FolderSource, Source, TableSource
from sgoif.usercode import describe_error, import_named

__all__ = ["Embedded", "embed", "load_backbone"]

Floats = NDArray[np.float32]
Backbone = Callable[[torch.Tensor], torch.Tensor]


class Embedded(NamedTuple):
    """Embedded pictures."""

    rows: Floats  # [N, D]; zero where a picture could not be read
    reasons: list[str]  # why a picture could not be read; empty where it could
    sketches: NDArray[np.int64]  # [N, 4], of the pictures


def load_backbone(name: str) -> Backbone:
    """Call ``module:factory`` without arguments and return what it makes: a frozen model from pictures to embeddings.

    The model is called with float32 pictures ``[B, 3, S, S]`` in [0, 1], on the CPU and without gradients; where it has
    an attribute ``input_size`` they have that side, else 224. It normalises them itself, and returns ``[B, D]``, or
    ``[B, tokens, D]`` or ``[B, D, H, W]``, which are averaged over positions.

    Raises:
        SgoifError: It cannot be found, the factory raises, or what it makes cannot be called.
    """
    factory = import_named(name, "the backbone")
    try:
        made = factory()
    except Exception as error:  # the user's code may raise anything
        raise SgoifError(f"the backbone {name!r}, called without arguments, raised {describe_error(error)}.") from error
    if not callable(made):
        raise SgoifError(
            f"the backbone {name!r} made a {type(made).__name__}; expected a function or module from pictures "
            "[B, 3, S, S] to embeddings [B, D]."
        )
    return made  # type: ignore[no-any-return]


def embed(
    source: Source,
    positions: NDArray[np.int64],
    backbone: Backbone,
    *,
    cache: Path | None = None,
    name: str = "the backbone",
    batch: int = 64,
    progress: Callable[[str, int, int], None] | None = None,
) -> Embedded:
    """Embed pictures once.

    Args:
        source: where the pictures are.
        positions: which of them.
        backbone: pictures ``[B, 3, S, S]`` in [0, 1] to embeddings.
        cache: a folder for the result, which serves while neither the pictures' files nor the backbone's change.
        name: of the backbone, ``module:factory``, for the cache and for messages.
        batch: pictures at once.
        progress: called with the stage, what is done, and the total.

    Raises:
        SgoifError: No picture could be read, or the backbone raises or gives no embeddings.
    """
    file = None if cache is None else cache / f"embeddings-3-{_digest(source, positions, name)}.npz"
    if file is not None and file.is_file():
        with np.load(file, allow_pickle=False) as kept:
            return Embedded(kept["rows"], kept["reasons"].tolist(), kept["sketches"])
    side = int(getattr(backbone, "input_size", 224))
    if isinstance(backbone, torch.nn.Module):
        backbone.eval()
    reasons = [""] * len(positions)
    parts: list[Floats] = []
    words: list[NDArray[np.int64]] = []
    pictures: list[NDArray[np.uint8]] = []
    for number, item in enumerate(source.encoded(positions)):
        try:
            pictures.append(square(decode(item), side))
        except PictureError as error:
            reasons[number] = str(error)
        if len(pictures) == batch or (number + 1 == len(positions) and pictures):
            parts.append(_forward(backbone, np.stack(pictures), name))
            words.append(picture_sketch(np.stack(pictures)))
            pictures = []
            if progress is not None:
                progress("embedding pictures", number + 1, len(positions))
    if not parts:
        raise SgoifError(
            f"none of {len(positions):,} pictures could be read; {source.ids[positions[0]]}: {reasons[0]}."
        )
    found, readable = np.concatenate(parts), np.array([not reason for reason in reasons])
    rows = np.zeros((len(positions), found.shape[1]), np.float32)
    rows[readable] = found
    sketches = np.zeros((len(positions), len(SKETCH_COLUMNS)), np.int64)
    sketches[readable] = np.concatenate(words)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(f".{os.getpid()}.part")
        with partial.open("wb") as handle:
            np.savez(handle, rows=rows, reasons=np.array(reasons, dtype=str), sketches=sketches)
        os.replace(partial, file)
    return Embedded(rows, reasons, sketches)


def _digest(source: Source, positions: NDArray[np.int64], name: str) -> str:
    """Name a cache by the backbone, the pictures, and when the files of both were last written."""
    digest = hashlib.sha256(name.encode())
    module = sys.modules.get(name.partition(":")[0])
    own = getattr(module, "__file__", None)
    for text in (*_stamps([Path(own)] if own else []), *(str(source.ids[i]) for i in positions)):
        digest.update(f"{text}\n".encode("utf-8", "surrogateescape"))
    files: Iterator[Path] = iter(())
    if isinstance(source, FolderSource):
        files = (source.root / source.ids[i] for i in positions)
    elif isinstance(source, TableSource):
        files = iter(source.files)
    for stamp in _stamps(files):
        digest.update(stamp.encode())
    return digest.hexdigest()[:20]


def _stamps(files: Any) -> Iterator[str]:
    for file in files:
        try:
            found = os.stat(file)
            yield f"{found.st_size} {found.st_mtime_ns}\n"
        except OSError:
            yield "gone\n"


def _forward(backbone: Backbone, pictures: NDArray[np.uint8], name: str) -> Floats:
    inputs = torch.from_numpy(pictures).permute(0, 3, 1, 2).float().div_(255)
    inputs = inputs.contiguous(memory_format=torch.channels_last)
    given = f"the backbone {name!r}, given float32 pictures {list(inputs.shape)} in [0, 1],"
    try:
        with torch.inference_mode():
            out = backbone(inputs)
    except Exception as error:  # the user's code may raise anything
        raise SgoifError(f"{given} raised {describe_error(error)}.") from error
    if not isinstance(out, torch.Tensor) or out.dim() not in (2, 3, 4) or len(out) != len(inputs):
        found = f"a tensor {list(out.shape)}" if isinstance(out, torch.Tensor) else f"a {type(out).__name__}"
        raise SgoifError(f"{given} returned {found}; expected [{len(inputs)}, D], [B, tokens, D] or [B, D, H, W].")
    out = out.float().cpu()
    if out.dim() == 4:  # [B, D, H, W]
        out = out.mean((2, 3))
    elif out.dim() == 3:  # [B, tokens, D]
        out = out.mean(1)
    return out.numpy()
