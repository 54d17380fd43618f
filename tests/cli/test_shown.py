"""``--images run`` and ``--show``: texts and rows from where a scan read them."""

import csv
import json

import numpy as np
import pytest

from tests.cli.runs import answer, invoke, table, write_run

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


def scanned(tmp_path, data, **settings):
    given = np.arange(COUNT) % 4
    ids = [f"r{i}" for i in range(COUNT)]
    run = write_run(tmp_path / "run", table(np.linspace(0.99, 0.5, COUNT), given, (given + 1) % 4, ids=ids))
    lines = {"data": str(data), **settings}
    (tmp_path / "run" / "scan.yaml").write_text(
        "".join(f"{key}: {json.dumps(value)}\n" for key, value in lines.items())
    )
    return run


def document(path):
    return json.loads(path.read_text(encoding="utf-8").split('id="document">')[1].split("</script>")[0])


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl"])
def test_a_report_shows_what_a_scan_read_whatever_table_it_was(tmp_path, kind):
    data = write_data(tmp_path, kind, ("id", "text", "label"))
    run = scanned(tmp_path, data)
    found = answer("report", run, "--images", "run", "--out", tmp_path / "page.html")
    assert found["images"] == str(data)
    shown = document(tmp_path / "page.html")
    assert shown["kinds"] == ["text"] and shown["examples"][0]["text"] == "what r0 says\nhere"


def test_the_columns_of_the_scan_are_those_that_are_shown(tmp_path, monkeypatch):
    from sgoif.cli import report

    run = scanned(tmp_path, write_data(tmp_path, "csv", ("id", "said", "kind")))
    known = {"data": str(tmp_path / "mine.csv"), "text": "said", "label": ["kind"], "seed": 0}
    monkeypatch.setattr(report, "read_settings", lambda path: known)
    answer("report", run, "--images", "run", "--out", tmp_path / "page.html")
    assert document(tmp_path / "page.html")["examples"][0]["text"] == "what r0 says\nhere"
    monkeypatch.setattr(report, "read_settings", lambda path: {**known, "text": None})
    answer("report", run, "--images", "run", "--out", tmp_path / "page.html")
    assert document(tmp_path / "page.html")["columns"] == ["said"]  # a row, without the label


@pytest.mark.parametrize("named", ["evil:code.csv", "https://example.org/x.csv", "gone.csv", "secret.txt"])
def test_a_run_cannot_make_anything_else_be_read_or_run(tmp_path, monkeypatch, named):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("raise SystemExit('code of a stranger was run')")
    (tmp_path / "secret.txt").write_text("id,text\nr0,secret\n")
    run = scanned(tmp_path, named)
    done = invoke("report", run, "--images", "run", "--out", tmp_path / "page.html")
    assert done.exit_code == 2 and "no folder or table here" in done.stderr


@pytest.mark.parametrize("command", ["verify", "holdout"])
def test_other_pages_show_them_too(tmp_path, command):
    from tests.cli.runs import held_out

    data = write_data(tmp_path, "csv", ("id", "text", "label"))
    given, ids = np.arange(COUNT) % 4, [f"r{i}" for i in range(COUNT)]
    held = held_out(20, ids=[f"r{i}" for i in range(20)])
    run = write_run(tmp_path / "run", table(np.full(COUNT, 0.1), given, (given + 1) % 4, ids=ids), holdout=held)
    (tmp_path / "run" / "scan.yaml").write_text(f"data: {json.dumps(str(data))}\n")
    answer(command, run, "--page", tmp_path / "page.html", "--images", "run")
    assert document(tmp_path / "page.html")["kinds"] == ["text"]


def test_issues_have_a_column_of_texts(tmp_path):
    run = scanned(tmp_path, write_data(tmp_path, "csv", ("id", "text", "label")))
    found = answer("issues", run, "--top", 3, "--show", "run")["issues"]
    assert [row["example"] for row in found] == [f"what r{i} says here" for i in range(3)]
    assert "what r0 says here" in invoke("issues", run, "--top", 3, "--show", "run").stdout
    invoke("issues", run, "--top", 3, "--show", tmp_path / "mine.csv", "--csv", tmp_path / "out.csv")
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert list(rows[0])[:2] == ["id", "example"] and rows[2]["example"] == "what r2 says here"
    assert "example" not in answer("issues", run, "--top", 3)["issues"][0]


def test_issues_of_a_table_that_knows_none_of_them_are_refused(tmp_path):
    run = scanned(tmp_path, tmp_path)
    (tmp_path / "other.csv").write_text("id,text\nx,hello\n")
    done = invoke("issues", run, "--show", tmp_path / "other.csv")
    assert done.exit_code == 2 and "has no text or row of these examples" in done.stderr
