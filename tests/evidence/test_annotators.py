"""Labels of several annotators: consensus, quality, and what is shrunk or ignored."""

import numpy as np
import pytest

from sgoif.evidence.annotators import STRUCTURES, Votes, _ask_gain, judge_votes


def crowd(
    count: int = 600, annotators: int = 12, classes: int = 5, most: int = 4, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels ``[N, A]`` of one to `most` annotators each, the true classes, and how often each annotator is right."""
    rng = np.random.default_rng(seed)
    true, quality = rng.integers(0, classes, count), np.linspace(0.35, 0.95, annotators)
    labels = np.full((count, annotators), -1)
    for row in range(count):
        for who in rng.choice(annotators, rng.integers(1, most + 1), replace=False):
            wrong = (true[row] + rng.integers(1, classes)) % classes
            labels[row, who] = true[row] if rng.random() < quality[who] else wrong
    return labels, true, quality


def predictions(true: np.ndarray, accuracy: float, classes: int = 5, seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    guess = np.where(rng.random(len(true)) < accuracy, true, rng.integers(0, classes, len(true)))
    p = np.full((len(true), classes), 0.3 / (classes - 1))
    p[np.arange(len(true)), guess] = 0.7
    return np.log(p)


def test_quality_is_found_with_intervals_that_hold() -> None:
    labels, true, quality = crowd()
    found = judge_votes(Votes.of(labels, 5), None)
    assert np.corrcoef(found.quality, quality)[0, 1] > 0.95
    assert ((found.quality_low <= quality) & (quality <= found.quality_high)).mean() >= 0.7
    assert found.structure == "accuracy" and found.model_trust == 0 and found.why_not is None
    assert (found.consensus == true).mean() >= (found.majority == true).mean() - 0.01


def test_probabilities_are_as_good_as_they_say() -> None:
    labels, true, _ = crowd(2000)
    found = judge_votes(Votes.of(labels, 5), predictions(true, 0.7))
    assert abs(found.p_consensus.mean() - (found.consensus == true).mean()) < 0.03
    assert abs(found.p_majority_wrong.sum() - (found.majority != true).sum()) < 60
    assert (found.p_majority_wrong_low <= found.p_majority_wrong).all()


def test_a_good_model_is_heard_and_a_useless_one_is_not() -> None:
    labels, true, _ = crowd()
    alone = judge_votes(Votes.of(labels, 5), None)
    good = judge_votes(Votes.of(labels, 5), predictions(true, 0.9))
    useless = judge_votes(Votes.of(labels, 5), predictions(true[::-1].copy(), 0.9))
    assert good.model_trust > 0 and (good.consensus == true).mean() > (alone.consensus == true).mean() + 0.02
    assert useless.model_trust == 0
    assert (useless.consensus == true).mean() >= (alone.consensus == true).mean() - 0.01


def test_single_labels_are_judged_by_the_model_or_not_at_all() -> None:
    labels, true, _ = crowd(most=1)
    alone = judge_votes(Votes.of(labels, 5), None)
    assert alone.why_not is not None and "several annotators" in alone.why_not
    found = judge_votes(Votes.of(labels, 5), predictions(true, 0.9))
    assert found.why_not is None and (found.consensus == true).mean() > 0.8


def test_an_annotator_of_few_labels_is_shrunk() -> None:
    labels, true, _ = crowd()
    few = np.full((len(labels), 1), -1)
    few[:2, 0] = (true[:2] + 1) % 5  # two labels, both wrong
    found = judge_votes(Votes.of(np.column_stack([labels, few]), 5), None)
    assert found.annotator_labels[-1] == 2
    assert 0.3 < found.quality[-1] < found.quality[:-1].mean()
    assert found.quality_high[-1] - found.quality_low[-1] > 2 * (found.quality_high[0] - found.quality_low[0])


def test_a_shared_confusion_enters_where_labels_support_it() -> None:
    rng = np.random.default_rng(5)
    true = rng.integers(0, 6, 800)
    labels = np.full((800, 8), -1)
    for row in range(800):
        for who in rng.choice(8, 3, replace=False):
            labels[row, who] = true[row] if rng.random() < 0.7 else true[row] ^ 1  # always the class beside it
    found = judge_votes(Votes.of(labels, 6), None)
    assert found.structure in STRUCTURES[1:] and found.gain > 0


def test_asking_again_helps_most_where_two_classes_are_even() -> None:
    gain = _ask_gain(np.array([[0.5, 0.5, 0.0], [0.98, 0.01, 0.01], [0.7, 0.2, 0.1]]), 0.8)
    assert gain[0] == max(gain) and gain[1] == pytest.approx(0)
    # two even classes: the label is the right one in 80%, the third class in 10%, and then it is a guess
    assert gain[0] == pytest.approx(0.8 + 0.1 / 2 - 0.5)
