"""Classes of a few examples: nobody can be judged by them, and they cost the other classes nothing."""

import numpy as np
import pytest

from sgoif.errors import SgoifError
from sgoif.scanning.frozen import audit_embeddings
from sgoif.scanning.scan_run import ScanRun
from tests.scanning.test_standardise import average_precision

pytestmark = pytest.mark.usefixtures("quick_heads")


def world(counts, seed=0, width=120):
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(len(counts)), counts)
    rows = (rng.normal(size=(len(counts), width)) * (48 / width) ** 0.5)[truth] + rng.normal(size=(len(truth), width))
    large = np.flatnonzero(np.array(counts) >= 50)
    wrong = (rng.random(len(truth)) < 0.08) & np.isin(truth, large)
    step = rng.integers(1, max(len(large), 2), len(truth))
    given = np.where(wrong, large[(np.searchsorted(large, truth) + step) % len(large)], truth)
    return rows.astype(np.float32), given, wrong


def test_classes_of_a_few_examples_are_not_judged_and_the_others_are():
    rows, given, wrong = world([300, 300, 300, 0, 1, 4])
    facts = {"class_names": ["ant", "bee", "cow", "dodo", "emu", "fox"]}
    run = audit_embeddings(rows, given, np.arange(len(given)), num_classes=6, run=ScanRun(facts=facts))
    table = run.table
    is_few, p = table["given_label"] >= 3, table["p_mislabeled"].astype(float)
    assert is_few.sum() == 5
    assert np.isnan(p[is_few]).all() and np.isfinite(p[~is_few]).all()
    have = {"class emu has 1 example, too few to judge", "class fox has 4 examples, too few to judge"}
    assert set(table["no_p_reason"][is_few]) == have
    assert all(reason is None for reason in table["no_p_reason"][~is_few])
    assert average_precision(run, wrong) > 0.9
    assert 0.5 < np.nansum(p) / wrong.sum() < 2
    assert len(run.info["transition"]) == 6  # the classes keep their places


def test_two_classes_must_be_left():
    rows, given, _ = world([60, 4, 3])
    with pytest.raises(SgoifError, match="at least 5 examples each; the largest of 3 classes have 60, 4"):
        audit_embeddings(rows, given, np.arange(len(given)), num_classes=3)
