"""Evidence per example from the visits on disk: the sums that the run had in memory, bucket by bucket.

The rows of a bucket go through the same accumulators that training uses, so the numbers are the same up to the rounding
of float64 sums. No more than one bucket of ids is in memory, so a run may have more examples than memory has room for.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sgoif.errors import StoreError
from sgoif.evidence import Evidence, LikelyClasses, WeightedMeans
from sgoif.evidence.examples import read_examples
from sgoif.store.blocks import encode_table, table_of
from sgoif.store.buckets import bucket_rows, count_buckets
from sgoif.store.info import write_info
from sgoif.store.parts import name_part, numbers_taken
from sgoif.store.reader import RunFiles
from sgoif.store.schema import CLASSLESS_SIGNALS, FLAGS_NOT_USABLE, MEAN_SIGNALS, STANDARDISED

__all__ = ["merge_evidence", "write_edition", "write_examples"]

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
_MEANS = (CLASSLESS_SIGNALS, tuple(name for name in MEAN_SIGNALS if name not in CLASSLESS_SIGNALS))
_ROWS_AT_ONCE = 1 << 17  # accumulators make float64 copies of what they are given
_PART_BYTES = 64 << 20


def merge_evidence(
    files: RunFiles,
    buckets: int | None = None,
    *,
    memory_bytes: int = 256 << 20,
    scratch: str | os.PathLike[str] | None = None,
) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield one row per example and bucket of ids: means weighted by the gate, votes, confidence, visits.

    The columns are those of ``examples``; ids that are strings come as an array of objects. Where not all visits were
    kept (``keep_visits``), this is the evidence of those that were.

    Args:
        files: the run.
        buckets: how many, a power of two; None chooses by the memory.
        memory_bytes: what the rows of one bucket may take.
        scratch: local folder for rows that must be laid out by bucket first; see :mod:`sgoif.store.buckets`.
    """
    for found in _merge(files, buckets, memory_bytes, scratch):
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
    return write_edition(files, _merge(files, buckets, memory_bytes, scratch))


def write_edition(files: RunFiles, tables: Iterable[Mapping[str, Any]]) -> int:
    """Write the table ``examples`` piece by piece, in place of the one that is there; return its number of rows.

    Readers see the new edition when all of it is written. Where that fails, they go on seeing the old one.
    """
    place, edition = files.place, 1 + max([0, *numbers_taken(files.place, "examples")])
    waiting: list[pa.Table] = []
    part = total = 0
    for found in tables:
        if len(found["id"]):
            waiting.append(table_of("examples", found, 0, files.id_kind("examples"))[0])
        if sum(table.nbytes for table in waiting) >= _PART_BYTES:
            total += _write_part(files, waiting, edition, part)
            part += 1
    if waiting:
        total += _write_part(files, waiting, edition, part)
    old = [item.path for item in files.parts("examples")]
    files.info["editions"] = {**files.info.get("editions", {}), "examples": edition}
    write_info(place, files.info)
    place.remove(old)
    files.refresh()
    return total


def _write_part(files: RunFiles, waiting: list[pa.Table], edition: int, part: int) -> int:
    table = pa.concat_tables(waiting).sort_by("id_hash").combine_chunks()
    waiting.clear()
    files.place.write(name_part("examples", 0, edition, part), encode_table(table))
    return len(table)


def _merge(
    files: RunFiles, buckets: int | None, memory_bytes: int, scratch: str | os.PathLike[str] | None
) -> Iterator[dict[str, Any]]:
    if memory_bytes < 1:
        raise StoreError(f"memory_bytes must be positive, got {memory_bytes}.")
    count = count_buckets(files, memory_bytes) if buckets is None else buckets
    for rows in bucket_rows(files, _COLUMNS, count, scratch):
        yield _merge_bucket(rows)


def _merge_bucket(table: pa.Table) -> dict[str, Any]:
    """Add up the visits of a bucket; the ids stay Arrow's, so that one long id does not widen all."""
    coded = table["id"].combine_chunks().dictionary_encode()
    ids, rows = coded.dictionary, coded.indices.to_numpy().astype(np.int64)
    column = {name: table[name].to_numpy() for name in _COLUMNS if name != "id"}
    num_anchors, num_classes = (max(1, int(column[name].max(initial=0)) + 1) for name in ("worst_anchor", "runner_up"))
    evidence, likely = Evidence(STANDARDISED, num_anchors, len(ids)), LikelyClasses(num_classes)
    means = [WeightedMeans(names) for names in _MEANS]
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        _add(evidence, means, likely, rows[part], {name: values[part] for name, values in column.items()})
    last = np.lexsort((column["micro_step"], column["step"], column["attempt"]))  # an example's last row comes last
    last = last[column["given_label"][last] >= 0]  # a mixed or soft target names no class, and takes none away
    given, hashes = np.full(len(ids), -1, np.int64), np.zeros(len(ids), np.int64)
    given[rows[last]] = column["given_label"][last]
    hashes[rows] = column["id_hash"]
    found = {"id": ids, "id_hash": hashes, "given_label": given}
    return found | read_examples(evidence, likely, *means, count=len(ids))


def _add(
    evidence: Evidence,
    means: list[WeightedMeans],
    likely: LikelyClasses,
    rows: NDArray[np.int64],
    column: dict[str, NDArray[Any]],
) -> None:
    """Do with stored visits what the recorder does with fresh ones."""
    usable = (column["flags"] & FLAGS_NOT_USABLE) == 0
    gate, gate_worst = (
        np.where(usable, np.nan_to_num(column[name]), 0.0).clip(0, 1) for name in ("confidence", "confidence_worst")
    )
    for some in means:  # each passes over visits with a value that is not finite
        some.add(rows, np.stack([column[name] for name in some.signals], 1), gate)
    likely.add(rows, column["p_given"], column["margin"], column["runner_up"], gate)
    evidence.add(
        rows,
        np.stack([column[f"{name}_std"] for name in STANDARDISED], 1),
        np.stack([gate, gate_worst], 1),
        np.where(usable, column["worst_anchor"], -1),
        attempt=column["attempt"],
        step=column["step"],
        raw=np.stack([column[name] for name in STANDARDISED], 1),
    )
