"""What a scan says of the data as a whole: hands what it knows of the examples to the checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgoif.checks import CheckedData, find_data_issues
from sgoif.judging.judgement import Judgement
from sgoif.scanning import Progress
from sgoif.scanning.examples import ScanExamples
from sgoif.sources.labelled import Source, TableSource

__all__ = ["IssueFinder", "finder_of"]


@dataclass(frozen=True, slots=True)
class IssueFinder:
    """Checks the examples of a scan once their labels are judged."""

    found: ScanExamples
    class_names: Sequence[str]
    columns: Mapping[str, NDArray[Any]] | None
    group: NDArray[Any] | None
    split: NDArray[Any] | None
    seed: int
    progress: Progress

    def find_without_labels(self) -> list[dict[str, Any]]:
        """Answers of the checks that need no judgement of labels."""
        return self._check({})

    def find(
        self,
        ids: NDArray[Any],
        estimate: Judgement,
        features: NDArray[np.float32] | None,
        share: tuple[float, float, float] | None,
    ) -> list[dict[str, Any]]:
        """Answers of all checks, for the run's information.

        Args:
            ids: of the examples that were judged; others are known by their labels alone.
            estimate: of these.
            features: of these, standardised, ``[n, D]``; none where pictures were learnt from as they are.
            share: of wrong labels, with its range; None where the run gives no probabilities.
        """
        everyone = self.found.ids
        place = {id: row for row, id in enumerate(everyone.tolist())}
        rows = np.array([place[id] for id in ids.tolist()], dtype=np.int64)

        def spread(values: NDArray[Any], fill: Any) -> NDArray[Any]:
            if len(rows) == len(everyone) and (rows == np.arange(len(rows))).all():
                return values
            full = np.full((len(everyone), *values.shape[1:]), fill, values.dtype)
            full[rows] = values
            return full

        predicted = np.full(len(ids), -1)
        predicted[estimate.sampled] = estimate.predicted
        return self._check(
            {
                "features": None if features is None else spread(features, 0.0),
                "p_mislabeled": None if share is None else spread(estimate.p, np.nan),
                "error_share": share,
                "suggested": spread(estimate.suggested[:, 0], -1),
                "predicted": spread(predicted, -1),
            }
        )

    def _check(self, judged: Mapping[str, Any]) -> list[dict[str, Any]]:
        checked = CheckedData(
            self.found.ids,
            self.found.labels,
            self.class_names,
            **judged,
            duplicates=self.found.copies,
            columns=self.columns,
            pictures=self.found.statistics,
            split=self.split,
            group=self.group,
        )
        answers = [issue.to_dict() for issue in find_data_issues(checked, seed=self.seed)]
        self.progress("checking the data", 1, 1)
        return answers


def finder_of(source: Source, found: ScanExamples, seed: int, progress: Progress) -> IssueFinder:
    """Read what the checks need of a source."""
    columns: dict[str, NDArray[Any]] | None = None
    group = split = None
    if isinstance(source, TableSource):
        roles = source.roles
        table = source.reader.read(roles.others) if roles.others else None
        columns = {name: _values(table, name)[found.positions] for name in roles.others} if table is not None else None
        group, split = (_column(source, name, found.positions) for name in (roles.group, roles.split))
    return IssueFinder(found, source.class_names, columns, group, split, seed, progress)


def _values(table: Any, name: str) -> NDArray[Any]:
    column = table[name]
    try:
        return np.asarray(column.to_numpy())
    except Exception:  # decimals and other types that numpy has no counterpart for
        return np.array(column.to_pylist(), dtype=object)


def _column(source: TableSource, name: str | None, positions: NDArray[np.int64]) -> NDArray[Any] | None:
    if name is None:
        return None
    return np.array(["" if value is None else str(value) for value in source.cells(name, positions)], dtype=object)
