"""The simulated reviewer: seconds that can be added up by hand."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.keystrokes import Costs, ReviewList, simulate

COSTS = Costs()
LIST = COSTS.preparation + COSTS.homing + COSTS.pointing + COSTS.key + COSTS.homing


def a_list(given, true, first, answer=None):
    given, true, first = (np.array(values) for values in (given, true, first))
    keys = np.stack([first, np.full_like(first, -1), np.full_like(first, -1)], 1)
    return ReviewList(given, true, keys, np.array(first if answer is None else answer))


def review(policy, cards, overlooks=0.0):
    return simulate(policy, cards, overlooks=overlooks, seed=1)


def test_a_card_alone_costs_a_look_and_a_key_or_a_way_into_the_list_of_classes():
    easy, kept, hard = a_list([0], [1], [1]), a_list([0], [0], [1]), a_list([0], [2], [1])
    screen = COSTS.scroll
    assert review("one_by_one", easy).seconds == pytest.approx(screen + 1.5 + 0.2)
    assert review("one_by_one", kept).seconds == pytest.approx(screen + 1.5 + 0.2)
    assert review("one_by_one", hard).seconds == pytest.approx(screen + 1.5 + LIST)


def test_a_batch_costs_a_look_at_each_tile_and_one_key():
    found = review("workbench", a_list([0] * 50, [1] * 50, [1] * 50))
    assert found.seconds == pytest.approx(1.35 + 0.5 + 50 * 0.4 + 0.2)
    assert (found.num_right, found.num_wrong, found.num_bulk, found.num_bulk_right) == (50, 0, 50, 50)
    two = review("workbench", a_list([0] * 60, [1] * 60, [1] * 60))
    assert two.seconds == pytest.approx(2 * (1.35 + 0.5 + 0.2) + 60 * 0.4)


def test_an_exception_is_clicked_and_decided_alone():
    found = review("workbench", a_list([0] * 10, [1] * 9 + [0], [1] * 10))
    whole = review("workbench", a_list([0] * 10, [1] * 10, [1] * 10))
    assert found.seconds - whole.seconds == pytest.approx(1.1 + 0.2 + 2 * 0.4 + 1.5 + 0.2)
    assert (found.num_right, found.num_wrong, found.num_bulk_right) == (10, 0, 9)


def test_an_exception_that_is_overlooked_is_a_wrong_accept_on_both_pages():
    cards = a_list([0] * 40, [1] * 39 + [0], [1] * 40)
    for policy in ("cards", "workbench"):
        found = review(policy, cards, overlooks=1.0)
        assert (found.num_right, found.num_wrong) == (39, 1)
    assert review("one_by_one", cards, overlooks=1.0).num_wrong == 0


def test_the_page_of_cards_takes_the_cheaper_way_for_every_group():
    pure, mixed = a_list([0] * 40, [1] * 40, [1] * 40), a_list([0] * 40, [0] * 40, [1] * 40)
    assert review("cards", pure).seconds == pytest.approx(3 * 0.5 + 1.35 + 40 * 0.4 + 2 * 0.2)
    assert review("cards", mixed) == review("one_by_one", mixed)


def test_answers_are_revised_by_what_was_decided_after_a_round_in_focus_mode():
    asked = []

    def revise(decided):
        asked.append(int((decided >= 0).sum()))
        return np.where(decided < 0, 1, -1)

    cards = replace(a_list([0] * 300, [1] * 299 + [2], [1] * 300, answer=[-1] * 300), revise=revise)
    found = review("workbench", cards)
    assert asked == [200, 300]  # a round, then two batches and the exception
    assert (found.num_bulk, found.num_bulk_right, found.num_right) == (100, 99, 300)
    assert found.seconds == pytest.approx(
        200 * 1.7 + 100 * 0.4 + 2 * (1.35 + 0.5 + 0.2) + 1.1 + 0.2 + 2 * 0.4 + 1.5 + LIST
    )


def test_few_tiles_and_cards_without_an_answer_are_decided_one_at_a_time():
    for cards in (a_list([0, 0], [1, 1], [1, 1]), a_list([0] * 5, [1] * 5, [1] * 5, answer=[-1] * 5)):
        found = review("workbench", cards)
        assert found.num_bulk == 0 and found.seconds == pytest.approx(1.7 * len(cards.given))
