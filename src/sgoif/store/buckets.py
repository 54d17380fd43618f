"""All rows of a table, one bucket of ids at a time, however many there are.

A bucket is one of ``B`` equal pieces of the range of hashes, ``B`` a power of two, so that all visits of an example lie
in one bucket. Parts are cut into row groups at edges of the same kind. Where ``B`` is small each bucket reads its own
row groups. Where a row group spans many buckets that would read everything many times over; then the rows of a wide
piece of the range, a *shelf*, are read once, laid out by bucket on a local disk, and taken from there.

10^10 visits of 130 bytes: with 256 MB per bucket 8,192 buckets on 64 shelves, each 20 GB of scratch; a part of 64 MB
has 32 row groups, so every byte is read twice from the store, and written and read once on the local disk.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from sgoif.errors import StoreError
from sgoif.store.blocks import hash_edges
from sgoif.store.parts import Part
from sgoif.store.reader import RunFiles

__all__ = ["bucket_rows", "count_buckets"]

_ROW_BYTES = 400  # of a visit while its bucket is merged: its columns, and at most as much evidence as visits
_SCRATCH_BYTES = 24 << 30
_SCRATCH_ROW_BYTES = 160
_OPEN_FILES = 128  # of one shelf; the usual limit of a process is 1,024
_GATHERED_ROWS = 1 << 18  # rows that are laid out at once
_READ_TWICE = 2.0  # reading this many times the rows is cheaper than laying them out


def count_buckets(files: RunFiles, memory_bytes: int) -> int:
    """Choose how many buckets keep the visits of one within the given memory, as a power of two."""
    rows = sum(part.num_rows for part in files.parts("visits"))
    return _power_of_two(rows * _ROW_BYTES / memory_bytes)


def bucket_rows(
    files: RunFiles, columns: Sequence[str], buckets: int, scratch: str | os.PathLike[str] | None = None
) -> Iterator[pa.Table]:
    """Yield the visits of each bucket in turn, all of an example's in one of them.

    Args:
        files: the run.
        columns: which to read; ``id_hash`` is read anyway.
        buckets: a power of two.
        scratch: local folder for what is laid out; the system's own for temporary files if not given.
    """
    if buckets < 1 or buckets & (buckets - 1):
        raise StoreError(f"buckets must be a power of two, got {buckets}.")
    wanted = list(dict.fromkeys(["id_hash", *columns]))
    parts = files.parts("visits")
    if _read_amount(parts, buckets) <= _READ_TWICE:
        for low, high in _ranges(buckets):
            yield _joined(list(_rows_between(files, wanted, low, high)), files, wanted)
        return
    rows = sum(part.num_rows for part in parts)
    shelves = min(buckets, max(_power_of_two(rows * _SCRATCH_ROW_BYTES / _SCRATCH_BYTES), buckets // _OPEN_FILES))
    for low, high in _ranges(shelves):
        with tempfile.TemporaryDirectory(prefix="sgoif-merge-", dir=scratch) as folder:
            yield from _through_scratch(files, wanted, (low, high), buckets // shelves, Path(folder))


def _through_scratch(
    files: RunFiles, columns: list[str], shelf: tuple[int, int], count: int, folder: Path
) -> Iterator[pa.Table]:
    low, high = shelf
    edges = np.array([low + k * ((high - low + 1) // count) for k in range(1, count)], np.int64)
    writers: dict[int, pa.RecordBatchFileWriter] = {}
    waiting: list[pa.Table] = []

    def lay_out() -> None:
        table = pa.concat_tables(waiting).combine_chunks()
        waiting.clear()
        hashes = table["id_hash"].to_numpy()
        order = np.argsort(hashes)
        table = table.take(pa.array(order))
        cuts = [0, *np.searchsorted(hashes[order], edges).tolist(), len(table)]
        for bucket, (start, stop) in enumerate(pairwise(cuts)):
            if stop > start:
                if bucket not in writers:
                    writers[bucket] = pa.ipc.new_stream(str(folder / f"{bucket}.arrows"), table.schema)
                writers[bucket].write_table(table.slice(start, stop - start))

    for table in _rows_between(files, columns, low, high):
        waiting.append(table)
        if sum(map(len, waiting)) >= _GATHERED_ROWS:
            lay_out()
    if waiting:
        lay_out()
    for writer in writers.values():
        writer.close()
    for bucket in range(count):
        if bucket not in writers:
            yield _joined([], files, columns)
            continue
        path = folder / f"{bucket}.arrows"
        with pa.ipc.open_stream(str(path)) as stream:
            rows = stream.read_all()
        path.unlink()
        yield rows.combine_chunks()


def _rows_between(files: RunFiles, columns: list[str], low: int, high: int) -> Iterator[pa.Table]:
    """Read the visits whose hash is in ``low..high``, from the row groups that may hold some."""
    for part in files.parts("visits"):
        groups = None
        if part.bounds is not None:
            groups = np.flatnonzero((part.bounds[1] >= low) & (part.bounds[0] <= high)).tolist()
            if not groups:
                continue
        for table in files.read_part(part, columns, groups):
            hashes = table["id_hash"].to_numpy()
            inside = (hashes >= low) & (hashes <= high)
            if inside.any():
                yield table if inside.all() else table.filter(pa.array(inside))


def _joined(tables: list[pa.Table], files: RunFiles, columns: list[str]) -> pa.Table:
    return pa.concat_tables([files.empty("visits").select(columns), *tables]).combine_chunks()


def _ranges(pieces: int) -> list[tuple[int, int]]:
    inner = hash_edges(pieces).tolist()
    return list(zip([-(1 << 63), *inner], [*(edge - 1 for edge in inner), (1 << 63) - 1]))


def _read_amount(parts: Sequence[Part], buckets: int) -> float:
    """How many times the rows are read in all, where every bucket reads the row groups that it has a share in."""
    rows = sum(part.num_rows for part in parts)
    groups = [1 if part.bounds is None else max(1, len(part.bounds[0])) for part in parts]
    read = sum(part.num_rows * max(1.0, buckets / count) for part, count in zip(parts, groups))
    return read / rows if rows else 1.0


def _power_of_two(least: float) -> int:
    return 1 << max(0, int(np.ceil(np.log2(max(least, 1.0)))))
