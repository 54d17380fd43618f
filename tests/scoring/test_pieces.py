"""Pieces and their records: the same from a folder, a pattern or a URL; classes by name or number."""

import fsspec
import pytest

from sgoif.errors import SgoifError
from sgoif.scoring.pieces import Piece, list_pieces
from sgoif.scoring.records import class_of, read_records
from tests.scoring.pictures import NAMES, Pictures, as_folder, as_parquet, as_shards

SOME = Pictures.draw(12)


def names(pieces):
    return [(piece.number, piece.kind, piece.address.rpartition("/")[2]) for piece in pieces]


def test_files_shards_and_folders_become_pieces(tmp_path):
    as_parquet(SOME, tmp_path / "tables", files=2)
    as_shards(SOME, tmp_path / "tars", shards=3)
    as_folder(SOME, tmp_path / "photos")
    tables = [(0, "parquet", "part-0.parquet"), (1, "parquet", "part-1.parquet")]
    assert names(list_pieces(str(tmp_path / "tables"))) == tables
    assert names(list_pieces(f"{tmp_path}/tables/part-{{0..1}}.parquet")) == tables
    assert names(list_pieces(f"{tmp_path}/tables/part-1.parquet")) == [(0, "parquet", "part-1.parquet")]
    assert [piece.kind for piece in list_pieces(f"{tmp_path}/tars/*.tar")] == ["tar"] * 3
    (photos,) = list_pieces(str(tmp_path / "photos"))
    assert photos.kind == "files" and len(photos.files) == 12
    assert Piece.from_document(0, photos.document()) == photos


def test_a_url_gives_what_a_folder_gives(tmp_path):
    as_folder(SOME, tmp_path / "photos")
    as_shards(SOME, tmp_path / "tars")
    memory = fsspec.filesystem("memory")
    for folder in ("photos", "tars"):
        memory.put(str(tmp_path / folder), f"/pieces/{folder}", recursive=True)
        (local, *_), (remote, *_) = list_pieces(str(tmp_path / folder)), list_pieces(f"memory://pieces/{folder}")
        first, second = list(read_records(local)), list(read_records(remote))
        assert [(item.id, item.label) for item in first] == [(item.id, item.label) for item in second]
        bytes_of = [item.picture if isinstance(item.picture, bytes) else item.picture.read_bytes() for item in first]
        assert bytes_of == [item.picture for item in second]
    memory.rm("/pieces", recursive=True)


@pytest.mark.parametrize(
    "data, message", [("nowhere", "does not exist"), ("empty", "holds no"), ("a-*.tar", "no file")]
)
def test_data_that_is_not_there_is_told(tmp_path, monkeypatch, data, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(SgoifError, match=message):
        list_pieces(data)


def test_records_carry_ids_and_labels_as_the_data_has_them(tmp_path):
    as_parquet(SOME, tmp_path / "with", files=1)
    as_parquet(SOME, tmp_path / "without", files=1, ids=False)
    as_shards(SOME, tmp_path / "tars", shards=1)
    as_folder(SOME, tmp_path / "photos")
    first = {name: next(read_records(list_pieces(str(tmp_path / name))[0])) for name in ("with", "without", "tars")}
    assert (first["with"].id, first["with"].label) == (0, int(SOME.given[0]))
    assert first["without"].id == "part-0/0"
    assert (first["tars"].id, first["tars"].label) == ("shard-0/00000", str(SOME.given[0]))
    (photos,) = list_pieces(str(tmp_path / "photos"))
    assert {record.label for record in read_records(photos)} == set(NAMES)


@pytest.mark.parametrize("label", [None, "fox", 3, -1, "3", 1.0, True, "1.0", "²"])
def test_a_label_that_is_no_class_is_refused(label):
    with pytest.raises(SgoifError, match="label"):
        class_of(label, NAMES, 3)


def test_a_class_may_be_called_a_number():
    assert class_of("2", ["2", "1", "0"], 3) == 0
    assert class_of(2, ["2", "1", "0"], 3) == 2
