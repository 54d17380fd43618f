"""What commands ask of a run, and what they refuse to go on without."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sgoif.errors import SgoifError

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from sgoif.run import Run


def open_run(
    url: str, *, needs_examples: bool = False, takes_values: bool = False, takes_sequences: bool = False
) -> Run:
    """Open a run without a word about its state; where examples are needed and there are none, say what to do.

    Most commands are about classes. Those that can show a regression too say so with ``takes_values``, and those
    that can show a language model with ``takes_sequences``.
    """
    from sgoif.run import open_run as open_any

    run = open_any(url)
    if not (takes_values and run.has_values) and not (takes_sequences and run.has_sequences):
        run.need_classes()
    if needs_examples:
        need_examples(run)
    return run


def name_of(run: Run, label: Any) -> str:
    """A class's name, or its number; nothing for no class."""
    from sgoif.findings.label import class_name

    return "" if label is None or label < 0 else class_name(int(label), run.class_names)


def read_one(run: Run, query: str, **parameters: Any) -> Any:
    """The only value of an answer."""
    return run.sql(query, **parameters)[0][0].as_py()


@contextmanager
def open_tables(**tables: pa.Table) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open DuckDB over some tables, outside of any run; what its memory cannot hold goes to a temporary folder."""
    import duckdb

    with tempfile.TemporaryDirectory(prefix="sgoif-sql-", ignore_cleanup_errors=True) as folder:
        settings: dict[str, Any] = {"threads": "1", "memory_limit": "1GB", "temp_directory": folder}
        with duckdb.connect(":memory:", config=settings) as connection:
            for name, table in tables.items():
                connection.register(name, table)
            yield connection


def need_examples(run: Run) -> None:
    """Raise where the run has no examples to show, and say what to do."""
    from sgoif.store.holding import count_visits, describe_unclosed

    if run.num_examples:
        return
    if run.files.is_finished:
        raise SgoifError(f"{run.url!r} finished without a single scored example; see `sgoif info {run.url}`.")
    raise SgoifError(describe_unclosed(run.files.url, run.files.info, has_visits=count_visits(run.files) > 0))


def need_probabilities(run: Run) -> None:
    """Raise where the run has no probabilities, and say why."""
    from sgoif.summary import why_no_probabilities

    need_examples(run)
    if not run.is_calibrated:
        reason = why_no_probabilities(run.info)
        raise SgoifError(f"{run.url!r} has no probabilities: {reason}. `sgoif issues` ranks its labels without.")


def need_trust(run: Run, *, needs_holdout: bool = True) -> None:
    """Raise where the run noticed something by which its figures cannot be trusted.

    A hold-out that was trained on spoils what the run thinks, not what people say of a sample of all examples.
    """
    from sgoif.doubts import doubts_of

    doubts = [doubt for doubt in doubts_of(run.info, run.num_examples) if doubt.spoils]
    spoiled = [doubt.text for doubt in doubts if needs_holdout or not doubt.is_of_holdout]
    if spoiled:
        raise SgoifError(f"the figures of {run.url!r} cannot be trusted: {'; and '.join(spoiled)}.")
