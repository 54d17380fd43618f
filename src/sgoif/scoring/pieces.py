"""What is to be scored, in pieces: one Parquet file, one tar shard, or some thousand files of a folder.

A piece is read, scored and written by one process, and its part appears whole or not at all; so it is the unit of what
is repeated after a crash, and of what is spread over machines.
"""

from __future__ import annotations

import glob
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sgoif.errors import SgoifError
from sgoif.files.locations import Place, place_of
from sgoif.sources.columns import SUFFIXES
from sgoif.sources.shards import expand_braces

__all__ = ["Piece", "list_pieces"]

Kind = Literal["parquet", "tar", "files"]

_FILES = 4096  # of a folder in one piece: a minute or so of work
_TABLES = ("*.parquet", "data/*.parquet", "train/*.parquet")  # as Hugging Face lays them out


@dataclass(frozen=True, slots=True)
class Piece:
    """Some of the data, under a number that it keeps for good."""

    number: int
    kind: Kind
    address: str  # of the file or shard, or of the folder that the files lie in
    files: tuple[str, ...] = ()  # below the folder

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {"kind": self.kind, "address": self.address, "files": list(self.files)}

    @classmethod
    def from_document(cls, number: int, found: dict[str, Any]) -> Piece:
        """Undo :meth:`document`."""
        return cls(number, found["kind"], found["address"], tuple(found["files"]))


def list_pieces(data: str) -> list[Piece]:
    """Cut data into pieces, the same every time as long as the files are the same.

    Args:
        data: a Parquet file or tar shard, a pattern of them (``*``, ``{000..119}``), a folder of them, or a folder of
            class folders with pictures; a path or any fsspec URL.

    Raises:
        SgoifError: There is nothing of the kind.
    """
    place = place_of(data)
    if data.endswith((".parquet", ".tar")):
        return _number(_expand(place, data), "tar" if data.endswith(".tar") else "parquet")
    if not place.fs.isdir(place.root):
        what = "is neither a folder nor a .parquet or .tar file" if place.fs.exists(place.root) else "does not exist"
        raise SgoifError(f"'{data}' {what}.")
    for pattern in _TABLES:
        if found := sorted(place.fs.glob(f"{glob.escape(place.root)}/{pattern}")):
            train = [path for path in found if path.rpartition("/")[2].startswith("train")]
            return _number([_address(place, path) for path in train or found], "parquet")
    if shards := sorted(place.fs.glob(f"{glob.escape(place.root)}/*.tar")):
        return _number([_address(place, path) for path in shards], "tar")
    return _in_class_folders(place, data)


def _in_class_folders(place: Place, data: str) -> list[Piece]:
    skip = len(place.root) + 1
    names = sorted(path[skip:] for path in place.fs.find(place.root) if path.lower().endswith(SUFFIXES))
    inside = [name for name in names if "/" in name and not name.rpartition("/")[2].startswith(".")]
    if not inside:
        raise SgoifError(f"'{data}' holds no .parquet, no .tar and no class folders with pictures.")
    parts = [tuple(inside[start : start + _FILES]) for start in range(0, len(inside), _FILES)]
    return [Piece(number, "files", _address(place, place.root), part) for number, part in enumerate(parts)]


def _number(addresses: Sequence[str], kind: Kind) -> list[Piece]:
    return [Piece(number, kind, address) for number, address in enumerate(addresses)]


def _expand(place: Place, pattern: str) -> list[str]:
    found: list[str] = []
    for text in expand_braces(pattern):
        one = place_of(text)
        paths = sorted(one.fs.glob(one.root)) if glob.has_magic(one.root) else [one.root]
        found += [_address(place, path) for path in paths if place.fs.isfile(path)]
    if not found:
        raise SgoifError(f"no file is called '{pattern}'.")
    return found


def _address(place: Place, path: str) -> str:
    return path if place.is_local else str(place.fs.unstrip_protocol(path))
