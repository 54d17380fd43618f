"""Shortcuts: one column, or one simple statistic of the picture, from which alone the label can be predicted.

A model may learn the shortcut instead of the task. The association is measured out of fold: rates of the classes in at
most 20 ranges of the column are counted in one half of the examples and used to predict the other. Labels that are
permuted together for all columns show what chance and the choice of the strongest column would give. Whether a strong
association is a leak or the very nature of the classes is for a person to say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgoif.checks.data import CheckedData, DataIssue, cannot_check, list_worst
from sgoif.checks.numbers import make_rng
from sgoif.checks.tables import is_null
from sgoif.types import Floats
from sgoif.wording import clean, count, percent

__all__ = ["find_spurious_correlation", "measure_associations"]

KIND = "spurious_correlation"

_FEWEST, _FEWEST_IN_CLASS = 100, 30
_SAMPLE, _PERMUTATIONS = 5_000, 199
_FEW_PERMUTATIONS = 39  # where no column is strong, and the p-value decides nothing
_RANGES, _MOST_VALUES = 20, 50
_STRONG, _STRONG_OF_CLASS = 0.5, 0.9
_ALPHA = 0.01


@dataclass(frozen=True)
class _Column:
    """A column as codes of ranges or values."""

    name: str
    code: NDArray[np.int64]
    num_codes: int


@dataclass(frozen=True)
class Association:
    """How well one column predicts the labels of examples that were not counted; 0 is chance, 1 is perfect."""

    name: str
    of_all: float  # balanced accuracy over all classes
    of_class: float  # 2 AUC - 1 of the class that is best told from the others
    label: int  # that class, -1 for none

    @property
    def is_strong(self) -> bool:
        """Whether a model could do without the rest of the input."""
        return self.of_all >= _STRONG or self.of_class >= _STRONG_OF_CLASS


def find_spurious_correlation(data: CheckedData, *, seed: int = 0) -> DataIssue:
    """Find the column or picture statistic that predicts the label best, and say whether a model could rely on it."""
    named = {**(data.columns or {}), **(data.pictures or {})}
    if not named:
        return cannot_check(KIND, "the run has neither columns nor pictures")
    labelled = np.flatnonzero(data.labels >= 0)
    if len(labelled) < _FEWEST or len(np.unique(data.labels[labelled])) < 2:
        return cannot_check(
            KIND, f"{count(len(labelled), 'labelled example')} of at least two classes; {_FEWEST} needed"
        )
    rng = make_rng(seed, KIND)
    rows = labelled if len(labelled) <= _SAMPLE else np.sort(rng.choice(labelled, _SAMPLE, replace=False))
    columns = list(_encode({name: column[rows] for name, column in named.items()}))
    if not columns:
        return cannot_check(KIND, "every column has the same value everywhere")
    half = rng.permutation(len(rows)) % 2
    found = measure_associations(columns, data.labels[rows], half)
    p_all, p_class = _permute(columns, data.labels[rows], half, found, rng)
    best = max(found, key=lambda item: max(item.of_all / _STRONG, item.of_class / _STRONG_OF_CLASS))
    p_value = min(1.0, 2 * min(p_all[best.name], p_class[best.name]))
    strong = [item for item in found if item.is_strong and min(p_all[item.name], p_class[item.name]) <= _ALPHA / 2]
    return _describe(data, best, strong, p_value, rows, columns)


def _describe(
    data: CheckedData,
    best: Association,
    strong: list[Association],
    p_value: float,
    rows: NDArray[np.int64],
    columns: list[_Column],
) -> DataIssue:
    knows_class = best.of_class / _STRONG_OF_CLASS > best.of_all / _STRONG
    name = clean(best.name)
    title = f"No single column predicts the label well; the best, {name}, goes {percent(best.of_all)} of the way from "
    title += "chance to certainty."
    named = np.zeros(0, np.int64)
    if strong:
        title = f"From {name} alone the label is predicted {percent(best.of_all)} of the way from chance to certainty."
        if knows_class:
            told = clean(data.class_names[best.label]) if best.label < len(data.class_names) else str(best.label)
            title = f"{name} alone tells class {told} from the others with an AUC of {(1 + best.of_class) / 2:.2f}."
        if len(strong) > 1:
            title += f" {count(len(strong) - 1, 'other column')} {'is' if len(strong) == 2 else 'are'} strong too."
        code = next(column.code for column in columns if column.name == best.name)
        label = best.label if knows_class else int(np.bincount(data.labels[rows]).argmax())
        mine = data.labels[rows] == label
        named = rows[mine & (code == np.bincount(code[mine]).argmax())]
    return DataIssue(
        KIND,
        title,
        len(strong),
        p_value=p_value,
        severity="medium" if strong else "none",
        what_to_do="Ask whether it will be the same in use. If not, take it out or balance it over the classes.",
        **list_worst(data, named, np.full(len(named), max(best.of_all, best.of_class))),
    )


def measure_associations(
    columns: list[_Column], labels: NDArray[np.int64], half: NDArray[np.int64]
) -> list[Association]:
    """Measure every column; ``half`` says which examples are counted together."""
    classes, label = np.unique(labels, return_inverse=True)
    sizes = np.stack([np.bincount(label.reshape(-1)[half == h], minlength=len(classes)) for h in (0, 1)])
    usable = np.flatnonzero(sizes.min(0) >= _FEWEST_IN_CLASS // 2)
    found = []
    for column in columns:
        key = (half * column.num_codes + column.code) * len(classes) + label.reshape(-1)
        counts = np.bincount(key, minlength=2 * column.num_codes * len(classes))
        tables = counts.reshape(2, column.num_codes, len(classes)).astype(np.float64)
        of_all = np.mean([_accuracy(tables[h], tables[1 - h]) for h in (0, 1)])
        of_class = np.zeros(0)
        if len(usable):
            of_class = np.mean([_auc(tables[h], tables[1 - h], usable) for h in (0, 1)], axis=0) * 2 - 1
        best = int(of_class.argmax()) if len(of_class) else -1
        found.append(
            Association(
                column.name,
                float(of_all),
                float(of_class[best]) if best >= 0 else 0.0,
                int(classes[usable[best]]) if best >= 0 else -1,
            )
        )
    return found


def _accuracy(counted: Floats, predicted: Floats) -> float:
    """Balanced accuracy beyond chance: each range predicts the class that it is most typical of."""
    typical = (counted / np.maximum(counted.sum(0), 1)).argmax(1)
    present = np.flatnonzero(predicted.sum(0) > 0)
    hits = np.bincount(typical, weights=predicted[np.arange(len(typical)), typical], minlength=predicted.shape[1])
    right = float((hits[present] / predicted.sum(0)[present]).mean())
    chance = 1 / max(len(present), 2)
    return max(0.0, (right - chance) / (1 - chance))


def _auc(counted: Floats, predicted: Floats, classes: NDArray[np.int64]) -> Floats:
    """Area under the ROC curve of each class against the others, ranges ordered by their counted rates."""
    rate = (counted[:, classes] + 1e-3) / (counted.sum(1, keepdims=True) + 1e-2)
    order = np.argsort(rate, axis=0, kind="stable")
    own = np.take_along_axis(predicted[:, classes], order, 0)
    rest = np.take_along_axis(predicted.sum(1, keepdims=True) - predicted[:, classes], order, 0)
    below = np.cumsum(rest, axis=0) - rest
    wins = (own * (below + rest / 2)).sum(0)
    return np.asarray(wins / np.maximum(own.sum(0) * rest.sum(0), 1))


def _permute(
    columns: list[_Column],
    labels: NDArray[np.int64],
    half: NDArray[np.int64],
    found: list[Association],
    rng: np.random.Generator,
) -> tuple[dict[str, float], dict[str, float]]:
    """p-values of both measures of each column against the largest of all columns under permuted labels."""
    times = _PERMUTATIONS if any(item.is_strong for item in found) else _FEW_PERMUTATIONS
    largest = np.empty((times, 2))
    for i in range(times):
        drawn = measure_associations(columns, rng.permutation(labels), half)
        largest[i] = max(item.of_all for item in drawn), max(item.of_class for item in drawn)
    p = [
        {item.name: (1 + (largest[:, i] >= seen).sum()) / (times + 1) for item, seen in zip(found, values)}
        for i, values in enumerate(([item.of_all for item in found], [item.of_class for item in found]))
    ]
    return p[0], p[1]


def _encode(columns: Mapping[str, NDArray[Any]]) -> Iterator[_Column]:
    """Turn columns into codes: ranges of numbers, values of text, lengths of text with many values."""
    for name, column in columns.items():
        values = column
        if column.dtype.kind in "OUS":
            texts, place = np.unique(
                np.array([str(value) for value in column.tolist()], dtype=str), return_inverse=True
            )
            if len(texts) <= _MOST_VALUES:
                if len(texts) > 1:
                    yield _Column(name, place.reshape(-1), len(texts))
                continue
            name, values = f"length of {name}", np.char.str_len(texts)[place.reshape(-1)]
        if values.dtype.kind not in "iufb":
            continue
        known = ~is_null(values)
        numbers = np.where(known, values, 0).astype(np.float64)
        edges = np.unique(np.quantile(numbers[known], np.arange(1, _RANGES) / _RANGES)) if known.any() else np.zeros(0)
        code = np.where(known, np.searchsorted(edges, numbers, side="left"), len(edges) + 1)
        if len(np.unique(code)) > 1:
            yield _Column(name, code, len(edges) + 2)
