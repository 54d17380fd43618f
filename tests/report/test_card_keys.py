"""Class keys of cards: the ranking of the run, with the neighbours that the page shows."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from sgoif.report.cards import Beside, Card, DecidedCard, apply_past_decisions, cards_from, cards_of
from sgoif.report.keys import CardKeys, keys_of_cards
from sgoif.review.decisions import Decision
from sgoif.review.plan import PlannedCard, ReviewPlan

CARD = Card("a", given=0, suggested=(1, 2), p=0.96, probable=(0.9, 0.06))
BESIDE = [Beside(str(i), label) for i, label in enumerate([1, 1, 1, 1, 3, 0])]


def test_a_card_without_neighbours_is_decided_alone():
    with_near, alone, empty = keys_of_cards([CARD, replace(CARD, id="b"), Card("c", 0)], {"a": BESIDE})
    assert with_near.agrees and not alone.agrees
    assert alone.labels == (1, 2) and alone.shares == (0.9, 0.06)
    assert empty == CardKeys()
    assert keys_of_cards([], {}) == []
    # without probabilities there are no shares
    assert keys_of_cards([replace(CARD, probable=())], {"a": BESIDE}) == [CardKeys((1, 2, 3), (), agrees=False)]


def test_probabilities_belong_to_the_suggestions_that_are_left():
    row = {
        "id": ["a", "b"], "given_label": [0, 0], "suggested_label": [1, 2], "suggested_label_2": [0, 1],
        "suggested_label_3": [3, -1], "p_mislabeled": [0.9, 0.8], "p_suggested": [0.6, np.nan],
        "p_suggested_2": [0.1, np.nan], "p_suggested_3": [0.2, np.nan], "suggested_share": [1.0, 1.0],
        "n_visits": [1, 1], "worst": [1.0, 1.0], "margin": [-1.0, -1.0], "source": ["train", "train"],
    }  # fmt: skip
    first, second = cards_from({name: np.array(values) for name, values in row.items()}, ["x", "y", "z", "w"])
    assert (first.suggested, first.probable) == ((1, 3), (0.6, 0.2))
    assert (second.suggested, second.probable) == ((2, 1), ())


def test_earlier_decisions_correct_the_shares_with_the_probability_of_an_error():
    cards = [replace(CARD, id=name, p=0.5, probable=(0.4, 0.1)) for name in "abcdef"]
    past = [Decision("a", 0, "relabel", (1,)), Decision("b", 0, "drop"), Decision("c", 0, "relabel", (2,))]
    left, done = apply_past_decisions(cards, past, None)
    assert [card.id for card in left] == ["d", "e", "f"]
    assert all(isinstance(item, DecidedCard) for item in done)
    assert [(item.card.id, item.truth) for item in done] == [("a", 1), ("b", None), ("c", 2)]
    for card in (*left, *(item.card for item in done)):  # decided or not, on one scale
        assert card.p == left[0].p > 0.6
        np.testing.assert_allclose(card.probable, np.array([0.8, 0.2]) * card.p, atol=2e-4)
    left, done = apply_past_decisions(cards, [Decision("a", 0, "keep"), Decision("b", 0, "unsure")], None)
    assert len(left) == 5 and left[0].p < 0.5
    assert [(item.card.id, item.truth) for item in done] == [("a", 0)]


def test_an_interval_moves_with_its_probability():
    cards = [replace(CARD, id=name, p=0.5, low=0.3, high=0.7) for name in "abcdef"]
    for decision, moved in ((Decision("a", 0, "drop"), 1), (Decision("a", 0, "keep"), -1)):
        card = apply_past_decisions(cards, [decision], None)[0][0]
        odds = np.log([p / (1 - p) for p in (card.low, card.p, card.high)])
        assert moved * odds[1] > 0
        np.testing.assert_allclose(np.diff(odds), np.log(0.7 / 0.3), atol=2e-3)  # they are rounded to 4 digits


def test_a_check_without_a_suggestion_shows_the_class_that_is_labelled_so_most_often():
    """Of label 0 stand 30% of class 2 and 10% of class 1; of class 0 most errors are labelled 1."""
    noise = [[0.6, 0.4, 0], [0.1, 0.9, 0], [0.3, 0, 0.7]]
    run = SimpleNamespace(class_names=["x", "y", "z"], info={"transition": noise})
    plan = ReviewPlan("abcdef", {"ann": (PlannedCard("a", 0, (), 0.5, "random"),)}, {})
    assert cards_of(plan, "ann", [replace(CARD, kind=(0, 0, 0, 0, 0))], run)[0].suggested[0] == 2
