"""What is made once and kept: decoded pictures, embeddings, networks, trainings."""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

Made = TypeVar("Made")

# by the ending of the file's name: how it is written, and how it is read
_KINDS: dict[str, tuple[Callable[[Any, Any], None], Callable[[Path], Any]]] = {
    ".npy": (lambda found, file: np.save(file, found), lambda path: np.load(path, mmap_mode="c")),
    ".npz": (lambda found, file: np.savez(file, **found), lambda path: dict(np.load(path))),
    ".pt": (torch.save, lambda path: torch.load(path, weights_only=True)),
    ".pickle": (pickle.dump, lambda path: pickle.loads(path.read_bytes())),
}


def folder() -> Path:
    """Where things are kept: ``SGOIF_CACHE``, else ``~/.cache/sgoif``."""
    return Path(os.environ.get("SGOIF_CACHE") or Path.home() / ".cache" / "sgoif")


def keep(name: str, make: Callable[[], Made]) -> Made:
    """Read what was kept under this name, making it first where it is not there; other processes may do the same."""
    path = folder() / name
    write, read = _KINDS[path.suffix]
    if not path.exists():
        found = make()
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(dir=path.parent, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                write(found, file)
            os.replace(partial, path)
        except BaseException:
            Path(partial).unlink(missing_ok=True)
            raise
    kept: Made = read(path)
    return kept
