"""Evidence per example from the visits on disk: the sums that the run had in memory, bucket by bucket.

The rows of a bucket go through the same accumulators that training uses, so the numbers are the same up to the rounding
of float64 sums. No more than one bucket of ids is in memory, so a run may have more examples than memory has room for.

A bucket is one of ``B`` equal pieces of the range of hashes, ``B`` a power of two, so that all visits of an example lie
in one bucket. Parts are cut into row groups at edges of the same kind. Where ``B`` is small each bucket reads its own
row groups. Where a row group spans many buckets that would read everything many times over; then the rows of a wide
piece of the range, a *shelf*, are read once, laid out by bucket on a local disk, and taken from there.

10^10 visits of 130 bytes: with 256 MB per bucket 8,192 buckets on 64 shelves, each 20 GB of scratch; a part of 64 MB
has 32 row groups, so every byte is read twice from the store, and written and read once on the local disk.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sgoif.errors import StoreError
from sgoif.evidence import Evidence, LastPredictions, LikelyClasses, VisitMeans
from sgoif.evidence.examples import read_examples
from sgoif.store.blocks import hash_edges
from sgoif.store.editions import write_edition
from sgoif.store.reader import RunFiles
from sgoif.store.schema import FLAGS_NOT_USABLE, MEAN_SIGNALS, STANDARDISED

__all__ = ["count_buckets", "merge_evidence", "merge_tables", "write_examples"]

_COLUMNS = (
    "id",
    "id_hash",
    "attempt",
    "step",
    "micro_step",
    "given_label",
    *MEAN_SIGNALS,
    *(f"{name}_std" for name in STANDARDISED),
    "runner_up",
    "worst_anchor",
    "confidence",
    "confidence_worst",
    "flags",
)
_PREDICTED = ("p_given", "margin", "runner_up", "flags")
_ROWS_AT_ONCE = 1 << 17  # accumulators make float64 copies of what they are given
_ROW_BYTES = 400  # of a visit while its bucket is merged: its columns, and at most as much evidence as visits
_SCRATCH_BYTES = 24 << 30
_SCRATCH_ROW_BYTES = 160
_OPEN_FILES = 128  # of one shelf; the usual limit of a process is 1,024
_GATHERED_ROWS = 1 << 18  # rows that are laid out at once
_READ_TWICE = 2.0  # reading this many times the rows is cheaper than laying them out


def merge_evidence(
    files: RunFiles,
    buckets: int | None = None,
    *,
    memory_bytes: int = 256 << 20,
    scratch: str | os.PathLike[str] | None = None,
) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield one row per example and bucket of ids: means over visits, votes, confidence, number of visits.

    The columns are those of ``examples``; ids that are strings come as an array of objects. Where not all visits were
    kept (``keep_visits``), this is the evidence of those that were.

    Args:
        files: the run.
        buckets: how many, a power of two; None chooses by the memory.
        memory_bytes: what the rows of one bucket may take.
        scratch: local folder for rows that must be laid out by bucket first.
    """
    for found in merge_tables(files, buckets, memory_bytes, scratch):
        yield {**found, "id": np.asarray(found["id"].to_numpy(zero_copy_only=False))}


def write_examples(
    files: RunFiles,
    buckets: int | None = None,
    *,
    memory_bytes: int = 256 << 20,
    scratch: str | os.PathLike[str] | None = None,
) -> int:
    """Write the table ``examples`` from the visits, in place of the one that is there; return its number of rows.

    Readers see the new edition when all of it is written.
    """
    return write_edition(files, "examples", merge_tables(files, buckets, memory_bytes, scratch))


def merge_tables(
    files: RunFiles,
    buckets: int | None = None,
    memory_bytes: int = 256 << 20,
    scratch: str | os.PathLike[str] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield what :func:`merge_evidence` does, with ids as Arrow has them."""
    if memory_bytes < 1:
        raise StoreError(f"memory_bytes must be positive, got {memory_bytes}.")
    count = count_buckets(files, memory_bytes) if buckets is None else buckets
    if count < 1 or count & (count - 1):
        raise StoreError(f"buckets must be a power of two, got {count}.")
    return map(_merge_bucket, _read_buckets(files, count, scratch))


def _merge_bucket(table: pa.Table) -> dict[str, Any]:
    """Add up the visits of a bucket; the ids stay Arrow's, so that one long id does not widen all."""
    coded = table["id"].combine_chunks().dictionary_encode()
    ids, rows = coded.dictionary, coded.indices.to_numpy().astype(np.int64)
    column = {name: table[name].to_numpy() for name in _COLUMNS if name != "id"}
    num_anchors, num_classes = (max(1, int(column[name].max(initial=0)) + 1) for name in ("worst_anchor", "runner_up"))
    evidence, likely = Evidence(STANDARDISED, num_anchors, len(ids)), LikelyClasses(num_classes)
    means = VisitMeans(MEAN_SIGNALS)
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        _add(evidence, means, likely, rows[part], {name: values[part] for name, values in column.items()})
    last = np.lexsort((column["micro_step"], column["step"], column["attempt"]))  # an example's last row comes last
    final, (own, margin, other, flags) = LastPredictions(), (column[name][last] for name in _PREDICTED)
    final.keep(rows[last], own, margin, other, _are_usable(flags))
    last = last[column["given_label"][last] >= 0]  # a mixed or soft target names no class, and takes none away
    given, hashes = np.full(len(ids), -1, np.int64), np.zeros(len(ids), np.int64)
    given[rows[last]] = column["given_label"][last]
    hashes[rows] = column["id_hash"]
    found = {"id": ids, "id_hash": hashes, "given_label": given}
    return found | read_examples(evidence, likely, means, final, count=len(ids))


def _add(
    evidence: Evidence,
    means: VisitMeans,
    likely: LikelyClasses,
    rows: NDArray[np.int64],
    column: dict[str, NDArray[Any]],
) -> None:
    """Do with stored visits what the recorder does with fresh ones."""
    usable = _are_usable(column["flags"])
    gate, gate_worst = (
        np.where(usable, np.nan_to_num(column[name]), 0.0).clip(0, 1) for name in ("confidence", "confidence_worst")
    )
    means.add(rows, column, usable, gate)
    likely.add(rows, column["p_given"], column["margin"], column["runner_up"], usable)
    evidence.add(
        rows,
        np.stack([column[f"{name}_std"] for name in STANDARDISED], 1),
        np.stack([gate, gate_worst], 1),
        np.where(usable, column["worst_anchor"], -1),
        raw=np.stack([column[name] for name in STANDARDISED], 1),
    )


def _are_usable(flags: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
    return np.asarray((flags & FLAGS_NOT_USABLE) == 0)


def count_buckets(files: RunFiles, memory_bytes: int) -> int:
    """Choose how many buckets keep the visits of one within the given memory, as a power of two."""
    rows = sum(part.num_rows for part in files.parts("visits"))
    return _power_of_two(rows * _ROW_BYTES / memory_bytes)


def _read_buckets(files: RunFiles, buckets: int, scratch: str | os.PathLike[str] | None) -> Iterator[pa.Table]:
    """Yield the visits of each bucket in turn, all of an example's in one of them."""
    parts = files.parts("visits")
    rows = sum(part.num_rows for part in parts)
    groups = [1 if part.bounds is None else max(1, len(part.bounds[0])) for part in parts]
    # rows that are read in all, where every bucket reads the row groups that it has a share in
    read = sum(part.num_rows * max(1.0, buckets / count) for part, count in zip(parts, groups))
    if read <= _READ_TWICE * rows:
        for low, high in _ranges(buckets):
            yield _join(files, _rows_between(files, low, high))
        return
    shelves = min(buckets, max(_power_of_two(rows * _SCRATCH_ROW_BYTES / _SCRATCH_BYTES), buckets // _OPEN_FILES))
    for low, high in _ranges(shelves):
        with tempfile.TemporaryDirectory(prefix="sgoif-merge-", dir=scratch) as folder:
            yield from _through_scratch(files, low, high, buckets // shelves, Path(folder))


def _through_scratch(files: RunFiles, low: int, high: int, count: int, folder: Path) -> Iterator[pa.Table]:
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

    for table in _rows_between(files, low, high):
        waiting.append(table)
        if sum(map(len, waiting)) >= _GATHERED_ROWS:
            lay_out()
    if waiting:
        lay_out()
    for writer in writers.values():
        writer.close()
    for bucket in range(count):
        if bucket not in writers:
            yield _join(files, [])
            continue
        path = folder / f"{bucket}.arrows"
        with pa.ipc.open_stream(str(path)) as stream:
            rows = stream.read_all()
        path.unlink()
        yield rows.combine_chunks()


def _rows_between(files: RunFiles, low: int, high: int) -> Iterator[pa.Table]:
    """Read the visits whose hash is in ``low..high``, from the row groups that may hold some."""
    for part in files.parts("visits"):
        groups = None
        if part.bounds is not None:
            groups = np.flatnonzero((part.bounds[1] >= low) & (part.bounds[0] <= high)).tolist()
        for table in files.read_part(part, list(_COLUMNS), groups) if groups != [] else ():
            hashes = table["id_hash"].to_numpy()
            inside = (hashes >= low) & (hashes <= high)
            if inside.any():
                yield table if inside.all() else table.filter(pa.array(inside))


def _join(files: RunFiles, tables: Iterable[pa.Table]) -> pa.Table:
    return pa.concat_tables([files.empty("visits").select(_COLUMNS), *tables]).combine_chunks()


def _ranges(pieces: int) -> list[tuple[int, int]]:
    inner = hash_edges(pieces).tolist()
    return list(zip([-(1 << 63), *inner], [*(edge - 1 for edge in inner), (1 << 63) - 1]))


def _power_of_two(least: float) -> int:
    return 1 << max(0, math.ceil(math.log2(max(least, 1.0))))
