"""``sgoif scan --features`` on one draw."""

from __future__ import annotations

from time import process_time

import numpy as np
from numpy.typing import NDArray

from benchmarks.trust.rivals import Finding
from sgoif.scanning.frozen import audit_embeddings


def find(rows: NDArray[np.float32], given: NDArray[np.int64], num_classes: int, seed: int) -> Finding:
    """Judge every label by the public table of issues."""
    started = process_time()
    ids = np.arange(len(given))
    run = audit_embeddings(rows, given, ids, num_classes=num_classes)
    table = run.label_issues()
    order = np.asarray(table["id"].to_numpy(zero_copy_only=False), dtype=np.int64)
    score, p, suggested = np.zeros(len(given)), np.full(len(given), np.nan), given.copy()
    score[order] = np.arange(len(order), 0, -1)  # most suspicious first; what is not listed is not suspected
    if "p_mislabeled" in table.column_names:
        p[order] = table["p_mislabeled"].to_numpy(zero_copy_only=False)
    suggested[order] = np.nan_to_num(table["suggested_label"].to_numpy(zero_copy_only=False), nan=-1).astype(np.int64)
    suggested = np.where(suggested < 0, given, suggested)
    total = None if run.info.get("expected_errors") is None else float(np.nansum(p))
    seconds, said = process_time() - started, run.summary().document()
    return Finding(
        score,
        np.nan_to_num(p) >= 0.5,
        suggested,
        p if np.isfinite(p).any() else None,
        total,
        None if said["error_rate"] is None else (said["error_rate_low"], said["error_rate_high"]),
        seconds,
        run.info.get("no_p_reason"),
    )
