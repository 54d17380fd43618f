"""Sources of labelled pictures: real files in every shape people keep them in."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sgoif.errors import SgoifError
from sgoif.pictures.decode import decode
from sgoif.pictures.sources import TableSource, open_source
from tests.pictures.files import png


def test_a_folder_of_class_folders(tmp_path):
    for name in ("dog/1.png", "cat/a/2.PNG", "cat/ü '\"<b>.png"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png())
    (tmp_path / "cat" / "notes.txt").write_text("no picture")
    (tmp_path / "stray.png").write_bytes(png())
    source = open_source(tmp_path)
    assert source.class_names == ("cat", "dog")
    assert sorted(source.ids) == ["cat/a/2.PNG", "cat/ü '\"<b>.png", "dog/1.png"]
    assert [source.class_names[label] for label in source.labels] == [i.split("/")[0] for i in source.ids]
    assert all(decode(item).size == (8, 6) for item in source.encoded(np.arange(3)))


@pytest.mark.parametrize("kind", ["bytes", "struct"])
@pytest.mark.parametrize("labels", [[1, 0, 1, None, 2], ["b", "a", "b", None, "c"]])
def test_parquet_with_encoded_pictures(tmp_path, kind, labels):
    pictures = [png((20 * i, 0, 0)) for i in range(5)]
    images = pictures if kind == "bytes" else [{"bytes": data, "path": None} for data in pictures]
    pq.write_table(pa.table({"image": images, "label": labels}), tmp_path / "all.parquet", row_group_size=2)
    source = open_source(tmp_path / "all.parquet")
    assert source.labels.tolist() == [1, 0, 1, -1, 2]
    assert len(source.class_names) == 3
    assert list(source.ids) == ["0", "1", "2", "3", "4"]
    for positions in ([4, 0, 2, 3], [0, 1, 2, 3, 4]):
        found = [decode(item).getpixel((0, 0))[0] for item in source.encoded(np.array(positions))]
        assert found == [20 * i for i in positions]


def test_a_hugging_face_folder_knows_its_class_names(tmp_path):
    features = {"image": {"_type": "Image"}, "label": {"names": ["wolf", "husky"], "_type": "ClassLabel"}}
    table = pa.table({"image": [{"bytes": png(), "path": "x.png"}] * 3, "label": [0, 1, 0], "id": ["p", "q", "r"]})
    with (
        pa.OSFile(str(tmp_path / "data-00000-of-00001.arrow"), "wb") as file,
        pa.ipc.new_stream(file, table.schema) as writer,
    ):
        writer.write_table(table, max_chunksize=2)
    (tmp_path / "dataset_info.json").write_text(json.dumps({"features": features}))
    source = open_source(tmp_path)
    assert source.class_names == ("wolf", "husky")
    assert list(source.ids) == ["p", "q", "r"]
    assert decode(next(source.encoded(np.array([2])))).size == (8, 6)
    tagged = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    (tmp_path / "hub" / "data").mkdir(parents=True)
    pq.write_table(tagged, tmp_path / "hub" / "data" / "train-0.parquet")
    assert open_source(tmp_path / "hub").class_names == ("wolf", "husky")


def test_mistakes_are_named(tmp_path):
    with pytest.raises(SgoifError, match="does not exist"):
        open_source(tmp_path / "nowhere")
    with pytest.raises(SgoifError, match="one folder per class"):
        open_source(tmp_path)
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(SgoifError, match="neither a folder nor"):
        open_source(tmp_path / "a.txt")
    (tmp_path / "b.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(SgoifError, match="cannot be read as parquet"):
        open_source(tmp_path / "b.parquet")
    pq.write_table(pa.table({"image": [b"x"], "weight": [1.0]}), tmp_path / "c.parquet")
    with pytest.raises(SgoifError, match="no column with a label: it has image, weight"):
        open_source(tmp_path / "c.parquet")


def test_labels_are_read_where_they_are_needed(tmp_path):
    pq.write_table(pa.table({"image": [png(), png()], "id": ["a", "b"]}), tmp_path / "a.parquet")
    source = TableSource.open([tmp_path / "a.parquet"], is_labelled=False)
    assert (list(source.ids), source.labels.tolist(), source.class_names) == (["a", "b"], [-1, -1], ())


def test_a_table_without_pictures_will_do_where_its_embeddings_are_given(tmp_path):
    place = tmp_path / "table.parquet"
    pq.write_table(pa.table({"id": ["a", "b", "c"], "label": ["x", "y", "x"], "height": [1.0, 2.0, 3.0]}), place)
    with pytest.raises(SgoifError, match="no column with an encoded picture"):
        open_source(place)
    source = open_source(place, has_pictures=False)
    assert list(source.ids) == ["a", "b", "c"] and source.class_names == ("x", "y")
    with pytest.raises(SgoifError, match="no column with an encoded picture"):
        next(iter(source.encoded(np.arange(1))))


def test_a_csv_table_is_read_where_its_embeddings_are_given(tmp_path):
    place = tmp_path / "table.csv"
    place.write_text("id;label;height\na;'=x;1.0\nb;y;2\nc;'=x;3\n")
    with pytest.raises(
        SgoifError, match=r"no column with an encoded picture: it has id, label, height.* Pass features"
    ):
        open_source(place, hint="Pass features.")
    source = open_source(place, has_pictures=False)
    assert (list(source.ids), source.labels.tolist(), source.class_names) == (["a", "b", "c"], [0, 1, 0], ("=x", "y"))
    (tmp_path / "table.xlsx").write_text("")
    with pytest.raises(SgoifError, match=r"neither a folder nor a \.parquet, \.arrow, \.csv or \.tsv file; convert"):
        open_source(tmp_path / "table.xlsx")
