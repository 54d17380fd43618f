"""Which labels a run's totals are about: of a hold-out only those that nobody has verified."""

import numpy as np

from sgoif.findings.suspects import rate_columns, suspects
from sgoif.tables import MemoryTables
from tests.cli.runs import held_out, table

P = np.array([0.9, 0.2, 0.1])


def run():
    """Three training examples, and a hold-out of six of which the first two are verified."""
    held = held_out(6) | {"trusted": np.arange(6) < 2}
    return MemoryTables({"examples": table(P, [0, 1, 2], [1, 2, 3]), "holdout": held}).sql


def test_totals_of_a_scan_count_the_hold_out_but_for_verified_labels():
    scan, training = (rate_columns(run(), {"kind": kind}) for kind in ("scan", "watch"))
    held = held_out(6)["p_mislabeled"][2:]
    assert sorted(scan["p_mislabeled"]) == sorted([*P, *held])
    assert sorted(training["p_mislabeled"]) == sorted(P)


def test_verified_labels_are_never_suspicious():
    found = suspects(run())
    names = [f"held/{i:03d}.png" for i in range(2, 6)]
    assert sorted(found["id"][found["source"] == "holdout"]) == names and len(found["id"]) == 7
    assert (np.diff(found["p_mislabeled"]) <= 0).all()
