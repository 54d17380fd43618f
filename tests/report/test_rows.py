"""Texts and rows on a page: what is unusual in a row, what the file holds, and whether a past decision still holds."""

from __future__ import annotations

from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sgoif.errors import SgoifError
from sgoif.report.gallery import build_gallery, content_hashes
from sgoif.report.rows import describe_row, measure_columns
from sgoif.review.decisions import Decision, write_decisions
from sgoif.run import load
from sgoif.sources import find_pictures
from sgoif.sources.written import written_hash
from tests.cli.runs import write_run
from tests.report.test_page import document, evenly, page

COUNT = 200


def rows():
    rng = np.random.default_rng(0)
    return [
        {
            "age": float(age),
            "job": "clerk" if i % 2 else "cook",
            "name": f"person {i}",
            "is_member": i % 10 == 0,
            "code": i % 3,
            "seen": datetime(2026, 1, 1 + i % 28),
            "same": 1.5,
        }
        for i, age in enumerate(rng.normal(40, 5, COUNT))
    ]


def test_the_most_unusual_cells_of_a_row_come_first():
    usage = measure_columns(rows())
    names = list(usage)
    odd = {**rows()[3], "age": 90.0, "job": "astronaut", "seen": datetime(2031, 1, 1)}
    found = describe_row(odd, usage)
    first = [names[i] for i in found["order"][:3]]
    assert set(first) == {"age", "job", "seen"}
    marks = {names[i]: mark for i, mark in found["marks"].items()}
    assert marks == {"age": "high", "job": "rare", "seen": "high"}
    assert usage["name"].judge("somebody else") == (0.0, "")  # all names differ: none is rare
    assert usage["job"].judge("cook")[0] < usage["is_member"].judge(True)[0] < usage["age"].judge(90.0)[0]
    assert usage["same"].judge(1.5) == (0.0, "") and usage["same"].judge(2.5)[0] > 2


def test_missing_cells_are_shown_as_such_and_rank_by_how_rare_they_are():
    given = rows()
    for row in given[:2]:
        row["age"] = float("nan")
    for row in given[:150]:
        row["job"] = None
    usage = measure_columns(given)
    found = describe_row(given[0], usage)
    cells = {list(usage)[i]: cell for i, cell in found["row"].items()}
    assert cells["age"] is None and cells["job"] is None and cells["same"] == "1.5"
    assert list(usage)[found["order"][0]] == "age" and not found["marks"]
    assert usage["job"].judge(None)[0] < 1 < usage["age"].judge(None)[0]


def test_a_column_whose_usual_distance_is_zero_has_a_scale_and_few_rows_have_none():
    usage = measure_columns([{"x": 0.0 if i < 180 else float(i)} for i in range(COUNT)])["x"]
    assert usage.judge(0.0)[0] == 0.0 and 0 < usage.judge(199.0)[0] < np.inf
    assert measure_columns([{"x": x} for x in (1.0, 1.1, 900.0)])["x"].judge(900.0) == (0.0, "")


def test_a_very_wide_table_says_how_many_columns_are_left_out():
    given = [{f"c{j}": float(i * j % 7 + j) for j in range(260)} for i in range(20)]
    found = describe_row(given[0], measure_columns(given))
    assert len(found["row"]) == len(found["order"]) == 200 and found["left"] == 60


IDS = [f"r{i}" for i in range(40)]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return load(write_run(tmp_path_factory.mktemp("rows") / "run", evenly(40, 0.99, 0.5, ids=IDS)))


def about(path):
    return path.read_text(encoding="utf-8").split('class="about">')[1].split("<")[0].replace("&#39;", "'")


def write_texts(path, **changes):
    texts = [changes.get(ident, f"what {ident} says") for ident in IDS]
    pq.write_table(pa.table({"id": IDS, "text": texts, "label": ["cat"] * 40}), path)
    return path


@pytest.mark.parametrize("how", ["embed", "none", "nowhere"])
def test_what_the_file_is_said_to_hold_is_what_it_holds(run, tmp_path, how):
    texts = write_texts(tmp_path / "texts.parquet")
    images, pictures = None if how == "nowhere" else texts, "none" if how == "none" else "embed"
    made = page(run, tmp_path, images=images, pictures=pictures)
    said = about(made)
    if how == "embed":
        assert said.endswith("This file holds ids, labels and 40 texts of the table 'texts.parquet'.")
    else:
        assert said.endswith("This file holds ids and labels only.")
        assert "what r0 says" not in made.read_text(encoding="utf-8")


def test_pages_of_reviewers_hold_no_ids_and_say_so(run, tmp_path):
    texts = write_texts(tmp_path / "texts.parquet")
    made = page(run, tmp_path, images=texts, reviewers=["ann"], checks=0.0, run_url=run.url)
    assert "This file holds labels and 40 texts" in about(made)
    with pytest.raises(SgoifError, match="embed the examples"):
        page(run, tmp_path, images=texts, pictures="link")


def test_a_long_text_is_cut_and_that_is_said(run, tmp_path):
    made = page(run, tmp_path, images=write_texts(tmp_path / "t.parquet", r3="x" * 25_000))
    found = document(made)
    cut = [item for item in found["examples"] if "left" in item]
    assert [len(item["text"]) for item in cut] == [20_000] and cut[0]["left"] == 5000
    assert "1 text is cut at 20,000 characters" in about(made)


def test_many_long_texts_make_no_huge_file():
    place = find_pictures(lambda ident: "word " * 5000)
    found = build_gallery(place, list(range(3000)), [])
    assert sum(len(item["text"]) for item in found.shown) <= 20_000_000
    assert (found.longest, found.num_cut, found.num_missing) == (5000, 3000, 0)


def test_rows_hold_no_label_and_texts_beside_cards_are_short(run, tmp_path):
    columns = {"id": IDS, "age": list(range(40)), "label": ["cat"] * 40}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    found = document(page(run, tmp_path, images=tmp_path / "rows.parquet", top=10))
    assert found["columns"] == ["age"] and found["kinds"] == ["row"]
    beside = build_gallery(find_pictures(lambda ident: "x" * 5000), ["a"], ["b"])
    assert [len(item["text"]) for item in beside.shown] == [5000, 600]


@pytest.mark.parametrize("kind", ["text", "row"])
def test_a_decision_holds_until_the_text_or_row_changes(run, tmp_path, kind):
    values = {ident: f"what {ident} says" for ident in IDS}

    def place(ident):
        return values[ident] if kind == "text" else {"said": values[ident], "n": 3}

    first = document(page(run, tmp_path, images=place, top=5))["cards"]
    assert first["content"][0] == written_hash(place("r0")) == content_hashes(find_pictures(place), ["r0"])["r0"]
    write_decisions([Decision("r0", 0, "keep", content=first["content"][0])], tmp_path / "past.csv")
    again = {"images": place, "decisions": [tmp_path / "past.csv"], "top": 5}
    assert "r0" not in document(page(run, tmp_path, **again))["cards"]["id"]
    values["r0"] = "something else"
    assert document(page(run, tmp_path, **again))["cards"]["id"][0] == "r0"


def test_texts_that_are_missing_are_counted(run, tmp_path, caplog):
    page(run, tmp_path, images=lambda ident: None if ident == "r1" else "hello")
    assert "1 of 40 texts" in caplog.text


def test_tables_in_memory_and_datasets_of_texts_are_shown(run, tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"id": IDS, "text": [f"says {ident}" for ident in IDS]})
    assert document(page(run, tmp_path, images=frame, top=1))["examples"][0] == {"text": "says r0"}

    class Texts(list):
        ids = IDS

    tuples = Texts((f"says {ident}", 0) for ident in IDS)
    dicts = Texts({"age": i, "label": 0, "id": ident} for i, ident in enumerate(IDS))
    assert document(page(run, tmp_path, images=tuples, top=1))["examples"][0] == {"text": "says r0"}
    found = document(page(run, tmp_path, images=dicts, top=1))
    assert found["columns"] == ["age"] and found["examples"][0]["row"] == {"0": "0"}


def test_numbers_of_a_csv_file_are_numbers(tmp_path):
    lines = [f"{i},{i % 50 / 10:.4f},{i:04d}" for i in range(200)]
    lines[7] = "7,600.0000,0007"
    lines[9] = "9,,0009"
    (tmp_path / "rows.csv").write_text("\n".join(["id,width,code", *lines]) + "\n", encoding="utf-8")
    place = find_pictures(str(tmp_path / "rows.csv"))
    ids = [str(i) for i in range(200)]
    found = build_gallery(place, ["7", "8", "9"], [], sample=lambda: ids)
    width = found.columns.index("width")
    far, usual, missing = (found.shown[found.number(ident)] for ident in "789")
    assert far["marks"] == {width: "high"} and far["order"][0] == width and far["row"][width] == "600.0000"
    assert not usual["marks"] and missing["row"][width] is None
