"""Sources of labelled pictures: real files in every shape people keep them in."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sgoif.errors import SgoifError
from sgoif.pictures.decode import decode
from sgoif.sources.columns import ColumnNames, number_labels
from sgoif.sources.labelled import TableSource, open_source
from sgoif.sources.tables import TableFiles
from tests.pictures.files import png
from tests.sources.test_shards import write_shard


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
    with pytest.raises(SgoifError, match="of no kind that is known here"):
        open_source(tmp_path / "a.txt")
    (tmp_path / "b.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(SgoifError, match="cannot be read as parquet"):
        open_source(tmp_path / "b.parquet")
    pq.write_table(pa.table({"image": [b"x"], "weight": [1.0]}), tmp_path / "c.parquet")
    with pytest.raises(SgoifError, match="no column with a label: it has image, weight"):
        open_source(tmp_path / "c.parquet")
    with pytest.raises(SgoifError, match=r"column_19 and 80 more; looked for"):
        open_source({f"column_{i}": [1, 2] for i in range(100)})


def test_labels_are_read_where_they_are_needed(tmp_path):
    pq.write_table(pa.table({"image": [png(), png()], "id": ["a", "b"]}), tmp_path / "a.parquet")
    source = TableSource.open(TableFiles([tmp_path / "a.parquet"]), is_labelled=False)
    assert (list(source.ids), source.labels.tolist(), source.class_names) == (["a", "b"], [-1, -1], ())


def test_a_table_of_labels_will_do_where_its_embeddings_are_given(tmp_path):
    place = tmp_path / "table.parquet"
    pq.write_table(pa.table({"id": ["a", "b", "c"], "label": ["x", "y", "x"]}), place)
    with pytest.raises(SgoifError, match=r"no column with a text, an encoded picture or numbers .* id, label.*--text"):
        open_source(place)
    source = open_source(place, has_features=True)
    assert list(source.ids) == ["a", "b", "c"] and source.class_names == ("x", "y")
    with pytest.raises(SgoifError, match="no column with a picture"):
        next(iter(source.encoded(np.arange(1))))


def test_a_table_of_numbers_is_a_table_of_rows(tmp_path):
    place = tmp_path / "table.csv"
    place.write_text("id;label;height\na;'=x;1.0\nb;y;2\nc;'=x;3\n")
    source = open_source(place)
    assert (list(source.ids), source.labels.tolist(), source.class_names) == (["a", "b", "c"], [0, 1, 0], ("=x", "y"))
    assert (source.kind, source.roles.others) == ("row", ("height",))
    assert list(source.rows(["height"], np.array([2, 0]))) == [{"height": "3"}, {"height": "1.0"}]
    (tmp_path / "table.xlsx").write_text("")
    with pytest.raises(SgoifError, match=r"of no kind that is known here.*\.csv.*convert"):
        open_source(tmp_path / "table.xlsx")


ROWS = {"utterance": ["hi", "", 'say "no";\nthen go', "ciao"], "intent": ["a", "b", "a", None], "n": [1, 2, 3, 4]}


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".json", ".parquet", ".arrow", "frame", "dict"])
def test_texts_are_read_from_every_kind_of_table(tmp_path, suffix):
    data = tmp_path / f"texts{suffix}"
    table = pa.table(ROWS)
    if suffix in (".csv", ".tsv"):
        frame = table.to_pandas()
        frame.to_csv(data, index=False, sep="\t" if suffix == ".tsv" else ",")
    elif suffix == ".jsonl":
        data.write_text("\n".join(json.dumps(row) for row in table.to_pylist()) + "\n\n")
    elif suffix == ".json":
        data.write_text(json.dumps(table.to_pylist()))
    elif suffix == ".parquet":
        pq.write_table(table, data, row_group_size=2)
    elif suffix == ".arrow":
        with pa.OSFile(str(data), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=3)
    else:
        data = table.to_pandas() if suffix == "frame" else ROWS
    source = open_source(data)
    assert (source.kind, source.class_names, source.labels.tolist()) == ("text", ("a", "b"), [0, 1, 0, -1])
    assert list(source.texts(np.array([3, 0, 2]))) == ["ciao", "hi", 'say "no";\nthen go']
    named = open_source(data, ColumnNames(label="n", text="intent", id="utterance"))
    assert (list(named.texts(np.arange(2))), named.labels.tolist()) == (["a", "b"], [1, 2, 3, 4])
    assert list(named.ids) == ROWS["utterance"]


def test_columns_are_found_or_named_and_what_is_assumed_is_said(tmp_path):
    table = {"id": [1, 1], "image": [png(), png()], "text": ["x", "y"], "label": ["a", "b"]}
    source = open_source(table)
    assert (source.kind, list(source.ids)) == ("picture", ["0", "1"])
    assert "1 ids that other rows have too" in source.notes[1] and "pass --text text" in source.notes[0]
    assert open_source(table, ColumnNames(text="text")).kind == "text"
    with pytest.raises(SgoifError, match="ids must be there and differ"):
        open_source(table, ColumnNames(id="id"))
    with pytest.raises(SgoifError, match=r"no column 'wrong' \(label\): it has id, image, text, label"):
        open_source(table, ColumnNames(label="wrong"))
    with pytest.raises(SgoifError, match=r"holds fractions.*--task regression"):
        open_source({"label": [0.5, 1.0], "x": [1, 2]})
    assert open_source({"label": [0.0, 1.0, None], "x": [1, 2, 3]}).labels.tolist() == [0, 1, -1]
    assert open_source({"label": ["007", "7"], "x": [1, 2]}).class_names == ("007", "7")
    with pytest.raises(SgoifError, match="a list cannot be scanned"):
        open_source([1, 2])


def test_values_and_votes_of_several_annotators():
    values = open_source({"label": [1.5, None, 2.0], "x": [1, 2, 3]}, is_regression=True)
    assert values.labels.tolist() == [0, -1, 0] and np.isnan(values.values[1]) and values.values[2] == 2.0
    with pytest.raises(SgoifError, match="holds no numbers"):
        open_source({"label": ["a"], "x": [1]}, is_regression=True)
    votes = open_source(
        {"ann": ["cat", None, "dog"], "bo": ["dog", None, None], "x": [1, 2, 3]}, ColumnNames(label=("ann", "bo"))
    )
    assert votes.votes.tolist() == [[0, 1], [-1, -1], [1, -1]]
    assert (votes.class_names, votes.labels.tolist()) == (("cat", "dog"), [0, -1, 1])


def test_a_dataset_of_hugging_face_in_memory_and_on_disk(tmp_path):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
    data = datasets.Dataset.from_dict({"text": ["a", "b", "c"], "label": [0, 1, 1]}, features=features)
    data.save_to_disk(str(tmp_path / "saved"))
    datasets.DatasetDict({"train": data, "test": data.select([0])}).save_to_disk(str(tmp_path / "splits"))
    for given in (data, tmp_path / "saved", tmp_path / "splits"):
        source = open_source(given)
        assert (source.kind, source.class_names, list(source.texts(np.arange(3)))) == (
            "text",
            ("no", "yes"),
            ["a", "b", "c"],
        )
    assert list(open_source(data.select([2, 0])).texts(np.arange(2))) == ["c", "a"]


def test_shards_of_webdataset(tmp_path):
    for shard in range(2):
        members = []
        for key in range(3):
            members += [(f"{key:04}.jpg", png((40 * key, 0, 0))), (f"{key:04}.cls", f"{(key + shard) % 2}".encode())]
        write_shard(tmp_path / f"train-{shard:02d}.tar", members)
    for data in (tmp_path, str(tmp_path / "train-{00..01}.tar"), str(tmp_path / "train-*.tar")):
        source = open_source(data)
        assert (len(source.ids), source.ids[4]) == (6, "train-01/0001")
        assert source.labels.tolist() == [0, 1, 0, 1, 0, 1]
        assert [decode(item).getpixel((0, 0))[0] for item in source.encoded(np.array([5, 1]))] == [80, 40]
    with pytest.raises(SgoifError, match="has no columns"):
        open_source(tmp_path, ColumnNames(label="x"))
    (tmp_path / "train-01.tar").write_bytes(b"no archive" * 100)
    with pytest.raises(SgoifError, match=r"train-01\.tar' cannot be read"):
        open_source(tmp_path)


def test_a_long_csv_is_read_in_blocks(tmp_path):
    place = tmp_path / "long.csv"
    with place.open("w") as file:
        file.write("text,label\n")
        file.writelines(f"row number {i} of a long file,{i % 3}\n" for i in range(60_000))
    source = open_source(place)
    sizes = [len(block) for _, block in source.reader.blocks(["text"])]
    assert len(sizes) > 1 and sum(sizes) == 60_000
    assert list(source.texts(np.array([0, 59_999]))) == [
        "row number 0 of a long file",
        "row number 59999 of a long file",
    ]
    assert source.labels.tolist() == [i % 3 for i in range(60_000)]


def test_rows_of_a_table_in_memory_come_as_asked_for_from_all_of_its_blocks():
    blocks = [pa.table({"text": [f"{block}{row}" for row in "abc"], "label": [0, 1, 0]}) for block in "xyz"]
    source = open_source(pa.concat_tables(blocks))
    assert list(source.texts(np.array([7, 0, 4, 3]))) == ["zb", "xa", "yb", "ya"]


def test_negative_numbers_are_no_classes():
    labels, names = number_labels([0, -7, 1, None, -1], ())
    assert labels.tolist() == [0, -1, 1, -1, -1] and names == ("0", "1")
