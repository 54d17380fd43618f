"""Adds up the visits that trainings have written which ended without ``monitor.close()``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sgoif.errors import SgoifError
from sgoif.sequences import RANKS_MISSING, tables_of_sequences
from sgoif.store import RunFiles, write_edition, write_examples
from sgoif.store.holding import describe_unclosed
from sgoif.store.parts import Part
from sgoif.training.sequences.recorder import SequenceRecorder
from sgoif.training.sequences.visit_log import VISITS
from sgoif.types import Columns

__all__ = ["close_run"]

_AT_ONCE = 1 << 20  # rows that are written at once


def close_run(url: str | os.PathLike[str]) -> int:
    """Write one row per example of a run that was not closed, in place of those that are there; return their number.

    There are no probabilities, which ``monitor.close()`` learns. A training that goes on is not disturbed, and its
    ``close()`` replaces what is written here.

    Raises:
        SgoifError: The run is closed, or none of its visits is on disk.
    """
    with RunFiles(url) as files:
        facts = dict(files.info.get("facts") or {})
        warnings = dict(facts.get("warnings") or {})
        is_missing = warnings.pop(RANKS_MISSING, None) is not None
        if files.is_finished and files.parts("examples") and not is_missing:
            raise SgoifError(f"{str(url)!r} is closed already: there is nothing to add up.")
        table = VISITS if facts.get("task") == "sequences" else "visits"
        if not any(part.num_rows for part in files.parts(table)):
            raise SgoifError(describe_unclosed(url, files.info, has_visits=False))
        if not files.is_finished:
            warnings["not_closed"] = (
                "the training ended without monitor.close(), or goes on: these figures are of the visits before step "
                f"{files.info.get('next_step', '?')}"
            )
        files.info["facts"] = facts = facts | {"warnings": warnings}
        return _add_up_sequences(files, facts) if table == VISITS else write_examples(files)


def _add_up_sequences(files: RunFiles, facts: dict[str, Any]) -> int:
    sizes = {name: group["num_sequences"] for name, group in facts["groups"].items()}
    shares = {name: size / sum(sizes.values()) for name, size in sizes.items()}
    recorder = SequenceRecorder(shares)
    by_rank: dict[str, list[Part]] = {}
    for part in files.parts(VISITS):  # sorted by rank, then in the order in which they were written
        by_rank.setdefault(part.path.split("/")[1], []).append(part)
    for parts in by_rank.values():
        own = SequenceRecorder(shares)
        for part in parts:
            for rows in files.read_part(part):
                own.add_up(*_visits_of(rows, len(sizes)))
        recorder.merge(own.state_dict())
    info, tables = tables_of_sequences(recorder, facts)
    files.info["facts"] = info
    for name, columns in tables.items():
        write_edition(files, name, _pieces(columns))
    return len(recorder.index)


def _visits_of(rows: pa.Table, groups: int) -> tuple[NDArray[np.int64], NDArray[Any], NDArray[np.float64]]:
    """Steps, ids, and what the recorder takes."""
    ids = rows["id"].to_numpy()
    packed = np.full((len(rows), 2 + 2 * groups), np.nan)
    packed[:, 0], packed[:, 1] = rows["loss"].to_numpy(), rows["num_tokens"].to_numpy()
    for n, name in enumerate(("harm", "cosine")):
        scores = rows[name].combine_chunks()
        was_scored, columns = scores.is_valid().to_numpy(False), slice(2 + n * groups, 2 + (n + 1) * groups)
        packed[was_scored, columns] = scores.flatten().to_numpy(False).reshape(-1, groups)
    return rows["step"].to_numpy(), ids.astype(str) if ids.dtype == object else ids, packed


def _pieces(columns: Columns) -> Iterator[Columns]:
    for start in range(0, len(columns["id"]), _AT_ONCE):
        yield {name: values[start : start + _AT_ONCE] for name, values in columns.items()}
