"""Where a run lives: a local folder or any fsspec URL, with the four things that the store asks of it.

Read a file, list a folder, remove files, and write a file that is there in full or not at all. Object stores give the
last by themselves: a put becomes visible when it is complete. Elsewhere a file is written beside its place and moved.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from sgoif.errors import StoreError

__all__ = ["Place", "place_of"]

_TEMPORARY = ".tmp"
_ATOMIC_PUT = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "oci", "r2", "memory"}


@dataclass(frozen=True, slots=True)
class Place:
    """The folder of a run on a filesystem; paths are relative to it, with ``/`` between their parts."""

    fs: Any  # an fsspec filesystem
    root: str  # as the filesystem writes it, without its protocol
    url: str  # as the user wrote it, for messages

    @property
    def is_local(self) -> bool:
        return isinstance(self.fs, LocalFileSystem)

    @property
    def has_atomic_put(self) -> bool:
        """Whether a file appears when it is complete, as on object stores."""
        protocols = {self.fs.protocol} if isinstance(self.fs.protocol, str) else set(self.fs.protocol)
        return bool(protocols & _ATOMIC_PUT)

    def full(self, path: str) -> str:
        """Name a file as the filesystem does."""
        return f"{self.root}/{path}"

    def address(self, path: str) -> str:
        """Name a file so that DuckDB finds it: a plain path, or a URL of a registered filesystem."""
        return self.full(path) if self.is_local else self.fs.unstrip_protocol(self.full(path))

    def exists(self, path: str) -> bool:
        self.fs.invalidate_cache()
        return bool(self.fs.exists(self.full(path)))

    def size(self, path: str) -> int:
        """Bytes of a file."""
        self.fs.invalidate_cache()
        return int(self.fs.size(self.full(path)) or 0)

    def read(self, path: str) -> bytes:
        self.fs.invalidate_cache()
        return bytes(self.fs.cat_file(self.full(path)))

    def open(self, path: str) -> Any:
        """Open a file for reading in pieces; pyarrow reads a local path by itself, and faster."""
        return self.full(path) if self.is_local else self.fs.open(self.full(path), "rb")

    def sizes(self, folder: str) -> dict[str, int]:
        """List all files under a folder with their bytes, in one recursive listing; hidden and unfinished ones too."""
        self.fs.invalidate_cache()
        try:
            found = self.fs.find(self.full(folder), detail=True)
        except FileNotFoundError:
            return {}
        skip = len(self.root) + 1
        return {name[skip:]: int(entry.get("size") or 0) for name, entry in found.items()}

    def write(self, path: str, data: Any) -> None:
        """Write a file so that a reader sees all of it or nothing, even where the writer is killed half-way."""
        target = self.full(path)
        if self.has_atomic_put:
            self.fs.pipe_file(target, bytes(data))
            return
        folder, _, name = target.rpartition("/")
        beside = f"{folder}/.{name}{_TEMPORARY}"
        self.fs.makedirs(folder, exist_ok=True)
        if not self.is_local:
            self.fs.pipe_file(beside, bytes(data))
            self.fs.mv(beside, target)
            return
        try:
            with open(beside, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())  # a checkpoint may rely on this part when the power goes
            os.replace(beside, target)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(beside)  # what is left of a full disk is not ours to fill
            raise

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files; those that are gone already are no trouble."""
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                self.fs.rm_file(self.full(path))

    def remove_unfinished(self, folder: str) -> None:
        """Remove what a killed writer left half-written in one folder."""
        if not self.has_atomic_put:
            self.remove([path for path in self.sizes(folder) if path.endswith(_TEMPORARY)])


def place_of(url: str | os.PathLike[str]) -> Place:
    """Find the filesystem of a path or URL.

    Raises:
        StoreError: The protocol is unknown or its package is not installed.
    """
    text = os.fspath(url)
    if not text:
        raise StoreError("a run needs a folder or URL, got an empty string.")
    if "://" not in text:  # never parsed as a URL, so that a folder may be called `a#b` or `x::y`
        return Place(LocalFileSystem(), os.path.abspath(os.path.expanduser(text)).replace(os.sep, "/"), text)
    try:
        fs, root = fsspec.core.url_to_fs(text)
    except (ImportError, ValueError) as error:
        raise StoreError(f"cannot open {text!r}: {error}. Is the filesystem's package installed?") from error
    return Place(fs, str(root).rstrip("/"), text)
