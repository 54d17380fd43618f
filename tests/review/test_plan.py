"""Cards are dealt fairly, checks are mixed in unseen, and the draw is uniform and repeatable."""

from collections import Counter

import numpy as np
import pytest

from sgoif.errors import SgoifError
from sgoif.review.plan import PlannedCard, draw_canaries, draw_unlisted, make_plan, read_plan, read_plans, write_plan
from sgoif.store import RunFiles
from sgoif.tables import MemoryTables
from tests.cli.runs import held_out, noisy, table, write_run


def cards(count=300, classes=4, seed=0):
    rng = np.random.default_rng(seed)
    given = rng.integers(0, classes, count)
    p = np.sort(rng.uniform(0.5, 1, count))[::-1]
    suggested = np.stack([(given + rng.integers(1, 3, count)) % classes, (given + 3) % classes], 1).tolist()
    rows = zip(given.tolist(), suggested, p.tolist(), strict=True)
    return [PlannedCard(f"img/{i}", g, tuple(s), q, "flagged", p=q) for i, (g, s, q) in enumerate(rows)]


UNLISTED = [PlannedCard(f"rest/{i}", 0, (1,), None, "random", p=0.01) for i in range(100)]
CANARIES = [PlannedCard(f"held/{i}", 0, (1, 2), None, "canary", truth=1, source="holdout") for i in range(30)]
PEOPLE = ["ann", "ben", "cem"]


def test_some_cards_go_to_all_and_every_pair_is_shared_alike():
    flagged = cards()
    plan = make_plan("run", flagged, UNLISTED, CANARIES, PEOPLE, overlap=0.1, checks=0.1, seed=3)
    dealt = {name: [card.key for card in mine if card.kind == "flagged"] for name, mine in plan.cards.items()}
    times = Counter(key for keys in dealt.values() for key in keys)
    assert set(times) == {card.key for card in flagged}
    assert Counter(times.values()) == {3: 30, 1: 270}
    order = {card.key: i for i, card in enumerate(flagged)}
    pair_of = {card.key: (card.given_label, card.suggested[0]) for card in flagged}
    for keys in dealt.values():
        assert [order[key] for key in keys] == sorted(order[key] for key in keys)
        assert len(keys) == 30 + 90
    for pair in set(pair_of.values()):
        counts = [sum(pair_of[key] == pair and times[key] == 1 for key in keys) for keys in dealt.values()]
        assert max(counts) - min(counts) <= 1
    random = Counter(key for mine in plan.cards.values() for key in (c.key for c in mine if c.kind == "random"))
    assert Counter(random.values()) == {3: 3, 1: 27}
    canaries = [[card.key for card in mine if card.kind == "canary"] for mine in plan.cards.values()]
    assert [len(keys) for keys in canaries] == [5, 5, 5] and len({key for keys in canaries for key in keys}) == 15


def test_checks_cannot_be_told_by_their_number_or_place():
    plan = make_plan("run", cards(), UNLISTED, CANARIES, ["ann"], checks=0.3, num_canaries=20)
    mine = plan.cards["ann"]
    shown = [card.p_shown for card in mine]
    assert shown == sorted(shown, reverse=True)  # as the list is
    places = [i / len(mine) for i, card in enumerate(mine) if card.kind != "flagged"]
    assert len(places) == 110 and 0.35 < np.mean(places) < 0.65 and min(places) < 0.1 and max(places) > 0.9
    assert all(card.p_shown == card.p for card in mine if card.kind == "flagged")
    assert all(0.5 <= card.p_shown <= 1 for card in mine)


def test_a_plan_repeats_itself_and_survives_json(tmp_path):
    run = write_run(tmp_path / "run", noisy())
    plan, again = (make_plan(run, cards(), UNLISTED, CANARIES, PEOPLE, seed=5) for _ in range(2))
    assert plan == again and len(plan.list_id) == 10
    other = make_plan(run, cards(), UNLISTED, CANARIES, PEOPLE, seed=6)
    assert other.list_id != plan.list_id and other.cards != plan.cards
    assert make_plan(run, cards()[:-1], UNLISTED, CANARIES, PEOPLE, seed=5).list_id != plan.list_id
    assert read_plans(run) == []
    for item in (plan, other, plan):
        write_plan(run, item)
    assert {item.list_id: item for item in read_plans(run)} == {plan.list_id: plan, other.list_id: other}
    assert RunFiles(run).info["state"] == "finished"
    with pytest.raises(SgoifError, match="format 1"):
        read_plan({"format": 2})
    plan = make_plan("memory://run", cards(5), [], [], ["ann"])
    write_plan("memory://run", plan)
    assert read_plans("memory://run") == [plan]


def test_a_list_without_probabilities_and_checks_is_dealt_too():
    plain = [PlannedCard(i, 0, (), None, "flagged") for i in range(7)]
    plan = make_plan("run", plain, [], CANARIES[:2], ["ann", "ben"], overlap=0)
    assert [sum(card.kind == "flagged" for card in mine) for mine in plan.cards.values()] == [4, 3]
    assert all(card.p_shown is None for mine in plan.cards.values() for card in mine)
    assert [sum(card.kind == "canary" for card in mine) for mine in plan.cards.values()] == [2, 2]
    for people in ([], ["ann", "ann"], [" "]):
        with pytest.raises(SgoifError, match="name the people"):
            make_plan("run", plain, [], [], people)
    with pytest.raises(SgoifError, match="overlap is a share"):
        make_plan("run", plain, [], [], ["ann"], overlap=5)


def test_unlisted_examples_are_drawn_evenly_and_none_is_listed(tmp_path):
    count = 200
    run = write_run(tmp_path / "run", table([0.1] * count, [0] * count, [1] * count, ids=np.arange(count)))
    with RunFiles(run) as files:
        drawn = [draw_unlisted(files.sql, range(100), 20, seed) for seed in range(60)]
        assert draw_unlisted(files.sql, range(100), 20, 3) == drawn[3]
        assert len(draw_unlisted(files.sql, range(100), 1000)) == 100
    times = np.bincount([card.id for cards in drawn for card in cards], minlength=count)
    assert times[:100].sum() == 0 and times.sum() == 1200
    expected, spread = 12, (60 * 0.2 * 0.8) ** 0.5
    assert abs(times[100:] - expected).max() < 4 * spread
    assert drawn[0][0] == PlannedCard(drawn[0][0].id, 0, (1,), None, "random", p=0.1)


def test_canaries_are_verified_ones_under_the_likeliest_wrong_label(tmp_path):
    run = write_run(tmp_path / "run", noisy(), holdout=held_out(trusted=True))
    transition = np.array([[0.6, 0.1, 0.3, 0], [0, 1, 0, 0], [0, 0.2, 0.8, 0], [0, 0, 0, 1]])
    known = {"num_classes": 4, "transition": transition}
    with RunFiles(run) as files:
        found, again = (draw_canaries(files.sql, ["held/000.png"], 40, **known) for _ in range(2))
        unknown = draw_canaries(files.sql, [], 60, num_classes=4)
    assert found == again and len(found) == 40 and "held/000.png" not in {card.id for card in found}
    assert {card.given_label for card in found if card.truth == 0} == {2}
    assert {card.given_label for card in found if card.truth == 2} == {1}
    for card in [*found, *unknown]:
        assert card.truth != card.given_label and card.truth in card.suggested
        assert card.given_label not in card.suggested
    assert {card.given_label for card in unknown if card.truth == 0} == {1, 2, 3}
    assert len({card.suggested.index(card.truth) for card in found}) == 3


def test_of_an_unverified_hold_out_only_the_surest_serve(tmp_path):
    held = held_out()
    held["p_mislabeled"] = np.where(np.arange(60) < 50, 0.5, np.linspace(0.001, 0.03, 60))
    held["p_mislabeled"][50:53] = [0.01, 0.002, 0.0199]
    run = write_run(tmp_path / "run", noisy(), holdout=held, trusted=False)
    with RunFiles(run) as files:
        found = draw_canaries(files.sql, [], 10, num_classes=4)
    assert sorted(card.id for card in found) == ["held/050.png", "held/051.png", "held/052.png"]
    none = write_run(tmp_path / "none", noisy())
    same = write_run(tmp_path / "same", noisy(), holdout=held_out(trusted=True, ids=noisy()["id"][:60]))
    for url in (none, same):
        with RunFiles(url) as files:
            assert draw_canaries(files.sql, [], 10, num_classes=4) == []


def test_verified_canaries_come_first_whatever_the_run_doubts(tmp_path):
    held = held_out() | {"trusted": np.arange(60) < 20, "p_mislabeled": np.where(np.arange(60) < 20, 0.9, 0.001)}
    with RunFiles(write_run(tmp_path / "run", noisy(), holdout=held)) as files:
        found = draw_canaries(files.sql, [], 24, num_classes=4)
    assert {f"held/{i:03d}.png" for i in range(20)} < {card.id for card in found} and len(found) == 24


def test_canaries_of_a_scan_are_examples_that_it_judged():
    columns = {"id": np.arange(60), "given_label": np.arange(60) % 4, "p_mislabeled": np.linspace(0, 0.06, 60)}
    sql = MemoryTables({"examples": columns | {"trusted": np.arange(60) == 59}}).sql
    found = draw_canaries(sql, [0, 1], 40, num_classes=4, has_holdout=False)
    assert {card.id for card in found} == {*range(2, 20), 59}  # those below 2%, and one that is verified
    assert all(card.truth == card.id % 4 != card.given_label and card.source == "train" for card in found)
