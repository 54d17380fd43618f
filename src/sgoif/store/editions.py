"""Tables that are written whole: a new edition beside the one that readers see, then in its place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from sgoif.errors import StoreError
from sgoif.store.blocks import encode_table, table_of
from sgoif.store.info import read_info, write_info
from sgoif.store.parts import name_part, numbers_taken
from sgoif.store.reader import RunFiles

__all__ = ["Edition", "publish", "write_edition", "write_parts"]

_PART_BYTES = 64 << 20


def write_edition(files: RunFiles, name: str, tables: Iterable[Mapping[str, Any]]) -> int:
    """Write a table that is written whole piece by piece, in place of the one that is there; return its number of rows.

    Readers see the new edition when all of it is written. Where that fails, they go on seeing the old one.
    """
    edition = write_parts(files, name, tables)
    publish(files, {name: edition})
    return edition.num_rows


@dataclass(frozen=True, slots=True)
class Edition:
    """Parts of a table that nobody reads yet."""

    number: int
    paths: list[str]
    num_rows: int


def write_parts(files: RunFiles, name: str, tables: Iterable[Mapping[str, Any]], *, skipped: int = 0) -> Edition:
    """Write a new edition of a table that is written whole, piece by piece; :func:`publish` shows it to readers.

    Args:
        files: the run.
        name: of the table.
        tables: the pieces.
        skipped: numbers that are left to a training that may end meanwhile, and writes an edition of its own.
    """
    number = 1 + skipped + max([0, *numbers_taken(files.place, name)])
    waiting: list[pa.Table] = []
    paths: list[str] = []
    total = 0
    for found in tables:
        if len(found["id"]):
            waiting.append(table_of(name, found, 0, files.id_kind(name))[0])
        if sum(table.nbytes for table in waiting) >= _PART_BYTES:
            paths.append(name_part(name, 0, number, len(paths)))
            total += _write_part(files, waiting, paths[-1])
    if waiting:
        paths.append(name_part(name, 0, number, len(paths)))
        total += _write_part(files, waiting, paths[-1])
    return Edition(number, paths, total)


def publish(
    files: RunFiles,
    editions: Mapping[str, Edition],
    *,
    changes: Mapping[str, Any] | None = None,
    only_if_unchanged: bool = False,
) -> None:
    """Show new editions to readers, all at once, and remove those that they replace.

    Args:
        files: the run.
        editions: by table.
        changes: of ``run.json`` besides.
        only_if_unchanged: raise, and remove the new parts, where a training has ended or begun in the folder meanwhile.

    Raises:
        StoreError: It has.
    """
    current = read_info(files.place)
    if only_if_unchanged and any(current.get(name) != files.info.get(name) for name in ("state", "attempts")):
        files.place.remove([path for edition in editions.values() for path in edition.paths])
        raise StoreError(
            f"a training ended or began in {files.place.url!r} meanwhile: what it wrote is left as it is. Ask again."
        )
    old = [item.path for name in editions for item in files.parts(name)]
    numbers = {name: edition.number for name, edition in editions.items()}
    write_info(files.place, {**current, **(changes or {}), "editions": {**current.get("editions", {}), **numbers}})
    files.place.remove(old)
    files.refresh()


def _write_part(files: RunFiles, waiting: list[pa.Table], path: str) -> int:
    table = pa.concat_tables(waiting, promote_options="default").sort_by("id_hash").combine_chunks()
    waiting.clear()
    files.place.write(path, encode_table(table))
    return len(table)
