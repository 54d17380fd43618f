"""``--images run`` and ``--show``: texts and rows from where a scan read them."""

import csv
import json

import numpy as np
import pytest

from sgoif.cli import report
from tests.cli.runs import answer, document_of, held_out, read_output, read_refusal, table, write_run

COUNT = 40


def write_data(folder, kind, columns=("id", "said", "label")):
    rows = [dict(zip(columns, (f"r{i}", f"what r{i} says\nhere", "cat"))) for i in range(COUNT)]
    path = folder / f"mine.{kind}"
    if kind == "jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    else:
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, columns, delimiter="\t" if kind == "tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)
    return path


IDS, GIVEN = [f"r{i}" for i in range(COUNT)], np.arange(COUNT) % 4


def scanned(tmp_path, data, **tables):
    """A run whose settings name the data."""
    examples = table(np.linspace(0.99, 0.5, COUNT), GIVEN, (GIVEN + 1) % 4, ids=IDS)
    run = write_run(tmp_path / "run", examples, **tables)
    (tmp_path / "run" / "scan.yaml").write_text(f"data: {json.dumps(str(data))}\n")
    return run


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl"])
def test_a_report_shows_what_a_scan_read_whatever_table_it_was(tmp_path, kind):
    data = write_data(tmp_path, kind, ("id", "text", "label"))
    run = scanned(tmp_path, data)
    found = answer("report", run, "--images", "run", "--out", tmp_path / "page.html")
    assert found["images"] == str(data)
    shown = document_of(tmp_path / "page.html")
    assert shown["kinds"] == ["text"] and shown["examples"][0]["text"] == "what r0 says\nhere"


def test_the_columns_of_the_scan_are_those_that_are_shown(tmp_path, monkeypatch):
    run = scanned(tmp_path, write_data(tmp_path, "csv", ("id", "said", "kind")))
    known = {"data": str(tmp_path / "mine.csv"), "text": "said", "label": ["kind"], "seed": 0}
    monkeypatch.setattr(report, "read_settings", lambda path: known)
    answer("report", run, "--images", "run", "--out", tmp_path / "page.html")
    assert document_of(tmp_path / "page.html")["examples"][0]["text"] == "what r0 says\nhere"
    monkeypatch.setattr(report, "read_settings", lambda path: {**known, "text": None})
    answer("report", run, "--images", "run", "--out", tmp_path / "page.html")
    assert document_of(tmp_path / "page.html")["columns"] == ["said"]  # a row, without the label


@pytest.mark.parametrize("command", ["verify", "holdout"])
def test_other_pages_show_them_too(tmp_path, command):
    data = write_data(tmp_path, "csv", ("id", "text", "label"))
    run = scanned(tmp_path, data, holdout=held_out(20, ids=IDS[:20]))
    answer(command, run, "--page", tmp_path / "page.html", "--images", "run")
    assert document_of(tmp_path / "page.html")["kinds"] == ["text"]


def test_issues_have_a_column_of_texts(tmp_path):
    run = scanned(tmp_path, write_data(tmp_path, "csv", ("id", "text", "label")))
    found = answer("issues", run, "--top", 3, "--show", "run")["issues"]
    assert [row["example"] for row in found] == [f"what r{i} says here" for i in range(3)]
    assert "what r0 says here" in read_output("issues", run, "--top", 3, "--show", "run")
    read_output("issues", run, "--top", 3, "--show", tmp_path / "mine.csv", "--csv", tmp_path / "out.csv")
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert list(rows[0])[:2] == ["id", "example"] and rows[2]["example"] == "what r2 says here"
    assert "example" not in answer("issues", run, "--top", 3)["issues"][0]


def test_issues_of_a_table_that_knows_none_of_them_are_refused(tmp_path):
    (tmp_path / "other.csv").write_text("id,text\nx,hello\n")
    said = read_refusal("issues", scanned(tmp_path, tmp_path), "--show", tmp_path / "other.csv")
    assert "has no text or row of these examples" in said
