"""Files of the user's own: texts that no spreadsheet runs, and files that are there in full or not at all."""

import csv

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgoif.errors import SgoifError
from sgoif.files import guarded, read_csv_rows, replacing, unguarded, write_csv, write_csv_rows, write_parquet

STARTS = ["=", "+", "-", "@", "\t", "\r", "'"]
CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
TEXTS = st.builds(str.__add__, st.sampled_from(["", *STARTS, "''", "'=", "'x"]), st.text(CHARACTERS, max_size=5))


@given(text=TEXTS)
def test_guarding_is_undone_and_leaves_nothing_to_run(text):
    assert unguarded(guarded(text)) == text
    assert not guarded(text).startswith(tuple(STARTS[:-1]))


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
        raise RuntimeError("the disk is full")

    with pytest.raises(RuntimeError):
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
