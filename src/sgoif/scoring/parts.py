"""What scoring writes: a run like any other, whose examples lie in one part per piece, and the records put aside.

``sgoif issues``, ``classes``, ``report`` and ``check`` read it as they read a training's. Parts appear one by one;
``run.json`` says ``running`` until the last of them is there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from sgoif.files.locations import Place
from sgoif.store.blocks import encode_table, table_of
from sgoif.store.info import environment, find_info, now, write_info
from sgoif.store.parts import name_part
from sgoif.store.reader import RunFiles
from sgoif.store.schema import MEAN_SIGNALS, SCHEMA_VERSION, IdKind

__all__ = ["copy_judged", "hash_judged", "pieces_done", "write_part", "write_quarantine", "write_run_info"]

_EDITION = 1
_SCORED, _COPIED = 0, 1  # the "ranks" under which parts of the two kinds lie
_PART = re.compile(r"examples/rank-00000/edition-0001-part-(\d+)\.parquet")
_JUDGED = ("p_mislabeled", "p_mislabeled_low", "p_mislabeled_high", "no_p_reason", "harm_std", "worst_std")


def write_part(
    place: Place,
    number: int,
    ids: Sequence[Any],
    labels: NDArray[np.int64],
    columns: Mapping[str, NDArray[Any]],
    kind: IdKind,
) -> None:
    """Write the scores of a piece, with the columns that an audit has; empty where nothing was scored."""
    count = len(labels)
    table: dict[str, Any] = {
        "id": np.array(ids, np.int64) if kind == "int" else np.array([str(id) for id in ids], object),
        "given_label": labels,
        "suggested_label": columns.get("suggested_label", labels),
        "suggested_label_2": np.full(count, -1),
        "suggested_label_3": np.full(count, -1),
        "suggested_share": np.ones(count),
        "n_visits": np.ones(count, np.int64),
        "confidence": np.ones(count),
    }
    table |= {name: columns[name] for name in (*MEAN_SIGNALS, *_JUDGED) if name in columns}
    found = table_of("examples", table, 0, kind)[0].sort_by("id_hash").combine_chunks()
    place.write(name_part("examples", _SCORED, _EDITION, number), encode_table(found))


def write_quarantine(place: Place, number: int, records: Sequence[tuple[str, str]]) -> None:
    """Write which records were put aside and why; nothing where there are none."""
    if not records:
        return
    # undecodable file names have no UTF-8
    ids, errors = ([text.encode("utf-8", "backslashreplace").decode() for text in column] for column in zip(*records))
    out = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": pa.array(ids, pa.string()), "error": pa.array(errors, pa.string())}), out)
    place.write(f"quarantine/part-{number:06d}.parquet", out.getvalue())


def pieces_done(place: Place) -> set[int]:
    """Tell which pieces have their part."""
    found = (_PART.fullmatch(path) for path in place.sizes("examples"))
    return {int(match[1]) for match in found if match is not None}


def write_run_info(place: Place, facts: Mapping[str, Any], kind: IdKind, *, is_finished: bool) -> None:
    """Write ``run.json``."""
    before = find_info(place) or {"created": now(), "attempts": [{"attempt": 0, "start_step": 0, "started": now()}]}
    info = {
        **before,
        "schema_version": SCHEMA_VERSION,
        "state": "finished" if is_finished else "running",
        "updated": now(),
        "id_kind": kind,
        "editions": {**before.get("editions", {}), "examples": _EDITION},
        "keep_visits": "none",
        "facts": dict(facts),
        **environment(),
    }
    write_info(place, info)


def hash_judged(run: RunFiles) -> NDArray[np.int64]:
    """Hashes of the examples that a run has judged, ascending: 8 bytes each.

    A visit made while the gate was shut adds nothing; an example that had no other has confidence 0.
    """
    found = [
        _filter_judged(table)["id_hash"].to_numpy() for table in run.batches("examples", ["id_hash", "confidence"])
    ]
    return np.sort(np.concatenate(found)) if found else np.zeros(0, np.int64)


def copy_judged(run: RunFiles, place: Place) -> int:
    """Copy the examples that a run has judged, beside scores of the others; return how many.

    The run itself stays as it is.
    """
    total = 0
    for number, part in enumerate(run.parts("examples")):
        rows = [_filter_judged(table) for table in run.read_part(part)]
        table = pa.concat_tables(rows).combine_chunks() if rows else run.empty("examples")
        total += len(table)
        place.write(name_part("examples", _COPIED, _EDITION, number), encode_table(table))
    return total


def _filter_judged(table: pa.Table) -> pa.Table:
    return table.filter(pc.greater(pc.fill_null(table["confidence"], 0.0), 0.0))
