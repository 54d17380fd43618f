"""Every check: silent on clean data, loud on its own planted issue, and honest where it cannot tell."""

import numpy as np
import pytest

from sgoif.checks import KINDS, CheckedData, find, find_data_issues
from sgoif.checks.groups import Grouping, _compare
from sgoif.checks.outliers import outlier_scores
from sgoif.errors import SgoifError
from tests.checks.worlds import clean, issues, pairs


def test_clean_data_raises_no_alarm():
    rng = np.random.default_rng(9)
    alarms = []
    for seed in range(2):
        columns = {"age": rng.normal(40, 9, 1_000), "site": rng.choice(["a", "b", "c"], 1_000)}
        split = rng.choice(["train", "test"], 1_000)
        found = issues(clean(seed=seed, columns=columns, split=split, p_mislabeled=np.full(1_000, 0.001)), seed=seed)
        assert list(found) == list(KINDS)
        alarms += [(seed, kind) for kind, issue in found.items() if issue.is_found]
        assert {kind for kind, issue in found.items() if issue.count is None} == {
            k for k in KINDS if _is_of_pictures(k)
        }
    assert alarms == []


def _is_of_pictures(kind):
    return "pictures" in kind or kind in ("odd_aspect_ratio", "low_information")


def test_what_cannot_be_checked_says_why():
    found = find_data_issues(CheckedData(np.arange(5), np.zeros(5, np.int64), ["only"]))
    assert [issue.kind for issue in found] == list(KINDS)
    assert all(issue.count is None and issue.why_not and issue.severity == "unknown" for issue in found)


def test_an_empty_set_is_no_error():
    empty = CheckedData(np.zeros(0, str), np.zeros(0, np.int64), [], features=np.zeros((0, 3), np.float32))
    assert not any(issue.is_found or "failed" in (issue.why_not or "") for issue in find_data_issues(empty))


def test_a_check_that_fails_says_so_and_leaves_the_others(monkeypatch, caplog):
    broken = ((find.KINDS[0],), lambda data, seed: 1 / 0)
    monkeypatch.setattr(find, "_CHECKS", (broken, *find._CHECKS[1:]))
    first, *rest = find_data_issues(clean(300))
    assert "ZeroDivisionError" in first.why_not and "ZeroDivisionError" in caplog.text
    assert not any("failed" in (issue.why_not or "") for issue in rest)


def test_parts_of_another_length_are_refused():
    with pytest.raises(SgoifError, match="features has 3 rows"):
        CheckedData(np.arange(4), np.zeros(4, np.int64), ["a"], features=np.zeros((3, 2), np.float32))
    with pytest.raises(SgoifError, match="age has 2 rows"):
        CheckedData(np.arange(4), np.zeros(4, np.int64), ["a"], columns={"age": np.zeros(2)})


def test_label_errors_are_counted_with_those_to_expect():
    p = np.zeros(1_000)
    p[:30], p[30:50], p[50:60] = 0.9, 0.25, np.nan
    issue = issues(clean(p_mislabeled=p))["label_errors"]
    assert issue.count == 30 and issue.share == pytest.approx(32 / 990) and issue.low < issue.share < issue.high
    assert (
        issue.severity == "high" and "10 not judged" in issue.title and set(issue.ids) <= {f"x{i}" for i in range(30)}
    )


def test_duplicates_conflicts_and_leaks_are_counted_apart():
    data = clean()
    labels = data.labels.copy()
    labels[:6] = [0, 0, 1, 2, 2, 3]
    split = np.array(["train"] * 900 + ["test"] * 100)
    # a star of exact copies (0: 1, 2), a near pair (3, 950), and a near pair in one split
    rows = [("x0", "x1", 0), ("x0", "x2", 0), ("x950", "x3", 9), ("x4", "x5", 3), ("x0", "held", 0)]
    labels[950] = 2
    found = issues(CheckedData(data.ids, labels, data.class_names, duplicates=pairs(rows), split=split))
    assert found["exact_duplicates"].count == 2 and set(found["exact_duplicates"].ids) == {"x1", "x2"}
    assert "1 pair with an example of another set left out" in found["exact_duplicates"].title
    assert found["near_duplicates"].count == 2
    assert set(found["conflicting_duplicates"].ids) == {"x0", "x2", "x4", "x5"}
    assert found["split_leakage"].ids == ("x950",) and found["split_leakage"].severity == "high"


def test_a_copy_leaks_by_way_of_an_exact_copy():
    """x10 and x11 are the same; only x10 is compared with the near copy x990 of the other split."""
    split, features = np.array(["train"] * 900 + ["test"] * 100), clean().features
    features[990], features[11], features[21] = features[10] + 0.01, features[10], features[20]
    rows = [("x10", "x11", 0), ("x10", "x990", 5), ("x20", "x21", 0)]
    found = issues(clean(duplicates=pairs(rows), split=split, features=features))
    assert found["split_leakage"].ids == ("x990",)


def test_outliers_are_found_and_not_many_others():
    data = clean(2_000)
    features = data.features.copy()
    features[:20] += 8 * np.random.default_rng(1).standard_normal((20, 16))
    issue = issues(CheckedData(data.ids, data.labels, data.class_names, features=features))["outliers"]
    hits = len(set(issue.ids) & {f"x{i}" for i in range(20)})
    assert hits >= 18 and issue.count <= 24 and issue.p_value < 0.01


def test_too_few_examples_have_no_outliers_to_tell():
    issue = issues(clean(150))["outliers"]
    assert issue.count is None and "150 examples" in issue.why_not


def test_examples_without_finite_features_are_left_out_and_counted():
    data = clean()
    data.features[3, 2] = np.nan
    found = issues(data)
    assert found["null_values"].count == 1 and found["null_values"].ids == ("x3",)
    assert found["outliers"].count == 0


def test_a_rare_class_is_named():
    data = clean(num_classes=4)
    labels = np.where((data.labels == 3) & (np.arange(1_000) > 80), 0, data.labels)
    issue = issues(CheckedData(data.ids, labels, data.class_names))["class_imbalance"]
    assert issue.severity == "medium" and "class 3" in issue.title and issue.count == (labels == 3).sum()


def test_missing_values_and_constant_columns_are_counted():
    gaps = np.where(np.arange(1_000) < 70, np.nan, np.random.default_rng(0).standard_normal(1_000))
    text = np.array(["", None, "n/a", *["word"] * 500, *["other"] * 497], dtype=object)
    found = issues(clean(columns={"gaps": gaps, "text": text, "same": np.full(1_000, 7)}))
    assert found["null_values"].count == 70 and "gaps (7.0%)" in found["null_values"].title
    assert found["constant_columns"].count == 1 and "same" in found["constant_columns"].title


def reorder(data, order):
    parts = {name: getattr(data, name)[order] for name in ("ids", "labels", "features", "log_p")}
    return CheckedData(class_names=data.class_names, **parts)


def test_a_file_sorted_by_class_drifts_in_its_labels_alone():
    data = clean()
    found = issues(reorder(data, np.argsort(data.labels, kind="stable")))
    assert found["label_order"].is_found and "sorted by class" in found["label_order"].title
    assert not found["order_within_classes"].is_found


@pytest.mark.parametrize("is_sorted", [False, True])
def test_drift_within_classes_is_found_whether_sorted_or_not(is_sorted):
    data = clean()
    data.features[:, 5] += np.linspace(0, 1.5, 1_000)
    found = issues(reorder(data, np.argsort(data.labels, kind="stable")) if is_sorted else data)
    assert found["order_within_classes"].is_found and found["order_within_classes"].p_value <= 0.01
    assert found["label_order"].is_found == is_sorted


def test_p_values_of_the_order_are_not_too_small_on_shuffled_files():
    p = [[issues(clean(300, seed=s))[k].p_value for k in ("label_order", "order_within_classes")] for s in range(20)]
    assert (np.array(p) <= 0.05).mean(0).max() <= 0.2  # 0.05 expected: 4 of 20 or more in 1.6% of such tests


def test_neighbours_that_resemble_each_other_are_found():
    """Frames of a video: no drift over the file, but each example is near the one before."""
    data = clean()
    rng = np.random.default_rng(3)
    data.features[:, 6] = np.repeat(rng.standard_normal(50), 20) + 0.3 * rng.standard_normal(1_000)
    assert issues(data)["order_within_classes"].is_found


def test_a_group_that_fails_is_found_and_a_hard_class_is_not():
    data = clean(4_000)
    site = np.random.default_rng(5).choice(["a", "b", "c"], 4_000)
    log_p = data.log_p.copy()
    hard = (data.labels == 1) & (np.random.default_rng(6).random(4_000) < 0.5)  # half of class 1 fails, everywhere
    log_p[hard] = log_p[hard][:, [1, 0, 2, 3]]
    assert not issues(clean(4_000, log_p=log_p, columns={"site": site}))["underperforming_group"].is_found
    failing = (site == "b") & (np.random.default_rng(7).random(4_000) < 0.3)
    log_p[failing] = -5.0
    log_p[failing, (data.labels[failing] + 2) % 4] = -0.1
    issue = issues(clean(4_000, log_p=log_p, columns={"site": site}))["underperforming_group"]
    assert issue.is_found and "site = b" in issue.title and issue.p_value < 0.01


def test_a_column_that_tells_the_label_is_found():
    data = clean()
    rng = np.random.default_rng(8)
    noise, leak = rng.standard_normal(1_000), data.labels + 0.1 * rng.standard_normal(1_000)
    issue = issues(clean(columns={"noise": noise, "leak": leak}))["spurious_correlation"]
    assert issue.is_found and issue.title.startswith("From leak alone") and issue.p_value <= 0.01
    one = np.where(data.labels == 2, "camera 2", rng.choice(["camera 1", "camera 3"], 1_000))
    issue = issues(clean(columns={"noise": noise, "camera": one}))["spurious_correlation"]
    assert issue.is_found and "camera alone tells class class 2" in issue.title
    assert not issues(clean(columns={"noise": noise}))["spurious_correlation"].is_found


def test_answers_are_plain_for_json():
    import json

    for issue in find_data_issues(clean(columns={"a": np.full(1_000, np.nan)})):
        assert json.loads(json.dumps(issue.to_dict(), allow_nan=False))["kind"] == issue.kind


def test_pictures_that_share_an_outline_only_are_no_copies():
    """Shirts of one cut have nearly the same sketch, and features that are as far apart as any two."""
    data = clean()
    data.features[1] = data.features[0] + 0.01
    issue = issues(clean(features=data.features, duplicates=pairs([("x0", "x1", 4), ("x2", "x3", 4)])))[
        "near_duplicates"
    ]
    assert issue.ids == ("x1",) and "1 pair with like sketches but other features left out" in issue.title


def test_blank_pictures_are_no_copies_of_each_other():
    entropy = np.r_[np.zeros(2), np.full(998, 4.0)]
    rows = pairs([("x0", "x1", 0), ("x2", "x3", 0)])
    found = issues(clean(duplicates=rows, pictures={"entropy": entropy}, features=None))
    assert found["exact_duplicates"].ids == ("x3",) and set(found["low_information"].ids) == {"x0", "x1"}


def test_equal_sketches_of_different_features_are_no_exact_copies():
    """Two pairs of trousers have equal sketches: near in the features, or not even that."""
    features = clean().features
    features[1] = features[0] + 0.05
    found = issues(clean(features=features, duplicates=pairs([("x0", "x1", 0), ("x2", "x3", 0)])))
    assert found["exact_duplicates"].count == 0 and found["near_duplicates"].ids == ("x1",)


def test_a_group_is_compared_with_what_its_own_classes_explain():
    """Half of class 1 is wrong wherever it lies, and the second group is of this class alone."""
    labels, site = np.repeat([0, 1], 200), Grouping("site", ("a", "b"), np.repeat([0, 1], [300, 100]))
    is_wrong = (labels == 1) & (np.arange(400) % 2 == 1)
    (group,) = _compare(site, is_wrong, labels, labels >= 0)  # the first is more than half of all
    assert (group.size, group.errors, group.expected) == (100, 50, 50.0) and group.p > 0.3


def test_an_example_does_not_say_what_is_ordinary_about_itself():
    features, labels = np.random.default_rng(0).normal(size=(300, 4)), np.arange(300) % 3
    features[7], labels[7] = 50.0, 3  # the only one of its class
    assert outlier_scores(features, labels).argmax() == 7
