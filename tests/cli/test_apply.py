"""``sgoif apply``: decisions in, a manifest and an honest account of them out."""

import numpy as np
import pyarrow.parquet as pq
import pytest

from sgoif.files.tables import write_csv_rows
from sgoif.review.decisions import Decision, write_decisions
from sgoif.review.plan import PlannedCard, draw_canaries, draw_unlisted, make_plan, write_plan
from sgoif.store import RunFiles
from tests.cli.runs import answer, golden, held_out, noisy, read_output, read_refusal, without_probabilities, write_run

PEOPLE = ("ann", "ben")


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run of 400 examples, of which the first 30 are flagged and 27 of these wrong; 5 more are wrong unseen."""
    monkeypatch.chdir(tmp_path)
    return write_run("run", noisy(), holdout=held_out(trusted=True))


def truth_of(card):
    """What is right for a card; the hold-out is."""
    if card.kind == "canary":
        return card.truth
    number = int(card.id[4:7])
    return card.given_label if 27 <= number < 395 else (card.given_label + 1) % 4


def planned(run, people=PEOPLE, checks=0.5):
    issues = noisy()
    flagged = []
    for i in np.argsort(-issues["p_mislabeled"], kind="stable")[:30]:
        names = ("id", "given_label", "suggested_label", "p_mislabeled")
        ident, given, suggested, p = (issues[name][i] for name in names)
        flagged.append(PlannedCard(str(ident), int(given), (int(suggested),), float(p), "flagged", p=float(p)))
    listed = [card.id for card in flagged]
    with RunFiles(run) as files:
        unlisted = draw_unlisted(files.sql, listed, 60, seed=1)
        canaries = draw_canaries(files.sql, listed, 20, num_classes=4, seed=1)
    plan = make_plan(run, flagged, unlisted, canaries, people, overlap=0.2, checks=checks, seed=1)
    write_plan(run, plan)
    return plan


def decide(plan, person, answer_to=None, cards=None):
    found = []
    for card in plan.cards[person][:cards]:
        kind, label = (answer_to or (lambda card: None))(card) or ("relabel", truth_of(card))
        if label == card.given_label:
            kind = "keep"
        labels = (label,) if kind == "relabel" else ()
        found.append(Decision(str(card.id), card.given_label, kind, labels, reviewer=person, list_id=plan.list_id))
    write_decisions(found, f"{person}.csv")
    return found


def test_a_review_of_two_people_is_told_as_it_was_approved(run):
    plan = planned(run)
    shared = {card.key for card in plan.cards["ann"]} & {card.key for card in plan.cards["ben"]}
    flagged = sorted(shared & set(plan.of_kind("flagged")))
    decide(plan, "ann")
    decide(plan, "ben", lambda card: ("drop", None) if card.key == flagged[0] else None)
    write_csv_rows("own.csv", ("id", "who"), [(f"img/{i:03d}.png", "x" if i < 40 else "y") for i in range(400)])
    files = ("ann.csv", "ben.csv", "--out", "m.parquet")
    golden("apply.txt", read_output("apply", run, *files, "--by", "who", "--table", "own.csv"))
    assert pq.read_table("m.parquet").num_rows == 400


def test_numbers_are_those_of_the_cards(run):
    plan = planned(run)
    for person in PEOPLE:
        decide(plan, person)
    found = answer("apply", run, "ann.csv", "ben.csv", "--out", "m.csv")
    assert found["precision"]["value"] == pytest.approx(27 / 30) and found["precision"]["num_decided"] == 30
    assert found["kappa"] == 1 and found["num_shared"] == 6 + 3
    scores = {name: (score["num_right"], score["num_shown"]) for name, score in found["canaries"].items()}
    assert scores == {"ann": (5, 5), "ben": (5, 5)}
    sample = plan.of_kind("random")
    wrong = sum(truth_of(card) != card.given_label for card in sample.values())
    rate = found["error_rate"]
    assert rate["num_sampled"] == len(sample) == 15 and rate["model_share"] == 0 and rate["num_known"] == 27
    assert rate["rate"] == pytest.approx((27 + max(370 * wrong / 15, 0)) / 400)
    assert found["counts"]["relabel"] == 27 + wrong and found["counts"]["unreviewed"] == 400 - 45
    assert found["disagreements"] == [] and found["not_in_run"] == 0 == found["other_label_in_run"]


def test_undecided_cards_rest_on_the_model_and_that_is_said(run):
    plan = planned(run, ["ann"])
    decide(plan, "ann", cards=20)
    found = answer("apply", run, "ann.csv", "--out", "m.csv")
    assert 0 < found["error_rate"]["model_share"] < 1
    assert found["num_undecided"] > 0 and found["expected_errors_undecided"] > 0.5 * found["num_undecided"]
    assert found["kappa"] is None
    text = read_output("apply", run, "ann.csv", "--out", "m.csv")
    assert "not decided, about" in text and "the run's probabilities for" in text


def write_decided(path, *rows):
    write_csv_rows(path, ("id", "given_label", "decision"), rows)


def test_without_a_plan_decisions_are_applied_too(run):
    write_decided("d.csv", ("img/000.png", 0, "drop"), ("img/200.png", 2, "keep"))
    found = answer("apply", run, "d.csv", "--out", "m.csv")
    assert (found["counts"]["drop"], found["counts"]["keep"], found["canaries"]) == (1, 1, {})
    assert found["error_rate"]["num_sampled"] == 0 and found["error_rate"]["model_share"] > 0


def test_what_does_not_fit_the_run_is_counted_and_not_applied(run):
    others = [(f"img/{i:03d}.png", 0, "drop") for i in range(1, 25)]
    write_decided("d.csv", ("img/000.png", 1, "drop"), ("img/0.png", 0, "drop"), *others)
    found = answer("apply", run, "d.csv", "--out", "m.parquet")
    assert (found["not_in_run"], found["other_label_in_run"], found["counts"]["drop"]) == (1, 1, 24)
    assert len(found["warnings"]) == 3 and "cat would lose 24 of its 100 examples (24%)" in found["warnings"][2]


def test_an_uncalibrated_run_can_be_reviewed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = write_run("run", without_probabilities(noisy()))
    write_decided("d.csv", ("img/000.png", 0, "drop"))
    found = answer("apply", run, "d.csv", "--out", "m.csv")
    assert found["error_rate"] is None and found["counts"]["drop"] == 1
    assert "Error rate" not in read_output("apply", run, "d.csv", "--out", "m.csv")


def test_mistakes_are_told_and_nothing_is_written(run, tmp_path):
    write_decided("d.csv", ("img/000.png", 0, ""))
    write_decided("bad.csv", ("img/000.png", 0, "burn"))
    for args, said in (
        (("d.csv", "--out", "m.csv"), "nothing is decided"),
        (("bad.csv", "--out", "m.csv"), "line 2 of 'bad.csv': a decision is one of"),
        (("none.csv", "--out", "m.csv"), "is no file"),
        (("d.csv", "--out", "m.csv", "--by", "who"), "go together"),
        (("d.csv",), "--out"),
    ):
        assert said in read_refusal("apply", run, *args)
    assert not (tmp_path / "m.csv").exists()


def test_labels_are_cleaned_without_anybody_looking(run):
    write_decided("d.csv", ("img/000.png", 0, "keep"))
    found = answer("apply", run, "d.csv", "--out", "m.parquet", "--relabel-from", "90%")
    assert found["counts"]["relabel"] == found["num_automatic"] == 29 and found["counts"]["keep"] == 1
    rows = {row["id"]: row for row in pq.read_table("m.parquet").to_pylist()}
    assert rows["img/000.png"]["label"] == 0 and rows["img/001.png"]["label"] == 1
    assert rows["img/001.png"]["reviewers"] == "sgoif"
    alone = answer("apply", run, "--out", "m.csv", "--drop-from", "0.9")
    assert alone["counts"]["drop"] == 30 and "kappa" not in alone
    said = read_output("apply", run, "--out", "m.csv", "--drop-from", "0.9")
    assert "30 of these by their probability alone" in said
