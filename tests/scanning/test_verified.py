"""Labels that a person has checked: read from a file, taken for the truth, kept out of what is doubted."""

import numpy as np
import pytest

from sgoif.errors import SgoifError
from sgoif.review.manifest import count_left_out
from sgoif.scanning.frozen import audit_embeddings
from sgoif.scanning.verified import read_verified
from tests.scanning.test_standardise import world

IDS = np.array([f"class{i % 3}/{i}.png" for i in range(900)])


def test_verified_labels_are_read_by_name_or_number(tmp_path):
    path = tmp_path / "verified.csv"
    path.write_text('id,label\n"class0/0.png",dog\nclass1/1.png,2\nclass2/2.png,\nelsewhere.png,cat\n')
    assert read_verified(path, list(IDS), ("cat", "dog", "fox")) == {0: 1, 1: 2}
    path.write_text("id,label\nclass0/0.png,wolf\n")
    with pytest.raises(SgoifError, match=r"line 2 .* names the class 'wolf'"):
        read_verified(path, list(IDS), ("cat", "dog", "fox"))
    path.write_text("name,label\nx,cat\n")
    with pytest.raises(SgoifError, match="has no column id"):
        read_verified(path, list(IDS), ("cat",))


@pytest.mark.usefixtures("quick_heads")
def test_a_verified_label_is_not_doubted_and_counts_in_no_total():
    rows, given, *_ = world(600)
    ids = np.random.default_rng(0).permutation(600)
    verified = np.arange(600) % 5 == 0
    labels = np.where(verified, np.arange(600) % 3, given)
    run = audit_embeddings(rows, labels, ids, num_classes=3, verified=verified)
    table = run.table
    np.testing.assert_array_equal(table["id"], ids)
    np.testing.assert_array_equal(table["given_label"], labels)
    assert (table["p_mislabeled"][verified] == 0).all() and (table["label_score"][verified] == 1).all()
    listed = run.label_issues()
    assert set(listed["id"].to_pylist()) == set(ids[~verified].tolist())
    assert run.num_examples == 600 and run.num_judged == 480 == sum(run.class_issues()["num_examples"].to_pylist())
    assert run.summary().expected_errors == pytest.approx(run.info["expected_errors"])
    assert ", 120 labels verified." in run.summary().lines()[0] and "hold-out" not in run.summary().lines()[0]
    assert count_left_out(run.sql) == (120, 0)
