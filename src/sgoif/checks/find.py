"""All checks, one after the other."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from sgoif.checks.copies import find_copies
from sgoif.checks.data import CheckedData, DataIssue, cannot_check
from sgoif.checks.groups import find_weak_group
from sgoif.checks.labels import find_class_imbalance, find_label_errors
from sgoif.checks.order import find_label_order, find_order_within_classes
from sgoif.checks.outliers import find_outliers
from sgoif.checks.pictures import find_odd_pictures
from sgoif.checks.spurious import find_spurious_correlation
from sgoif.checks.tables import find_constant_columns, find_null_values

__all__ = ["KINDS", "find_data_issues"]

log = logging.getLogger(__name__)

Check = Callable[[CheckedData, int], Sequence[DataIssue]]

_CHECKS: Sequence[tuple[tuple[str, ...], Check]] = (
    (("label_errors",), lambda data, seed: [find_label_errors(data)]),
    (
        ("exact_duplicates", "near_duplicates", "conflicting_duplicates", "split_leakage"),
        lambda data, seed: find_copies(data),
    ),
    (("outliers",), lambda data, seed: [find_outliers(data, seed=seed)]),
    (("class_imbalance",), lambda data, seed: [find_class_imbalance(data)]),
    (("null_values",), lambda data, seed: [find_null_values(data)]),
    (("constant_columns",), lambda data, seed: [find_constant_columns(data)]),
    (("label_order",), lambda data, seed: [find_label_order(data, seed=seed)]),
    (("order_within_classes",), lambda data, seed: [find_order_within_classes(data, seed=seed)]),
    (("underperforming_group",), lambda data, seed: [find_weak_group(data, seed=seed)]),
    (("spurious_correlation",), lambda data, seed: [find_spurious_correlation(data, seed=seed)]),
    (
        (
            *("dark_pictures", "bright_pictures", "blurry_pictures"),
            *("tiny_pictures", "odd_aspect_ratio", "low_information"),
        ),
        lambda data, seed: find_odd_pictures(data),
    ),
)

KINDS = tuple(kind for kinds, _ in _CHECKS for kind in kinds)  # in the order of the table


def find_data_issues(data: CheckedData, *, seed: int = 0) -> list[DataIssue]:
    """Check a dataset: one answer for each of :data:`KINDS`, those that could not be checked among them.

    A check that fails by a mistake of ours does not take the others with it: its answer says what happened.

    Args:
        data: what is known of the dataset.
        seed: of samples, folds and permutations.
    """
    found: list[DataIssue] = []
    for kinds, check in _CHECKS:
        try:
            found += check(data, seed)
        except Exception as error:
            log.warning("the check of %s failed: %s: %s", ", ".join(kinds), type(error).__name__, error)
            found += [cannot_check(kind, f"the check failed: {type(error).__name__}: {error}") for kind in kinds]
    return found
