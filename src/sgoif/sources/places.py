"""Where examples are: whatever a user has is turned into something that is asked by id. Nothing is copied or listed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from sgoif.errors import SgoifError
from sgoif.sources.columns import ColumnNames
from sgoif.sources.datasets import DatasetPictures, FunctionPictures, TablePictures
from sgoif.sources.folders import FolderPictures, UrlPictures
from sgoif.sources.labelled import table_files
from sgoif.sources.reading import Pictures
from sgoif.sources.shards import ShardPictures, local_shards, remote_shards
from sgoif.sources.tables import TABLE_SUFFIXES, table_from
from sgoif.usercode import import_named, is_named

__all__ = ["Pictures", "find_pictures"]

_NEEDED = (
    "expected a folder, a URL of one, a table, tar shards, a dataset with dataset[i], "
    "a function from an id to a picture or text, or its name as module:function"
)


def find_pictures(images: Any, names: ColumnNames | None = None) -> Pictures:
    """Turn what a user calls their pictures, texts or rows into :class:`Pictures`.

    Args:
        images: one of

            - a folder; ids are paths below it, as ``sgoif scan`` has them. Also a URL of one (``s3://bucket/photos``).
            - a table (Parquet, Arrow, CSV, JSON lines), a folder of Parquet or Arrow files, or a dataset saved by
              Hugging Face; its pictures, its texts, or else its rows.
            - tar shards of WebDataset: a file, a folder without folders in it, or a pattern (``shards/{000..119}.tar``,
              ``s3://bucket/*.tar``); ids are ``shard/key``.
            - a table in memory, of pandas, polars or Arrow.
            - a map-style dataset; ids are positions, or ``dataset.ids``.
            - a function from an id to a text, a dict of cells, or anything that :func:`sgoif.pictures.displayed` takes;
              or ``module:function``.
        names: columns of a table.

    Raises:
        SgoifError: It is nothing of the kind, or does not exist.
    """
    if isinstance(images, str | os.PathLike):
        return _at(os.fspath(images), names)
    if all(hasattr(images, name) for name in ("read", "link", "about")):
        return images  # type: ignore[no-any-return]
    if isinstance(images, Mapping):
        keys = ", ".join(str(name) for name in list(images)[:5])
        raise SgoifError(f"pictures were given as a {type(images).__name__} of {keys}; pass one of them.")
    if type(images).__module__.partition(".")[0] in ("pandas", "polars", "pyarrow") and hasattr(images, "columns"):
        table = table_from(images)
        if table is not None:
            return TablePictures(table, names)
    if hasattr(images, "__getitem__") and hasattr(images, "__len__"):
        return DatasetPictures(images)
    if callable(images):
        return FunctionPictures(images)
    raise SgoifError(f"pictures cannot be found by id in a {type(images).__name__}; {_NEEDED}.")


def _at(text: str, names: ColumnNames | None) -> Pictures:
    if "://" in text and not text.startswith("file://"):
        return _at_url(text)
    path = Path(url2pathname(urlsplit(text).path) if text.startswith("file://") else text).expanduser()
    if text and path.is_dir():
        return _in_folder(path, names)
    if path.is_file() and path.suffix.lower() in TABLE_SUFFIXES:
        return TablePictures([path], names)
    shards = [str(path)] if path.is_file() else local_shards(text)
    if shards and all(shard.endswith(".tar") for shard in shards):
        return ShardPictures(shards, lambda shard: open(shard, "rb"))
    if is_named(text) and not path.exists():
        return find_pictures(_load(text))
    is_there = text != "" and path.exists()
    what = "is neither a folder, a table nor a .tar file" if is_there else "does not exist"
    raise SgoifError(f"the pictures '{text}' cannot be found: it {what}; {_NEEDED}.")


def _at_url(url: str) -> Pictures:
    if url.endswith(".tar"):
        return remote_shards(url)
    if url.endswith((".parquet", ".arrow")):
        raise SgoifError("pictures in Parquet are read from local files; copy the file here, or pass a dataset of it.")
    return UrlPictures(url)


def _in_folder(folder: Path, names: ColumnNames | None) -> Pictures:
    tables = table_files(folder)
    if tables:
        return TablePictures(tables, names)
    shards = sorted(str(path) for path in folder.glob("*.tar"))
    # An archive beside class folders is a backup of something, not the data.
    if shards and not any(path.is_dir() and not path.name.startswith(".") for path in folder.iterdir()):
        return ShardPictures(shards, lambda shard: open(shard, "rb"))
    return FolderPictures(folder)


def _load(name: str) -> Any:
    found = import_named(name, "the pictures")
    if isinstance(found, str | os.PathLike):
        raise SgoifError(f"'{name}' is a {type(found).__name__}; {_NEEDED}.")
    return found
