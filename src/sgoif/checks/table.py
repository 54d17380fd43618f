"""The issues of a run as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sgoif.checks.data import SEVERITIES
from sgoif.errors import SgoifError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["issue_table"]


def issue_table(info: Mapping[str, Any]) -> pa.Table:
    """Read the issues that a scan kept in the facts of its run: the most severe first, the unknown last.

    Raises:
        SgoifError: The run has none.
    """
    import pyarrow as pa

    found = info.get("data_issues")
    if not isinstance(found, list) or not all(isinstance(item, Mapping) for item in found):
        raise SgoifError(
            "this run has no table of data issues: it is not from a scan. `sgoif scan` checks the data at its end."
        )
    schema = pa.schema(
        [
            *(("kind", pa.string()), ("severity", pa.string()), ("title", pa.string()), ("count", pa.int64())),
            *(("share", pa.float64()), ("low", pa.float64()), ("high", pa.float64()), ("p_value", pa.float64())),
            *(("ids", pa.list_(pa.string())), ("scores", pa.list_(pa.float64()))),
            *(("what_to_do", pa.string()), ("why_not", pa.string())),
        ]
    )
    rank = {name: place for place, name in enumerate(SEVERITIES)}
    rows = sorted(found, key=lambda item: rank.get(str(item.get("severity")), len(rank)))
    try:
        return pa.Table.from_pylist([{name: row.get(name) for name in schema.names} for row in rows], schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise SgoifError(f"the data issues of this run are damaged: {error}. Run `sgoif scan` again.") from error
