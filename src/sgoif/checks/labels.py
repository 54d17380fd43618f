"""Label errors, by the probabilities of the run, and classes that have very few examples."""

from __future__ import annotations

import numpy as np

from sgoif.checks.data import CheckedData, DataIssue, cannot_check, list_worst
from sgoif.checks.numbers import share_interval
from sgoif.evidence import error_share
from sgoif.wording import clean, count, percent

__all__ = ["find_class_imbalance", "find_label_errors"]

_FLAGGED = 0.5  # p_mislabeled from which on a label is more likely wrong than right, as everywhere
_RARE = 0.2  # of the mean size of a class
_MANY_ERRORS, _SOME_ERRORS = 0.02, 0.002
_SHOWN = 3  # classes that a title names


def find_label_errors(data: CheckedData) -> DataIssue:
    """Count the labels that are more likely wrong than right, with the number of errors to expect."""
    kind = "label_errors"
    if data.p_mislabeled is None:
        return cannot_check(kind, "the run has no probabilities that labels are wrong")
    p = np.asarray(data.p_mislabeled, np.float64)
    judged = np.flatnonzero(np.isfinite(p))
    if not len(judged):
        return cannot_check(kind, "none of the labels was judged")
    expected, own = float(p[judged].sum()), p[judged]
    share, low, high = data.error_share or error_share(own, own, own, None)
    flagged = judged[p[judged] >= _FLAGGED]
    skipped = len(data) - len(judged)
    title = f"{count(len(flagged), 'label')} {'is' if len(flagged) == 1 else 'are'} more likely wrong than right; "
    title += f"about {count(expected, 'error')} {'is' if round(expected) == 1 else 'are'} to be expected in all"
    title += f", with {count(skipped)} not judged." if skipped else "."
    severity = "high" if share >= _MANY_ERRORS else "medium" if share >= _SOME_ERRORS else "low"
    return DataIssue(
        kind,
        title,
        len(flagged),
        share,
        low,
        high,
        severity=severity if len(flagged) else "none",
        what_to_do="Review them, the most probable first, with `sgoif report`; check a sample with `sgoif verify`.",
        **list_worst(data, flagged, p[flagged]),
    )


def find_class_imbalance(data: CheckedData) -> DataIssue:
    """Find classes with less than a fifth of the mean number of examples."""
    kind, labels = "class_imbalance", data.labels[data.labels >= 0]
    if not len(labels):
        return cannot_check(kind, "no example has a label")
    num_classes = max(len(data.class_names), int(labels.max()) + 1)
    sizes = np.bincount(labels, minlength=num_classes)
    if num_classes < 2:
        return cannot_check(kind, "there is one class only")
    ratio = sizes / sizes.mean()
    rare = np.flatnonzero(ratio < _RARE)
    rare = rare[np.argsort(sizes[rare], kind="stable")]
    number, smallest = int(sizes[rare].sum()), int(sizes.argmin())
    low, high = share_interval(int(sizes[smallest]), len(labels))
    title = f"The smallest class has {percent(float(ratio[smallest]))} of the mean size of a class."
    if len(rare):
        named = ", ".join(f"{_name(data, c)} ({count(int(sizes[c]))})" for c in rare[:_SHOWN].tolist())
        more = f" and {count(len(rare) - _SHOWN)} more" if len(rare) > _SHOWN else ""
        has = "has" if len(rare) == 1 else "have"
        title = f"{count(len(rare), 'class')} {has} less than a fifth of the mean size, {sizes.mean():,.0f} examples: "
        title += f"{named}{more}."
    rows = np.flatnonzero(np.isin(data.labels, rare))
    return DataIssue(
        kind,
        title,
        number,
        number / len(labels),
        low,
        high,
        severity="none" if not len(rare) else "high" if (sizes[rare] < 10).any() else "medium",
        what_to_do="Collect more of them, or weight classes in the loss, and report accuracy per class.",
        **list_worst(data, rows, 1 / np.maximum(ratio[data.labels[rows]], 1e-12)),
    )


def _name(data: CheckedData, label: int) -> str:
    return clean(data.class_names[label]) if label < len(data.class_names) else f"class {label}"
