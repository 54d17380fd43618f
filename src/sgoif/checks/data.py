"""What the checks look at, and what they answer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from sgoif.errors import SgoifError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["MOST_NAMED", "SEVERITIES", "CheckedData", "DataIssue", "cannot_check", "list_worst"]

MOST_NAMED = 20  # examples that an issue names
SEVERITIES = ("high", "medium", "low", "none", "unknown")  # unknown: it could not be checked


@dataclass(frozen=True)
class CheckedData:
    """A labelled dataset with what is known of it; a check whose input is missing says so.

    Rows are in the order of the file, which the checks for drift rely on.
    """

    ids: NDArray[Any]  # [N]
    labels: NDArray[np.int64]  # given classes, [N]; below 0 for none
    class_names: Sequence[str]
    features: NDArray[np.float32] | None = None  # standardised embeddings or columns, [N, D]
    log_p: NDArray[np.floating[Any]] | None = None  # log probabilities by models that did not see the example, [N, C]
    p_mislabeled: NDArray[np.floating[Any]] | None = None  # [N], NaN where a label was not judged
    error_share: tuple[float, float, float] | None = None  # of wrong labels, with its range, as summaries print it
    suggested: NDArray[np.int64] | None = None  # the most likely other class, [N]
    duplicates: pa.Table | None = None  # pairs, as Run.duplicates() gives them
    columns: Mapping[str, NDArray[Any]] | None = None  # raw columns of a table: numbers or text, each [N]
    pictures: Mapping[str, NDArray[Any]] | None = None  # as sgoif.pictures.statistics measures them, each [N]
    split: NDArray[Any] | None = None  # name of the split of each example, where there are several
    group: NDArray[Any] | None = None  # a column of the user's own: camera, annotator, hospital
    predicted: NDArray[np.int64] | None = None  # out-of-fold predictions, where log_p would be too large to keep

    def __post_init__(self) -> None:
        parts = {name: getattr(self, name) for name in _PER_EXAMPLE} | dict(self.columns or {})
        for name, values in (parts | dict(self.pictures or {})).items():
            if values is not None and len(values) != len(self.ids):
                raise SgoifError(
                    f"{name} has {len(values):,} rows and there are {len(self.ids):,} ids; pass one for each."
                )

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def is_finite(self) -> NDArray[np.bool_]:
        """Which rows have features that are all finite, ``[N]``; none where there are no features."""
        if self.features is None:
            return np.zeros(len(self), bool)
        parts = range(0, len(self), _BLOCK)
        found = [np.isfinite(self.features[start : start + _BLOCK]).all(1) for start in parts]
        return np.concatenate(found) if found else np.zeros(0, bool)

    def features_of(self, rows: NDArray[np.int64]) -> NDArray[np.floating[Any]]:
        """The features of some rows in ascending order; not a copy where it is all of them."""
        assert self.features is not None
        return self.features if len(rows) == len(self) else self.features[rows]

    def predictions(self) -> NDArray[np.int64] | None:
        """The class that was predicted out of fold, -1 where none was; None where nothing was predicted."""
        if self.log_p is None:
            return self.predicted
        is_known = np.isfinite(self.log_p).any(1)
        return np.where(is_known, np.nan_to_num(self.log_p, nan=-np.inf).argmax(1), -1)


_BLOCK = 10_000
_PER_EXAMPLE = ("labels", "features", "log_p", "p_mislabeled", "suggested", "split", "group", "predicted")


@dataclass(frozen=True)
class DataIssue:
    """The answer of one check."""

    kind: str
    title: str  # one sentence
    count: int | None  # of what the title names; None where it could not be checked
    share: float | None = None  # of the examples; of label errors, the share to expect, flagged or not
    low: float | None = None  # 95% interval of the share, for more data of this kind
    high: float | None = None
    p_value: float | None = None  # of "there is no such issue", where the check is a test
    severity: str = "none"
    ids: tuple[str, ...] = ()  # the worst, at most 20
    scores: tuple[float, ...] = ()  # larger is worse; what it is depends on the kind
    what_to_do: str = ""
    why_not: str | None = None  # why it could not be checked

    def __post_init__(self) -> None:
        if self.severity not in SEVERITIES:
            raise ValueError(f"severity is one of {', '.join(SEVERITIES)}, got {self.severity!r}")
        if (self.count is None) != (self.why_not is not None):
            raise ValueError("an issue has a count, or a reason why it could not be checked")

    @property
    def is_found(self) -> bool:
        """Whether there is something to do."""
        return self.severity not in ("none", "unknown")

    def to_dict(self) -> dict[str, Any]:
        """The issue as JSON has it; numbers that are not finite become null."""
        return {name: _to_plain(value) for name, value in asdict(self).items()}


def cannot_check(kind: str, why: str) -> DataIssue:
    """The answer of a check that lacks what it needs."""
    return DataIssue(
        kind, f"{kind.replace('_', ' ').capitalize()}: cannot tell.", None, severity="unknown", why_not=why
    )


class Worst(TypedDict):
    """The examples that an issue names."""

    ids: tuple[str, ...]
    scores: tuple[float, ...]


def list_worst(data: CheckedData, rows: NDArray[np.int64], scores: NDArray[np.floating[Any]]) -> Worst:
    """The fields ``ids`` and ``scores`` of an issue: of some rows, those with the largest scores."""
    order = np.argsort(-np.nan_to_num(scores, nan=-np.inf), kind="stable")[:MOST_NAMED]
    return {
        "ids": tuple(str(value) for value in data.ids[rows[order]].tolist()),
        "scores": tuple(float(value) for value in scores[order]),
    }


def _to_plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_to_plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
