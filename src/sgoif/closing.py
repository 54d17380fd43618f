"""Adds up the visits that trainings have written which ended without ``monitor.close()``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sgoif.errors import SgoifError
from sgoif.sequences import RANKS_MISSING, tables_of_sequences
from sgoif.store import RunFiles
from sgoif.store.editions import publish, write_parts
from sgoif.store.holding import describe_unclosed
from sgoif.store.merge import merge_tables
from sgoif.store.parts import Part
from sgoif.training.sequences.recorder import SequenceRecorder
from sgoif.training.sequences.visit_log import VISITS, visits_of
from sgoif.types import Columns

__all__ = ["close_run"]

_AT_ONCE = 1 << 20  # rows that are written at once


def close_run(url: str | os.PathLike[str]) -> int:
    """Write one row per example of a run that was not closed, in place of those that are there; return their number.

    There are no probabilities, which ``monitor.close()`` learns. A training that goes on is not disturbed, and its
    ``close()`` replaces what is written here.

    Raises:
        SgoifError: The run is closed, none of its visits is on disk, or a training ended or began in it meanwhile.
    """
    with RunFiles(url) as files:
        facts, before = dict(files.info.get("facts") or {}), files.info.get("added_up") or {}
        warnings = dict(facts.get("warnings") or {})
        counted = {name: sum(part.num_rows for part in files.parts(name)) for name in (VISITS, "visits")}
        table = max(counted, key=lambda name: counted[name])
        was_partial = warnings.pop(RANKS_MISSING, None) is not None
        was_partial |= counted[table] > before.get("visits", counted[table])  # a process wrote more since
        if files.is_finished and files.parts("examples") and not was_partial:
            raise SgoifError(f"{str(url)!r} is closed already: there is nothing to add up.")
        if not counted[table]:
            raise SgoifError(describe_unclosed(url, files.info, has_visits=False))
        found = files.sql(f"select count(*) as visits, min(step) as first_step, max(step) as last_step from {table}")
        added_up = {name: int(found[name][0].as_py()) for name in found.column_names}
        tables: Mapping[str, Iterable[Mapping[str, Any]]] = {"examples": merge_tables(files)}
        if table == VISITS:
            info, columns = tables_of_sequences(_add_up(files, facts.get("groups")), {"warnings": warnings})
            added_up |= {name: info[name] for name in ("num_examples", "num_not_judged")}
            warnings, tables = info.get("warnings", {}), {name: _pieces(each) for name, each in columns.items()}
        editions = {name: write_parts(files, name, pieces, skipped=1) for name, pieces in tables.items()}
        changes = {"added_up": added_up, "facts": facts | {"warnings": warnings}}
        publish(files, editions, changes=changes, only_if_unchanged=True)
        return editions["examples"].num_rows


def _add_up(files: RunFiles, groups: Any) -> SequenceRecorder:
    if not isinstance(groups, dict) or not groups:
        raise SgoifError(f"run.json of {files.url!r} names no groups, so its visits cannot be added up.")
    sizes = {name: group["num_sequences"] for name, group in groups.items()}
    shares = {name: size / sum(sizes.values()) for name, size in sizes.items()}
    recorder = SequenceRecorder(shares)
    by_rank: dict[str, list[Part]] = {}
    for part in files.parts(VISITS):  # sorted by rank, then in the order in which they were written
        by_rank.setdefault(part.path.split("/")[1], []).append(part)
    for parts in by_rank.values():
        own = SequenceRecorder(shares)
        for part in parts:
            for rows in files.read_part(part):
                own.add_up(*visits_of(rows, len(sizes)))
        recorder.merge(own.state_dict())
    return recorder


def _pieces(columns: Columns) -> Iterator[Columns]:
    for start in range(0, len(columns["id"]), _AT_ONCE):
        yield {name: values[start : start + _AT_ONCE] for name, values in columns.items()}
