"""Label findings: what a curator reads, from tables whose answers are known."""

import numpy as np
import pytest

from sgoif.errors import SgoifError
from sgoif.findings import class_issues, group_issues, label_issues
from sgoif.findings.classes import EVEN, FINE, MISLABELLED, TOO_FEW, UNCERTAIN
from sgoif.findings.label import NEAR_COLUMNS

NAMES = ("cat", "dog", "bird", "fox")


def examples(p, given, suggested, **columns):
    count = len(p)
    table = {
        "id": np.array([f"img/{i}.png" for i in range(count)]),
        "given_label": np.asarray(given),
        "suggested_label": np.asarray(suggested),
        "suggested_label_2": np.full(count, -1),
        "suggested_label_3": np.full(count, -1),
        "suggested_share": np.full(count, 0.9),
        "p_mislabeled": np.asarray(p, float),
        "p_mislabeled_low": np.asarray(p, float) * 0.9,
        "p_mislabeled_high": np.minimum(np.asarray(p, float) * 1.1, 1),
        "harm": np.ones(count),
        "worst": np.ones(count),
        "margin": -np.ones(count),
        "confidence": np.ones(count),
        "n_visits": np.full(count, 10),
    }
    return table | {name: np.asarray(column) for name, column in columns.items()}


def test_rows_come_most_suspicious_first():
    found = label_issues(examples([0.1, 0.9, np.nan, 0.6], [0, 0, 1, 2], [1, 1, 0, 0]), NAMES)
    assert found["id"].tolist() == ["img/1.png", "img/3.png", "img/0.png", "img/2.png"]
    assert found["is_label_issue"].tolist() == [True, True, False, False]
    np.testing.assert_allclose(found["label_score"][:3], [0.1, 0.4, 0.9])
    assert len(label_issues(examples([0.1, 0.9], [0, 0], [1, 1]), NAMES, top=1)["id"]) == 1
    empty = label_issues(examples([], np.zeros(0, int), np.zeros(0, int)))
    assert len(empty["id"]) == len(empty["why"]) == 0


OF_A_SCAN = dict.fromkeys(("worst", "margin", "suggested_share"), np.nan)


def find_why(p=0.9, suggested=1, **columns):
    """The reason that is given for a picture called cat, of which one column or another is said."""
    found = label_issues(examples([p], [0], [suggested], **{name: [value] for name, value in columns.items()}), NAMES)
    assert all(found[name][0] == columns[name] for name in NEAR_COLUMNS if name in columns)
    return found["why"][0]


@pytest.mark.parametrize(
    ("said", "columns"),
    [
        (
            "looks like dog in about 9 of 10 visits; "
            "the model does not believe cat, and learning it as cat hurts held-out dog",
            {},
        ),
        ("looks like dog; the model does not believe cat", {"worst": -1.0, "margin": 1.0, "suggested_share": np.nan}),
        ("looks like dog in every visit; learning it as cat hurts held-out dog", {"margin": 1.0, "suggested_share": 1}),
        (
            "looks like dog in about 7 of 10 visits; the model does not believe cat",
            {"worst": -1.0, "suggested_share": 0.7},
        ),
        ("nothing speaks against cat", {"p": 0.1, "suggested": -1, "margin": 1.0, "suggested_share": 0.0}),
        ("nothing speaks against cat", {"p": 0.004}),
        ("nothing speaks against cat; the next best is dog", {"p": 0.1, "worst": -1.0, "margin": 1.0}),
        # of a scan, which has no scores
        ("looks like dog; the model does not believe cat", OF_A_SCAN),
        ("looks like dog; the model is unsure of cat", {**OF_A_SCAN, "p": 0.3}),
        ("looks like dog; the model is unsure of cat", {**OF_A_SCAN, "p": np.nan, "label_score": 0.7}),
        (
            "not judged: it was never seen while the scores could be trusted",
            {"p": np.nan, "worst": np.nan, "margin": 1.0, "suggested_share": 0.0},
        ),
        (
            "looks like dog; the model, which has not seen it, does not believe cat, "
            "and learning it as cat would hurt other held-out dog",
            {"source": "holdout", "n_visits": 1, "suggested_share": 1.0},
        ),
    ],
)
def test_a_reason_follows_the_signals(said, columns):
    assert find_why(**columns) == said


@pytest.mark.parametrize(
    ("visits", "share", "said"),
    [
        (1, 0.9, ""),  # before: "in 9 of 10 visits"
        (3, 0.9, " in about 2 of 3 visits"),
        (3, 1.0, " in every visit"),
        (40, 0.96, " in about 9 of 10 visits"),  # before: "in every visit"
        (40, np.nan, ""),  # a model of the noise suggests another class than the visits did
    ],
)
def test_a_phrase_counts_no_more_visits_than_there_were(visits, share, said):
    assert find_why(suggested_share=share, n_visits=visits).startswith(f"looks like dog{said};")


@pytest.mark.parametrize(
    ("near", "said"),
    [
        ((5, 0, 6), "5 of its 6 nearest examples are labelled dog;"),
        ((4, 2, 6), "4 of its 6 nearest examples are labelled dog and 2 cat;"),
        ((1, 0, 6), "1 of its 6 nearest examples is labelled dog;"),
        ((6, 0, 6), "all of its 6 nearest examples are labelled dog;"),
        ((1, 0, 1), "the nearest is labelled dog;"),
        ((0, 5, 6), "looks like dog, but 5 of its 6 nearest examples are labelled cat;"),
        ((0, 0, 6), "looks like dog, but its nearest examples are labelled neither dog nor cat;"),
        ((0, 0, 0), "looks like dog in about 9 of 10 visits;"),
    ],
)
def test_a_phrase_says_how_the_nearest_examples_are_labelled(near, said):
    assert find_why(**dict(zip(NEAR_COLUMNS, near, strict=True))).startswith(said)


def test_probabilities_of_suggestions_are_passed_on_where_a_run_has_them():
    assert "p_suggested" not in label_issues(examples([0.9], [0], [1]), NAMES)
    assert "p_suggested" not in label_issues(examples([0.9], [0], [1], p_suggested=[np.nan]), NAMES)
    assert label_issues(examples([0.9], [0], [1], p_suggested=[0.8]), NAMES)["p_suggested"].tolist() == [0.8]


def test_a_run_without_probabilities_is_ranked_and_calls_nothing_an_issue():
    table = examples([0.0, 0.0], [0, 1], [1, 0], margin=[1.0, -1.0])
    for name in ("p_mislabeled", "p_mislabeled_low", "p_mislabeled_high"):
        del table[name]
    found = label_issues(table)
    assert found["id"][0] == "img/1.png"
    assert not found["is_label_issue"].any()
    np.testing.assert_allclose(found["label_score"], [1 / (1 + np.e), np.e / (1 + np.e)])  # by the margin
    with pytest.raises(SgoifError, match="no probabilities"):
        class_issues(table)


def test_classes_without_a_probability_say_why():
    table = examples([np.nan] * 4, [0, 0, 1, 1], [1, 1, 0, 0])
    table["no_p_reason"] = np.array(["the model is right on a third"] * 4, dtype=object)
    with pytest.raises(SgoifError, match="cannot tell error rates: the model is right on a third"):
        class_issues(table)


def test_noise_that_is_even_over_the_classes_singles_out_none():
    p = np.tile(np.where(np.arange(100) < 20, 0.97, 0.01), 4)
    given = np.repeat(np.arange(4), 100)
    found = class_issues(examples(p, given, (given + 1) % 4), class_names=NAMES)
    assert set(found["verdict"]) == {EVEN}
    p[:100] = np.where(np.arange(100) < 60, 0.97, 0.01)  # one class is worse than the rest
    found = class_issues(examples(p, given, (given + 1) % 4), class_names=NAMES)
    assert dict(zip(found["name"], found["verdict"])) == {**dict.fromkeys(NAMES, EVEN), NAMES[0]: MISLABELLED}


def test_classes_are_told_apart_by_how_sure_their_errors_are():
    sure = np.where(np.arange(100) < 30, 0.97, 0.01)  # 30 that are surely dogs
    unsure = np.where(np.arange(100) < 60, 0.5, 0.01)  # many that might be either
    fine, few = np.full(100, 0.001), np.full(10, 0.9)
    p = np.concatenate([sure, unsure, fine, few])
    given = np.repeat([0, 1, 2, 3], [100, 100, 100, 10])
    suggested = np.repeat([1, 2, 0, 0], [100, 100, 100, 10])
    found = class_issues(examples(p, given, suggested), class_names=NAMES)
    by_name = dict(zip(found["name"], zip(found["verdict"], found["confused_with"]), strict=True))
    assert by_name["cat"] == (MISLABELLED, "dog")
    assert by_name["dog"] == (UNCERTAIN, "bird")
    assert by_name["bird"][0] == FINE
    assert by_name["fox"][0] == TOO_FEW
    assert found["name"].tolist() == ["dog", "cat", "bird", "fox"]
    cat = found["name"].tolist().index("cat")
    assert found["error_rate_low"][cat] < found["error_rate"][cat] < found["error_rate_high"][cat]
    assert found["expected_errors"][cat] == pytest.approx(29.8)
    few = class_issues(examples(np.full(50, 0.9), np.zeros(50, int), np.ones(50, int)), held_out=[4])
    assert few["verdict"].tolist() == [TOO_FEW]


def test_groups_are_compared_with_the_whole():
    p = np.concatenate([np.full(200, 0.5), np.full(200, 0.01), np.full(5, 0.9)])
    table = examples(p, np.zeros(405, int), np.ones(405, int))
    found = group_issues(table, ["anna"] * 200 + ["ben"] * 200 + ["cleo"] * 5)
    assert found["group"].tolist() == ["anna", "ben", "cleo"]
    assert found["verdict"].tolist() == ["worse than the rest", "better", TOO_FEW]
    with pytest.raises(SgoifError, match="405 examples but 1"):
        group_issues(table, ["anna"])
