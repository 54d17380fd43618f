"""Where the errors are: expected error rates by class, or by any column of the user's own, with a verdict.

A class can be full of wrong labels, or of examples that might be either of two classes: because these overlap, or
because the model is not sure. Only the former is called mislabelled, the latter uncertain. Where errors are spread
evenly over the classes, no class is singled out as mislabelled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgoif.errors import SgoifError
from sgoif.evidence import ErrorRates, error_rates
from sgoif.findings.label import class_name

__all__ = ["EVEN", "FINE", "MISLABELLED", "TOO_FEW", "UNCERTAIN", "class_issues", "group_issues"]

Columns = Mapping[str, NDArray[Any]]

FINE, MISLABELLED, UNCERTAIN, TOO_FEW = "fine", "mislabelled", "uncertain", "too few to judge"
EVEN = "no worse than most classes"  # it has wrong labels, and so have the others

_OF_CLASSES = (
    *("given_label", "suggested_label"),
    *("p_mislabeled", "p_mislabeled_low", "p_mislabeled_high", "no_p_reason"),
)
_MIN_EXAMPLES = 20  # of a class or group, to judge it
_MIN_HELD_OUT = 5  # of a class
_MIN_CLASSES = 3  # that are judged, to call one worse than most
_NOTABLE = 0.01  # error rate whose interval must lie above it for a verdict
_SURE = 0.8  # an example this probably wrong is a wrong label, not a borderline case


def class_issues(
    examples: Columns,
    *,
    class_names: Sequence[str] = (),
    held_out: Sequence[int] | None = None,
) -> dict[str, NDArray[Any]]:
    """One row per class, the worst first.

    Args:
        examples: the run's table of examples; it must hold ``p_mislabeled``.
        class_names: names, where there are any.
        held_out: hold-out examples per class; a class with fewer than 5, or without a number here, is not judged.
    """
    has_class = np.asarray(examples["given_label"]) >= 0  # a soft target has none
    examples = {name: np.asarray(examples[name])[has_class] for name in _OF_CLASSES if name in examples}
    p = _probabilities(examples)
    given = examples["given_label"].astype(np.int64)
    held = np.zeros(0, np.int64) if held_out is None else np.asarray(held_out, dtype=np.int64)
    # numbers that are given need not follow each other: what is held is as large as the classes that there are
    classes = np.union1d(np.arange(max(len(class_names), len(held))), np.unique(given)).astype(np.int64)
    place = np.searchsorted(classes, given)
    rates = _rates(examples, place, len(classes))
    sure = np.bincount(place, weights=np.where(p >= _SURE, p, 0.0), minlength=len(classes))
    errors = np.bincount(place, weights=np.nan_to_num(p), minlength=len(classes))
    few = rates.count < _MIN_EXAMPLES
    if held_out is not None:
        few |= np.pad(held, (0, len(classes) - len(held))) < _MIN_HELD_OUT
    source = _true_class(examples, place, p, len(classes))
    with np.errstate(invalid="ignore"):
        notable = rates.low > _NOTABLE
        verdict = np.where(notable, np.where(sure >= 0.5 * errors, MISLABELLED, UNCERTAIN), FINE).astype(object)
        if (~few).sum() >= _MIN_CLASSES:  # most others may be as bad, by their intervals
            highs = np.sort(np.nan_to_num(rates.high[~few], nan=-1.0))
            num_alike = len(highs) - np.searchsorted(highs, rates.low) - 1
            verdict[(verdict == MISLABELLED) & (num_alike > 0.5 * (len(highs) - 1))] = EVEN
    verdict = np.where(few, TOO_FEW, verdict).astype(str)
    order = np.argsort(-np.nan_to_num(np.where(few, -1.0, rates.rate), nan=-2.0), kind="stable")
    names = np.array([class_name(c, class_names) for c in classes.tolist()], dtype=object)
    confused = np.array([class_name(c, class_names) if c >= 0 else "" for c in source.tolist()], dtype=object)
    table = {"class": classes, "name": names, "confused_with": confused, "verdict": verdict}
    return {name: column[order] for name, column in (table | _rate_columns(rates)).items()}


def group_issues(examples: Columns, groups: Sequence[Any] | NDArray[Any]) -> dict[str, NDArray[Any]]:
    """One row per value of a column of the user's own (annotator, vendor, camera), the worst first.

    Args:
        examples: the run's table of examples; it must hold ``p_mislabeled``.
        groups: one value per row of ``examples``.
    """
    values, place = np.unique(np.asarray(groups), return_inverse=True)
    if len(place) != len(examples["id"]):
        raise SgoifError(f"there are {len(examples['id'])} examples but {len(place)} values to group them by.")
    rates = _rates(examples, place.reshape(-1).astype(np.int64), len(values))
    overall = float(np.nanmean(_probabilities(examples)))
    few = rates.count < _MIN_EXAMPLES
    verdict = np.where(rates.low > overall, "worse than the rest", np.where(rates.high < overall, "better", "alike"))
    verdict = np.where(few, TOO_FEW, verdict)
    order = np.argsort(-np.where(few, -1.0, rates.rate), kind="stable")
    table = {"group": values, "verdict": verdict} | _rate_columns(rates)
    return {name: column[order] for name, column in table.items()}


def _probabilities(examples: Columns) -> NDArray[np.float64]:
    p = np.asarray(examples.get("p_mislabeled", [np.nan]), dtype=np.float64)
    if len(p) and not np.isfinite(p).any():
        noted = examples.get("no_p_reason", np.zeros(0, object))
        why = next((str(reason) for reason in noted if reason is not None), "the run does not say why")
        raise SgoifError(f"this run has no probabilities, so it cannot tell error rates: {why}. Rank by `label_score`.")
    return p


def _rates(examples: Columns, groups: NDArray[np.int64], num_groups: int) -> ErrorRates:
    p = _probabilities(examples)
    low, high = (np.asarray(examples[f"p_mislabeled_{end}"], dtype=np.float64) for end in ("low", "high"))
    return error_rates(p, low, high, groups, num_groups)


def _rate_columns(rates: ErrorRates) -> dict[str, NDArray[Any]]:
    errors = np.nan_to_num(rates.rate) * rates.count
    columns = {"num_examples": rates.count, "expected_errors": errors, "error_rate": rates.rate}
    return columns | {"error_rate_low": rates.low, "error_rate_high": rates.high}


def _true_class(
    examples: Columns, place: NDArray[np.int64], p: NDArray[np.float64], num_classes: int
) -> NDArray[np.int64]:
    """The class that the wrong labels of each class should most often be; -1 where nothing is suggested. O(N log N)."""
    suggested, given = (examples[f"{kind}_label"].astype(np.int64) for kind in ("suggested", "given"))
    usable = (suggested >= 0) & (suggested != given) & np.isfinite(p)
    others, other = np.unique(suggested[usable], return_inverse=True)  # nobody need be given a class that is suggested
    keys, inverse = np.unique(place[usable] * len(others) + other.reshape(-1), return_inverse=True)
    mass = np.bincount(inverse.reshape(-1), weights=p[usable], minlength=len(keys))
    order = np.argsort(mass, kind="stable")  # the heaviest of each class is written last
    found = np.full(num_classes, -1, np.int64)
    if len(keys):
        found[keys[order] // len(others)] = others[keys[order] % len(others)]
    return found
