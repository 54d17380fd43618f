"""Copies under two labels and outliers, as the page gets them."""

from __future__ import annotations

import numpy as np
import pytest

from sgoif.evidence import SKETCH_COLUMNS
from sgoif.report.cards import Card
from sgoif.report.queues import describe_queues, find_queues
from sgoif.review.decisions import Decision
from sgoif.run import load
from tests.cli.runs import NAMES, held_out, table, write_run

COUNT = 40
PAIRS = [(0, 21), (2, 23), (4, 25)]  # under the classes 0 and 1, 2 and 3, 0 and 1
FAR = [7, 30]
ISSUES = [
    {"kind": "conflicting_duplicates", "severity": "high", "title": "6 copies", "count": 6, "ids": []},
    {"kind": "outliers", "severity": "low", "title": "5 outliers", "count": 5, "ids": ["img/007.png", "img/030.png"]},
]


def write_queued(folder, issues=ISSUES):
    """A run of 40 examples with sketches: three copies under two labels, the last one not quite the same."""
    rng = np.random.default_rng(0)
    words = rng.integers(-(2**62), 2**62, (COUNT, 4))
    for one, other in PAIRS:
        words[other] = words[one]
    words[PAIRS[2][1], 3] ^= 1
    given = np.arange(COUNT) % 4
    sketches = {name: words[:, i] for i, name in enumerate(SKETCH_COLUMNS)}
    examples = table(np.linspace(0.95, 0.01, COUNT), given, (given + 1) % 4, **sketches)
    facts = {"data_issues": list(issues), "nearly_same": 10, "trusted": False}
    return write_run(folder, examples, holdout=held_out(), names=NAMES, **facts)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return load(write_queued(tmp_path_factory.mktemp("queues") / "run"))


def name(i):
    return f"img/{i:03d}.png"


def decide(i, decision, *labels):
    return Decision(name(i), i % 4, decision, labels)


def pairs_of(found):
    return [tuple(sorted((str(pair.one.id), str(pair.other.id)))) for pair in found.pairs]


def test_copies_come_nearest_first_and_outliers_as_the_run_names_them(run):
    found = find_queues(run)
    assert sorted(pairs_of(found)) == [(name(one), name(other)) for one, other in PAIRS]
    assert [pair.is_same for pair in found.pairs] == [True, True, False]
    assert [card.id for card in found.outliers] == [name(i) for i in FAR]
    assert (found.num_pairs, found.num_outliers) == (3, 5)
    assert all(card.given == int(card.id[4:7]) % 4 and card.source == "train" for card in found.cards)


def test_a_run_without_such_findings_or_with_damaged_ones_has_no_queues(tmp_path, caplog):
    none = [{**ISSUES[0], "count": 0}, {"kind": "outliers", "severity": "unknown", "title": "?", "count": None}]
    damaged = [{**ISSUES[0], "count": "many"}]
    for number, issues in enumerate(([], none, damaged)):
        assert "damaged" not in caplog.text
        found = find_queues(load(write_queued(tmp_path / f"run{number}", issues)))
        assert not found.pairs and not found.outliers and not found.cards
    assert "damaged" in caplog.text


def test_earlier_decisions_settle_pairs_and_outliers(run):
    for decisions, left in (
        ([decide(0, "keep")], 3),
        ([decide(0, "unsure"), decide(21, "unsure")], 3),
        ([decide(0, "keep"), decide(21, "keep")], 2),
        ([decide(21, "drop")], 2),
        ([decide(0, "relabel", 1)], 2),  # as the other one
        ([decide(0, "relabel", 2)], 3),
    ):
        found = find_queues(run, decisions)
        assert len(found.pairs) == found.num_pairs == left, decisions
    found = find_queues(run, [decide(7, "drop"), decide(30, "unsure")])
    assert [card.id for card in found.outliers] == [name(30)] and found.num_outliers == 4


def test_examples_of_queues_are_cards_of_the_page_or_follow_them(run):
    found = find_queues(run)
    described, extras = describe_queues(found, [Card(name(0), 0), Card(name(7), 3), Card(name(8), 0)])
    assert described["outliers"] == {
        "entries": [[1], [3 + [str(card.id) for card in extras].index(name(30))]],
        "count": 5,
    }
    assert [i for entry in described["duplicates"]["entries"] for i in entry if i < 3] == [0]
    assert len(extras) == 6 and len({str(card.id) for card in extras}) == 6
