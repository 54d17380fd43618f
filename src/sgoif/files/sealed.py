"""One safetensors file with an entry of JSON in its header: written whole, and refused in words where it is none."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from sgoif.errors import SgoifError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["read_header", "read_sealed", "read_tensors", "write_sealed", "write_tensors"]

Content = TypeVar("Content")


def write_sealed(url: str | os.PathLike[str], data: bytes) -> None:
    """Write to a path or any fsspec URL, so that the file is there in full or not at all."""
    from sgoif.files.locations import place_of

    folder, name = os.path.split(os.fspath(url))
    place_of(folder or ".").write(name, data)


def read_sealed(url: str | os.PathLike[str], decode: Callable[[bytes], Content], *, kind: str, writer: str) -> Content:
    """Read and decode a file.

    Args:
        url: a path or any fsspec URL.
        decode: from its bytes to what it holds.
        kind: what it is, for messages.
        writer: the call that writes one.

    Raises:
        SgoifError: There is none, or it is of another format, or damaged.
    """
    from sgoif.files.locations import place_of

    folder, name = os.path.split(os.fspath(url))
    try:
        data = place_of(folder or ".").read(name)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise SgoifError(f"there is no {kind} '{url}'; `{writer}` writes one.") from error
    try:
        return decode(data)
    except SgoifError:
        raise
    except Exception as error:  # whatever a damaged file makes of its readers
        raise SgoifError(f"'{url}' cannot be read as a {kind}: {type(error).__name__}: {error}") from error


def read_header(data: bytes, *, entry: str, kind: str, known: int) -> dict[str, Any]:
    """Return the entry of the header, without its ``format``.

    Raises:
        SgoifError: There is no such entry, or its format is not the one that is known.
    """
    size = int.from_bytes(data[:8], "little")
    metadata = json.loads(data[8 : 8 + size]).get("__metadata__", {})
    if entry not in metadata:
        raise SgoifError(f"this safetensors file is no {kind}: its header has no entry `{entry}`.")
    header: dict[str, Any] = json.loads(metadata[entry])
    found = header.pop("format", None)
    if found != known:
        raise SgoifError(
            f"the {kind} has format {found}, this sgoif reads format {known}: make it again, or install the sgoif that "
            "wrote it."
        )
    return header


def write_tensors(
    url: str | os.PathLike[str], tensors: Mapping[str, Tensor], header: Mapping[str, Any], *, entry: str
) -> None:
    """Write tensors, and a header with its ``format`` as the entry, as :func:`write_sealed` does."""
    from safetensors.torch import save

    write_sealed(url, bytes(save(dict(tensors), {entry: json.dumps(header)})))


def read_tensors(
    url: str | os.PathLike[str],
    build: Callable[[dict[str, Tensor], dict[str, Any]], Content],
    *,
    entry: str,
    known: int,
    kind: str,
    writer: str,
) -> Content:
    """Read what :func:`write_tensors` wrote, and build of tensors and header what the file holds.

    Raises:
        SgoifError: There is none, or it is of another format, or damaged.
    """
    from safetensors.torch import load

    def decode(data: bytes) -> Content:
        return build(load(data), read_header(data, entry=entry, kind=kind, known=known))

    return read_sealed(url, decode, kind=kind, writer=writer)
