"""A Hugging Face dataset with a run's findings as further columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sgoif.errors import SgoifError
from sgoif.evidence import hash_ids
from sgoif.tables import with_holdout

if TYPE_CHECKING:
    from sgoif.run import Run

__all__ = ["with_findings"]

_COLUMNS = ("p_mislabeled", "no_p_reason", "suggested_label", "harm", "worst", "confidence")


def with_findings(
    run: Run, dataset: Any, *, ids: str | Sequence[Any] | None = None, columns: Sequence[str] = _COLUMNS
) -> Any:
    """Return the dataset with columns of ``examples``, named ``sgoif_...``; empty where the run does not know a row.

    Rows that the run held out have theirs, too; verified ones are empty.

    Args:
        run: what was found.
        dataset: a ``datasets.Dataset``.
        ids: the column that holds the ids, or the ids themselves; positions by default, as of ``sgoif.with_ids``.
        columns: which; those that the run lacks are left out.

    Raises:
        SgoifError: Not one id is one of the run's.
    """
    table = with_holdout(run.table, run._tables.columns("holdout"))  # an id in both is the training example's
    own = range(len(dataset)) if ids is None else dataset[ids] if isinstance(ids, str) else ids
    place = _places(table["id"], np.asarray(own))
    if len(place) and (place < 0).all():
        raise SgoifError("no id of the dataset is one of this run's; pass ids=, the column that holds them.")
    for name in (name for name in columns if name in table):
        dataset = dataset.add_column(f"sgoif_{name}", _taken(table[name], place))
    return dataset


def _places(known: NDArray[Any], asked: NDArray[Any]) -> NDArray[np.int64]:
    """Where each id stands in the run's table, -1 where nowhere. Numbers and their text are the same id."""
    is_text = known.dtype.kind not in "iu" or asked.dtype.kind not in "iu"
    hashes = [hash_ids(ids.astype(str) if is_text else ids.astype(np.int64)) for ids in (known, asked)]
    order = np.argsort(hashes[0])
    place = np.minimum(np.searchsorted(hashes[0], hashes[1], sorter=order), len(known) - 1)
    return np.where(hashes[0][order[place]] == hashes[1], order[place], -1)


def _taken(values: NDArray[Any], place: NDArray[np.int64]) -> list[Any]:
    taken, missing = values[np.maximum(place, 0)], place < 0
    return [None if is_missing else value for value, is_missing in zip(taken.tolist(), missing.tolist(), strict=True)]
