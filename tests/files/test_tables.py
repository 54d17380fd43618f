"""Files of the user's own: texts that no spreadsheet runs, and files that are there in full or not at all."""

import csv
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sgoif
from sgoif.errors import SgoifError
from sgoif.files.tables import (
    guard,
    read_columns,
    read_csv_rows,
    replacing,
    unguard,
    write_csv,
    write_csv_rows,
    write_parquet,
)

STARTS = ["=", "+", "-", "@", "\t", "\r", "'"]
CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
PIECES = st.sampled_from([*STARTS, "''", "'=", "'x", ";", "\n", '"', " ", ",", "\uff1d", "\uff20", "a"])
TEXTS = st.builds(
    str.__add__, st.lists(PIECES, max_size=6).map("".join), st.one_of(st.just(""), st.text(CHARACTERS, max_size=5))
)


@given(text=TEXTS)
def test_guarding_is_undone_and_leaves_nothing_to_run(text):
    assert unguard(guard(text)) == text
    assert not guard(text).startswith(tuple(STARTS[:-1]))


@given(texts=st.lists(TEXTS, min_size=1, max_size=4))
def test_no_cell_begins_with_a_formula_however_a_spreadsheet_separates(texts, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "cells.csv"
    write_csv_rows(path, ("number", "a", "b"), [(i, text, texts[0]) for i, text in enumerate(texts)])
    content = path.read_text(encoding="utf-8")
    with path.open(encoding="utf-8", newline="") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    for separators in ("[;\r\n]", "[;\t\r\n]"):  # quotes inside a cell of another separator mean nothing
        cells += re.split(separators, content)
    assert not [cell for cell in cells if cell.lstrip('" ').startswith((*STARTS[:4], "\uff1d", "\uff20"))]


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_page_writes_and_reads_cells_as_we_do(tmp_path):
    script = Path(sgoif.__file__).parent / "report" / "assets" / "csv.js"
    texts = ["=1", "a;=1", "\t=1", 'x;"=1"', "it's", "'tis", "a;'b", "-1", "a\n+1", " @x", "\uff1d1", "plain", "a,b;c"]
    program = script.read_text() + (
        "\nconst texts = JSON.parse(require('fs').readFileSync(0, 'utf8'));"
        "const csv = toCsv(texts.map((id) => ({ id })));"
        "console.log(JSON.stringify([csv, fromCsv(csv).map((row) => row.id)]));"
    )
    done = subprocess.run(["node", "-e", program], input=json.dumps(texts), capture_output=True, text=True, check=True)
    content, back = json.loads(done.stdout)
    assert back == texts
    path = tmp_path / "decisions.csv"
    path.write_text(content, encoding="utf-8")
    assert [row["id"] for _, row in read_csv_rows(path, ["id"])] == texts
    ours = tmp_path / "ours.csv"
    write_csv_rows(ours, content.splitlines()[0].split(","), [(text, *[""] * 10) for text in texts])
    assert ours.read_text(encoding="utf-8") == content


def test_ids_of_the_users_own_table_are_read_as_they_were_written(tmp_path):
    write_csv_rows(tmp_path / "own.csv", ("id", "who"), [("=1", "a;=b"), ("-2", "")])
    assert read_columns(str(tmp_path / "own.csv"), ["id", "who"]).to_pylist() == [
        {"id": "=1", "who": "a;=b"},
        {"id": "-2", "who": ""},
    ]


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(SgoifError, match="no regular file"):
        next(read_csv_rows(tmp_path / "pipe.csv", ["id"]))


@given(texts=st.lists(TEXTS, min_size=1, max_size=4))
def test_texts_come_back_from_a_file_as_they_were(texts, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "texts.csv"
    write_csv(pa.table({"number": range(len(texts)), "text": texts}), path)
    assert [row["text"] for _, row in read_csv_rows(path, ["text"])] == texts


def test_numbers_stay_numbers(tmp_path):
    path = tmp_path / "x.csv"
    write_csv_rows(path, ("a", "b", "c"), [(-1, -0.5, None), (float("nan"), "-1", "@x")])
    assert path.read_text() == "a,b,c\n-1,-0.5,\n,'-1,'@x\n"


def test_an_older_file_stays_until_the_new_one_is_complete(tmp_path):
    path = tmp_path / "deep" / "x.csv"
    write_csv_rows(path, ("a",), [(1,)])

    def rows():
        yield (2,)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_csv_rows(path, ("a",), rows())
    assert path.read_text() == "a\n1\n"
    assert [item.name for item in path.parent.iterdir()] == ["x.csv"]
    with pytest.raises(SgoifError, match="is a folder"), replacing(tmp_path):
        pass


def test_permissions_of_a_replaced_file_are_kept(tmp_path):
    path = tmp_path / "x.parquet"
    write_parquet(pa.table({"a": [1]}), path)
    path.chmod(0o600)
    write_parquet(pa.table({"a": [2]}), path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert pq.read_table(path)["a"].to_pylist() == [2]


def test_files_of_others_are_read_too(tmp_path):
    path = tmp_path / "x.csv"
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        csv.writer(file, delimiter=";").writerows([("ID ", "Text"), ("a", "'tis"), ("", ""), ("b", "it's")])
    assert [(line, row["id"], row["text"]) for line, row in read_csv_rows(path, ["id"])] == [
        (2, "a", "'tis"),
        (4, "b", "it's"),
    ]
