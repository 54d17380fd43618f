"""Label issues as cleanlab's Datalab gives them, so that code written for it reads a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sgoif.findings.label import class_name

if TYPE_CHECKING:
    import pyarrow as pa

    from sgoif.run import Run

__all__ = ["datalab_issues"]


def datalab_issues(run: Run) -> pa.Table:
    """One row per example in the order of their ids: what ``Datalab.get_issues("label")`` gives.

    ``is_label_issue``, ``label_score`` (low is bad), ``given_label`` and ``predicted_label`` by name where classes have
    names; the predicted label is the given one where nothing speaks against it. Beside these four, the ``id`` and its
    ``source``: ``train``, or ``holdout`` for an example that was held out. Verified hold-out labels and examples
    without a class have no row.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    issues = run.label_issues().select(
        ["id", "source", "is_label_issue", "label_score", "given_label", "suggested_label"]
    )
    issues = issues.filter(pc.greater_equal(issues["given_label"], 0))
    found = issues.sort_by([("id", "ascending"), ("source", "descending")])  # of two with the same id the trained first
    given, suggested = (np.asarray(found[f"{kind}_label"], dtype=np.int64) for kind in ("given", "suggested"))
    is_issue = np.asarray(found["is_label_issue"], dtype=bool)
    rows: dict[str, Any] = {name: found[name] for name in ("id", "source", "is_label_issue", "label_score")}
    labels = {"given_label": given, "predicted_label": np.where(is_issue & (suggested >= 0), suggested, given)}
    for name, values in labels.items():
        rows[name] = _named(values, run.class_names) if run.class_names else values
    return pa.table(rows)


def _named(labels: NDArray[np.int64], names: Any) -> NDArray[Any]:
    """Names of classes; each is looked up once."""
    known, place = np.unique(labels, return_inverse=True)
    return np.array([class_name(int(label), names) for label in known], dtype=object)[place]
