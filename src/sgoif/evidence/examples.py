"""One row per example from what its visits add up to: the columns that a run in memory and a merged one share."""

from __future__ import annotations

import numpy as np

from sgoif.evidence.accumulate import Evidence, VisitMeans
from sgoif.evidence.last import LastPredictions
from sgoif.evidence.votes import LikelyClasses
from sgoif.types import Columns

__all__ = ["read_examples"]


def read_examples(
    evidence: Evidence, likely: LikelyClasses, means: VisitMeans, last: LastPredictions, *, count: int
) -> Columns:
    """Read the first ``count`` rows: suggestions, visits, confidence, means, standard errors, last predictions."""
    suggested, visits = evidence.suggested_label(top=3), evidence.column("num_visits")[:count]
    table: Columns = {
        "suggested_label": suggested.labels[:count, 0],
        "suggested_label_2": suggested.labels[:count, 1],
        "suggested_label_3": suggested.labels[:count, 2],
        "suggested_share": suggested.share()[:count, 0],
        "n_visits": visits,
        "confidence": evidence.column("sum_c")[:count, 0] / np.maximum(visits, 1),
    }
    table |= likely.top(count).columns() | last.columns(count)
    table |= {name: means.mean(name)[:count] for name in means.signals}
    for name in evidence.signals:
        table[name] = evidence.mean_raw(name)[:count]
        table[f"{name}_std"] = evidence.mean(name)[:count]
        table[f"{name}_std_error"] = evidence.standard_error(name)[:count]
    return table
