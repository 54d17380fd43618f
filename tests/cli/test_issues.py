"""``sgoif issues``: the worst labels, as a table, as files, as JSON, and by groups."""

import csv
import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.cells import cell_len
from rich.console import Console

import sgoif
from sgoif.cli import issues, output
from sgoif.errors import SgoifError
from sgoif.findings import label_issues
from tests.cli.runs import (
    NAMES,
    NASTY,
    answer,
    golden,
    held_out,
    noisy,
    read_output,
    read_refusal,
    table,
    without_probabilities,
    write_run,
)

FACTS = {"transition": [[0.6, 0.38, 0.02, 0], [0, 1, 0, 0], [0, 0, 0.97, 0.03], [0, 0, 0, 1]]}


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write_run("run", noisy(), **FACTS)


def test_the_table_is_what_was_approved(run):
    golden("issues.txt", read_output("issues", run, "--top", 3))


def test_rows_are_those_of_label_issues_with_names(run):
    document = answer("issues", run, "--top", 0)
    expected = label_issues(noisy(), NAMES)
    assert [row["p_mislabeled"] for row in document["issues"]] == expected["p_mislabeled"].tolist()
    assert {row["id"] for row in document["issues"][:30]} == set(expected["id"][:30].tolist())
    first = document["issues"][0]
    assert (first["given_name"], first["suggested_name"], first["is_label_issue"]) == ("cat", "dog", True)
    assert first["why"] == expected["why"][0]
    summary = document["summary"]
    assert summary["num_flagged"] == 30
    assert summary["expected_errors"] == pytest.approx(30 * 0.98 + 370 * 0.002)
    assert summary["error_rate_low"] < summary["error_rate"] < summary["error_rate_high"]
    assert summary["leaks"][0] == {"true_class": "cat", "given_class": "dog", "share": 0.38}


def test_errors_that_are_spread_evenly_are_no_confusion(tmp_path):
    even = (np.full((4, 4), 0.02) + np.diag(np.full(4, 0.92))).tolist()
    url = write_run(tmp_path / "run", noisy((0.01, 0.0, 0.0, 0.0)), transition=even)
    assert answer("issues", url)["summary"]["leaks"] == []
    shown = read_output("issues", url)
    assert "No class is often taken for another." in shown
    assert "1 is more likely wrong than right" in " ".join(shown.split())  # before, "1 are"


def test_rows_are_filtered_by_class_and_probability(run):
    assert len(answer("issues", run, "--min-p", 0.5)["issues"]) == 30
    assert {row["given_name"] for row in answer("issues", run, "--class", "DOG")["issues"]} == {"dog"}
    assert answer("issues", run, "--class", "1", "--min-p", 0.5)["issues"] == []
    assert "no class 'dig'; it has cat, dog, bird, fox" in read_refusal("issues", run, "--class", "dig")


def test_csv_and_parquet_hold_the_same_rows(run, tmp_path):
    ids = ['a,"b"', "line\nbreak", "x" * 10_000, "日本語"]
    other = write_run("other", table([0.9, 0.8, 0.7, 0.6], [0, 1, 2, 3], [1, 2, 3, 0], ids=ids))
    read_output("issues", other, "--csv", "out/x.csv")
    read_output("issues", other, "--parquet", "x.parquet")
    with open("out/x.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == ids == pq.read_table("x.parquet")["id"].to_pylist()
    assert [row["given_name"] for row in rows] == NAMES
    assert not list(tmp_path.glob("**/*.tmp"))


def test_long_and_hostile_ids_are_cut_and_defused_for_display_only(tmp_path):
    ids = ["a" * 5000 + "b" * 5000, "[red]x[/red]\x1b[2J", "dog's <b>.png"]
    run = write_run(tmp_path / "run", table([0.9, 0.8, 0.7], [0, 1, 2], [1, 2, 3], ids=ids), names=NASTY)
    shown = read_output("issues", run)
    assert "aaa…bbb" in shown and "a" * 501 not in shown
    assert max(map(len, shown.splitlines())) < 1500
    assert "\x1b" not in shown and r"[red]x[/red]\x1b[2J" in shown
    assert [row["id"] for row in answer("issues", run)["issues"]] == ids


def test_hold_out_labels_that_nobody_verified_are_ranked_too(tmp_path):
    run = write_run(tmp_path / "run", noisy(), holdout=held_out(), trusted=False)
    rows = answer("issues", run, "--top", 60)["issues"]
    assert {row["source"] for row in rows[:30]} == {"train"}
    assert rows[30]["source"] == "holdout" and rows[30]["id"] == "held/000.png"
    assert "held/000.png (hold-out)" in read_output("issues", run)
    verified = write_run(tmp_path / "verified", noisy(), holdout=held_out(trusted=True))
    assert {row["source"] for row in answer("issues", verified, "--top", 0)["issues"]} == {"train"}


def test_a_run_without_probabilities_says_so_and_ranks_by_the_margin(tmp_path):
    examples = without_probabilities(noisy())
    examples["margin"] = -examples["worst"]
    run = write_run(tmp_path / "run", examples, calibration_error="SgoifError: no second fold")
    shown = read_output("issues", run, "--top", 2)
    assert "No probabilities" in shown and "no second fold" in shown
    rows = answer("issues", run)["issues"]
    assert rows[0]["id"] == "img/399.png" and not any(row["is_label_issue"] for row in rows)
    for arguments in (["issues", run, "--min-p", 0.5], ["classes", run]):
        assert "has no probabilities" in read_refusal(*arguments)


def test_classes_are_listed_the_worst_first(run):
    golden("classes.txt", read_output("classes", run))
    rows = answer("classes", run)["classes"]
    assert (rows[0]["name"], rows[0]["verdict"], rows[0]["confused_with"]) == ("cat", "mislabelled", "dog")


@pytest.mark.parametrize("kind", ["csv", "semicolons", "parquet"])
def test_groups_come_from_the_users_own_table(run, kind):
    ids = [f"img/{i:03d}.png" for i in range(390)]  # ten are missing
    who = ["anna" if i < 100 else "ben" for i in range(390)]
    if kind == "parquet":
        path = "own.parquet"
        pq.write_table(pa.table({"annotator": who, "id": ids}), path)
    else:
        path, mark = "own.csv", "," if kind == "csv" else ";"
        lines = [f'"{name}"{mark}{ident}' for name, ident in zip(who, ids, strict=True)]
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join([f"annotator{mark}id", *lines]) + "\n")
    document = answer("issues", run, "--by", "annotator", "--table", path)
    groups = {row["group"]: row for row in document["groups"]}
    assert groups["anna"]["verdict"] == "worse than the rest"
    assert groups["anna"]["error_rate"] == pytest.approx(0.3 * 0.98 + 0.7 * 0.002)
    assert groups["ben"]["verdict"] == "better"
    assert document["num_examples_not_in_table"] == 10 == groups["(not in the table)"]["num_examples"]
    shown = read_output("issues", run, "--by", "annotator", "--table", path)
    assert "worse than the rest" in shown and "10 of 400 examples are not in" in shown


def test_groups_need_the_right_table(run):
    pq.write_table(pa.table({"id": ["x", "y"], "annotator": ["a", "b"]}), "strangers.parquet")
    pq.write_table(pa.table({"id": ["img/000.png"] * 2, "annotator": ["a", "b"]}), "twice.parquet")
    for column, path, said in (
        ("annotator", "strangers.parquet", "look like 'img/"),
        ("annotator", "twice.parquet", "several rows with id 'img/000.png'"),
        ("vendor", "twice.parquet", "no column vendor; it has id, annotator"),
        ("x", "none.csv", "is no file"),
    ):
        assert said in read_refusal("issues", run, "--by", column, "--table", path)


def test_whole_numbers_serve_as_ids(tmp_path):
    run = write_run(tmp_path / "run", table([0.9, 0.1], [0, 1], [1, 0], ids=np.array([7, 2**40])))
    assert [row["id"] for row in answer("issues", run)["issues"]] == [7, 2**40]
    path = tmp_path / "own.csv"
    path.write_text(f"id,camera\n7,left\n{2**40},right\n")
    groups = answer("issues", run, "--by", "camera", "--table", path)["groups"]
    assert {row["group"] for row in groups} == {"left", "right"}


def test_json_is_one_document_without_strangers(tmp_path):
    examples = noisy()
    examples["p_mislabeled"][0] = np.nan
    run = write_run(tmp_path / "run", examples, names=NASTY)
    text = read_output("issues", run, "--top", 0, "--json")
    assert "NaN" not in text
    rows = json.loads(text)["issues"]
    assert rows[-1]["id"] == "img/000.png" and rows[-1]["p_mislabeled"] is None
    assert rows[0]["given_name"] == NASTY[0]


def test_limits_are_heeded_alike_everywhere_and_groups_refuse_filters(run):
    found = sgoif.load(run)
    assert len(answer("issues", run, "--top", 0)["issues"]) == 400
    assert len(found.label_issues(top=0)) == len(found.label_issues()) == 400
    assert len(found.label_issues(top=3)) == 3
    by = np.arange(found.num_examples) % 3
    assert len(found.label_issues(by=by)) == 3 and len(found.label_issues(by=by, top=2)) == 2
    for options in ({"given": "cat"}, {"min_p": 0.5}):
        with pytest.raises(SgoifError, match="neither given= nor min_p="):
            found.label_issues(by=by, **options)
    with pytest.raises(SgoifError, match="no option 'reviewer'; it has images, top"):
        found.report("page.html", reviewer="ann")


@pytest.mark.parametrize("width", [80, 140])
def test_brief_findings_are_a_line_each_on_any_terminal(tmp_path, width, monkeypatch):
    run = sgoif.load(write_run(tmp_path / "run", noisy(ids=[f"{'x' * 60}/{i}.png" for i in range(400)]), **FACTS))
    written = io.StringIO()
    screen = Console(file=written, force_terminal=True, width=width, color_system=None)
    monkeypatch.setattr(issues, "console", lambda: screen)
    monkeypatch.setattr(output, "console", lambda: screen)
    issues.show_labels(run, run.label_issues(top=8), is_brief=True)
    head, *lines = written.getvalue().splitlines()
    assert len(lines) == 8 and all(cell_len(line.rstrip()) <= width for line in lines)
    assert ("why" in head) == (width >= 120) and all(".png" in line for line in lines)
