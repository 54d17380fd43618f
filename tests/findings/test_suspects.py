"""Which labels a run's totals are about: examples whose labels nobody has verified."""

import numpy as np

from sgoif.findings.suspects import rate_columns, suspects
from sgoif.tables import MemoryTables
from tests.cli.runs import held_out, table

P = np.array([0.9, 0.2, 0.1])


def run():
    """Three training examples, and a hold-out of six of which the first two are verified."""
    held = held_out(6) | {"trusted": np.arange(6) < 2}
    return MemoryTables({"examples": table(P, [0, 1, 2], [1, 2, 3]), "holdout": held}).sql


def test_totals_count_examples_but_for_verified_labels():
    assert sorted(rate_columns(run())["p_mislabeled"]) == sorted(P)
    examples = table(P, [0, 1, 2], [1, 2, 3]) | {"trusted": np.array([False, True, False])}
    scan = MemoryTables({"examples": examples}).sql
    assert sorted(rate_columns(scan)["p_mislabeled"]) == sorted(P[[0, 2]])
    assert len(suspects(scan)["id"]) == 2


def test_verified_labels_are_never_suspicious():
    found = suspects(run())
    names = [f"held/{i:03d}.png" for i in range(2, 6)]
    assert sorted(found["id"][found["source"] == "holdout"]) == names and len(found["id"]) == 7
    assert (np.diff(found["p_mislabeled"]) <= 0).all()
