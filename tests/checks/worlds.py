"""Small datasets in which nothing is wrong, to plant issues in."""

import numpy as np
import pyarrow as pa

from sgoif.checks import CheckedData, find_data_issues


def clean(size=1_000, num_classes=4, dimensions=16, seed=0, **fields):
    """Gaussian classes in random order, with predictions that err in a tenth of cases, at random."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(size) % num_classes)
    features = rng.standard_normal((size, dimensions)) + 4 * np.eye(num_classes, dimensions)[labels]
    predicted = np.where(rng.random(size) < 0.1, (labels + 1) % num_classes, labels)
    log_p = np.full((size, num_classes), np.log(0.1 / (num_classes - 1)))
    log_p[np.arange(size), predicted] = np.log(0.9)
    known = {"features": features.astype(np.float32), "log_p": log_p, "duplicates": pairs([])}
    ids = np.array([f"x{i}" for i in range(size)])
    return CheckedData(ids, labels, [f"class {c}" for c in range(num_classes)], **known | fields)


def pairs(rows):
    """A table of duplicates as a run gives it: pairs of ids with the number of bits that differ."""
    return pa.table(
        {
            "id": pa.array([row[0] for row in rows], pa.string()),
            "other_id": pa.array([row[1] for row in rows], pa.string()),
            "bits_apart": pa.array([row[2] for row in rows], pa.int32()),
        }
    )


def issues(data, **options):
    """All answers, by kind."""
    return {issue.kind: issue for issue in find_data_issues(data, **options)}
