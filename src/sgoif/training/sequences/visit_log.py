"""The visits of sequences on disk, from which a run whose training was killed can be added up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sgoif.training.sinks import ScoreSink

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["VISITS", "VisitLog", "visits_of"]

VISITS = "sequence_visits"  # the table


class VisitLog:
    """Writes visits as they are recorded; each process has its own.

    Args:
        sink: where they go.
        rank: of this process.
    """

    def __init__(self, sink: ScoreSink, rank: int) -> None:
        self._sink, self._rank = sink, rank
        self._waiting: list[tuple[int, NDArray[Any], NDArray[np.float64]]] = []

    def add(self, step: int, ids: NDArray[Any], packed: NDArray[np.float64]) -> None:
        """Take visits of a step until :meth:`write`: loss per token, tokens, harm by group, cosine by group."""
        self._waiting.append((step, ids, packed))

    def write(self) -> None:
        """Hand over what waits."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        steps, ids, packed = zip(*waiting)
        values = np.concatenate(packed)
        groups = (values.shape[1] - 2) // 2
        self._sink.write_table(
            VISITS,
            {
                "id": np.concatenate(ids),
                "step": np.repeat(steps, [len(each) for each in ids]),
                "rank": np.full(len(values), self._rank),
                "num_tokens": values[:, 1],
                "loss": values[:, 0],
                "harm": _as_lists(values[:, 2 : 2 + groups]),
                "cosine": _as_lists(values[:, 2 + groups :]),
            },
        )


def _as_lists(scores: NDArray[np.float64]) -> NDArray[Any]:
    """One list per row; none where nothing was scored."""
    found = np.empty(len(scores), object)
    for row in np.flatnonzero(~np.isnan(scores).all(1)):
        found[row] = scores[row].astype(np.float32)
    return found


def visits_of(rows: pa.Table, groups: int) -> tuple[NDArray[np.int64], NDArray[Any], NDArray[np.float64]]:
    """Steps, ids, and what :class:`VisitLog` was given, from rows of its table."""
    ids = rows["id"].to_numpy()
    packed = np.full((len(rows), 2 + 2 * groups), np.nan)
    packed[:, 0], packed[:, 1] = rows["loss"].to_numpy(), rows["num_tokens"].to_numpy()
    for n, name in enumerate(("harm", "cosine")):
        scores = rows[name].combine_chunks()
        was_scored, columns = scores.is_valid().to_numpy(False), slice(2 + n * groups, 2 + (n + 1) * groups)
        packed[was_scored, columns] = scores.flatten().to_numpy(False).reshape(-1, groups)
    return rows["step"].to_numpy(), ids.astype(str) if ids.dtype == object else ids, packed
