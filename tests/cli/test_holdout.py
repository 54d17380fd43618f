"""``sgoif holdout``: a person's work goes into a CSV file and comes back whole."""

import csv
from pathlib import Path

import numpy as np
import pytest

from sgoif.cli.holdout import choose_doubtful
from sgoif.files.tables import guard, unguard, write_csv_rows
from sgoif.scanning.verified import read_verified
from tests.cli.runs import NAMES, NASTY, answer, held_out, invoke, noisy, read_output, read_refusal, write_run

IDS = np.array(['a,"b";c', "日本語/ü.png", "'=1+1", *(f"held/{i:03d}.png" for i in range(3, 60))])


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write_run("run", noisy(), holdout=held_out(ids=IDS), trusted=False)


def read(path):
    with open(path, encoding="utf-8-sig", newline="") as file:
        return [{name: unguard(cell) for name, cell in row.items()} for row in csv.DictReader(file)]


def fill(source, target, labels, delimiter=",", mark=""):
    rows = read(source)
    for row in rows:
        row["verified_label"] = labels.get(row["id"], "")
    with open(target, "w", encoding="utf-8", newline="") as file:
        file.write(mark)
        writer = csv.DictWriter(file, rows[0].keys(), delimiter=delimiter)
        writer.writeheader()
        writer.writerows({name: guard(cell) for name, cell in row.items()} for row in rows)


def test_the_most_doubtful_come_first_and_every_class_comes(run):
    assert "20 of 60" in read_output("holdout", run, "--size", 20, "--out", "verify.csv")
    rows = read("verify.csv")
    assert len(rows) == 20 and rows[0]["id"] == IDS[0]
    p = [float(row["p_mislabeled"]) for row in rows]
    assert p == sorted(p, reverse=True)
    count = {name: sum(row["given_name"] == name for row in rows) for name in NAMES}
    assert min(count.values()) >= 5  # all cats are doubted more than any other
    assert rows[0].keys() == {"id", "given_label", "given_name", "suggested_name", "p_mislabeled", "verified_label"}
    assert not any(row["verified_label"] for row in rows)


@pytest.mark.parametrize("size", [1, 4, 7, 60, 500])
def test_as_many_are_chosen_as_asked_for(size):
    p, labels = np.linspace(0, 1, 60), np.arange(60) % 4
    chosen = choose_doubtful(p, labels, size)
    assert len(chosen) == len(set(chosen.tolist())) == min(size, 60)
    assert len(set(labels[chosen])) == min(size, 4)
    assert (np.diff(p[chosen]) <= 0).all()


@pytest.mark.parametrize(("delimiter", "mark"), [(",", ""), (";", "\ufeff"), ("\t", "")])
def test_what_was_filled_in_is_merged_and_read_by_a_scan(run, delimiter, mark):
    invoke("holdout", run, "--size", 60, "--out", "verify.csv")
    fill("verify.csv", "filled.csv", {IDS[0]: "dog", IDS[1]: " Fox ", IDS[2]: "2"}, delimiter, mark)
    counts = answer("holdout", run, "--filled", "filled.csv", "--verified", "verified.csv")
    assert (counts["read"], counts["added"], counts["total"]) == (3, 3, 3)
    fill("verify.csv", "filled.csv", {IDS[0]: "cat", IDS[5]: "3"})
    counts = answer("holdout", run, "--filled", "filled.csv", "--verified", "verified.csv")
    assert (counts["added"], counts["replaced"], counts["total"]) == (1, 1, 4)
    labels = {row["id"]: row["label"] for row in read("verified.csv")}
    assert labels == {IDS[0]: "cat", IDS[1]: "fox", IDS[2]: "bird", IDS[5]: "fox"}
    assert read_verified("verified.csv", list(IDS), NAMES) == {0: 0, 1: 3, 2: 2, 5: 3}
    read_output("holdout", run, "--size", 60, "--out", "next.csv", "--verified", "verified.csv")
    assert len(read("next.csv")) == 56


def test_mistakes_are_told_with_their_line(run):
    invoke("holdout", run, "--size", 60, "--out", "filled.csv")
    assert "nothing in its column" in read_refusal("holdout", run, "--filled", "filled.csv")
    head = "id,verified_label\nheld/003.png,"
    for text, said in (
        (f"{head}dgo\n", "line 2 of 'filled.csv': there is no class 'dgo'; there are cat, dog, bird, fox"),
        (f"{head}cat\nheld/3.png,cat\n", "line 3 of 'filled.csv': this run's hold-out has no id 'held/3.png'"),
        (f"{head}cat\nheld/003.png,dog\n", "is 'dog' here and 'cat' above"),
        (f"{head}cat\nh\xe9ld,cat\n", "not UTF-8"),
        ("name,label\nx,cat\n", "no column id and no verified_label"),
    ):
        Path("filled.csv").write_text(text, encoding="latin-1")
        assert said in read_refusal("holdout", run, "--filled", "filled.csv")


def test_filled_in_work_is_never_overwritten(run):
    invoke("holdout", run, "--out", "verify.csv")
    fill("verify.csv", "verify2.csv", {IDS[0]: "dog"})
    assert "would be lost" in read_refusal("holdout", run, "--out", "verify2.csv")
    assert read("verify2.csv")[0]["verified_label"] == "dog"
    read_output("holdout", run, "--out", "verify2.csv", "--force")
    Path("notes.txt").write_text("mine")
    read_refusal("holdout", run, "--out", "notes.txt")


def test_decisions_of_the_review_page_verify_labels_too(run):
    rows = [
        (IDS[0], 0, "keep", ""),
        (IDS[1], 1, "relabel", "3"),
        (IDS[2], 2, "drop", ""),
        (IDS[3], 3, "unsure", ""),
        (IDS[4], 3, "keep", ""),  # it has another label by now
        ("img/000.png", 0, "keep", ""),  # not of the hold-out
    ]
    write_csv_rows("decisions.csv", ("id", "given_label", "decision", "label"), rows)
    counts = answer("holdout", run, "--filled", "decisions.csv", "--verified", "verified.csv")
    assert (counts["read"], counts["total"]) == (2, 2)
    assert {row["id"]: row["label"] for row in read("verified.csv")} == {IDS[0]: "cat", IDS[1]: "fox"}
    write_csv_rows("decisions.csv", ("id", "given_label", "decision", "label"), rows[2:])
    assert "keeps or relabels no hold-out example" in read_refusal("holdout", run, "--filled", "decisions.csv")


def test_nothing_is_left_to_verify_in_a_trusted_or_unjudged_hold_out(tmp_path):
    for holdout, said in ((held_out(trusted=True), "verified already"), (None, "has not judged its hold-out")):
        run = write_run(tmp_path / said, noisy(), holdout=holdout)
        assert said in read_refusal("holdout", run, "--out", tmp_path / "v.csv")


def test_class_names_of_any_kind_survive_the_round(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = [*NASTY[:2], "1", "é"]  # a class called "1" is found by its name before its number
    run = write_run("run", noisy(), names=names, holdout=held_out(), trusted=False)
    invoke("holdout", run, "--size", 60, "--out", "verify.csv")
    labels = {"held/000.png": names[0], "held/001.png": names[1], "held/002.png": "1", "held/003.png": "3"}
    fill("verify.csv", "filled.csv", labels)
    read_output("holdout", run, "--filled", "filled.csv")
    assert {row["label"] for row in read("verified.csv")} == set(names)
