"""Label issues as cleanlab's Datalab gives them, so that code written for it reads a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sgoif.adaptors.label import class_name, label_issues

if TYPE_CHECKING:
    import pyarrow as pa

    from sgoif.run import Run

__all__ = ["datalab_issues"]


def datalab_issues(run: Run) -> pa.Table:
    """One row per training example in the order of their ids: what ``Datalab.get_issues("label")`` gives.

    ``is_label_issue``, ``label_score`` (low is bad), ``given_label`` and ``predicted_label`` by name where classes have
    names; the predicted label is the given one where nothing speaks against it. Beside these four, the ``id``.
    """
    import pyarrow as pa

    found = label_issues(run.table, run.class_names)
    order = np.argsort(found["id"], kind="stable")
    rows = {name: found[name][order] for name in ("id", "is_label_issue", "label_score", "given_label")}
    predicted = np.where(rows["is_label_issue"], found["suggested_label"][order], rows["given_label"])
    rows["predicted_label"] = np.where(predicted < 0, rows["given_label"], predicted)
    for name in ("given_label", "predicted_label") if run.class_names else ():
        rows[name] = _named(rows[name], run.class_names)
    return pa.table(rows)


def _named(labels: NDArray[np.int64], names: Any) -> NDArray[Any]:
    """Names of classes; each is looked up once."""
    known, place = np.unique(labels, return_inverse=True)
    return np.array([class_name(int(label), names) for label in known], dtype=object)[place]
