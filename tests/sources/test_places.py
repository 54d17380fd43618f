"""Whatever a user calls their pictures: tables, datasets, functions, and what is none of these."""

import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from sgoif.errors import SgoifError
from sgoif.pictures import displayed
from sgoif.sources import find_pictures
from sgoif.sources.labelled import open_source
from sgoif.training.datasets import split, with_ids
from tests.pictures.files import encoded, picture


def seed_of(value):
    """Which of the pictures it is."""
    shown = displayed(value).tobytes()
    return next(seed for seed in range(40) if picture(seed).tobytes() == shown)


def seeds(found, ids):
    return [None if value is None else seed_of(value) for value in found.read(ids)]


class Photos(Dataset):
    """Pictures with labels, as people write them."""

    def __init__(self, count=20, give=lambda image, label: (image, label)):
        self.count, self.give, self.asked = count, give, []

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        self.asked.append(index)
        if index == 13:
            raise OSError("the disk is broken here")
        return self.give(picture(index), index % 3)


@pytest.mark.parametrize("rows_per_group", [3, 100])
@pytest.mark.parametrize("has_ids", [True, False])
def test_tables_have_the_ids_of_a_scan(tmp_path, rows_per_group, has_ids):
    for part in range(2):
        columns = {"image": [{"bytes": encoded(picture(10 * part + i)), "path": None} for i in range(10)]}
        columns["image"][4] = None
        columns["label"] = list(range(10))
        if has_ids:
            columns["id"] = [f"id '{10 * part + i}'" for i in range(10)]
        pq.write_table(pa.table(columns), tmp_path / f"train-{part}.parquet", row_group_size=rows_per_group)
    ids = open_source(tmp_path).ids
    found = find_pictures(tmp_path)
    assert found.about == f"2 tables in '{tmp_path.name}'"
    assert seeds(found, [ids[i] for i in (17, 3, 4, 3, 11)]) == [17, 3, None, 3, 11]
    assert seeds(found, ["nowhere", ids[0]]) == [None, 0]
    assert found.num_failed == 2 and "'nowhere'" in found.last_error
    assert found.link(ids[0]) is None
    if not has_ids:
        assert seeds(found, np.array([12, 0])) == [12, 0]


def test_a_table_without_labels_and_one_with_a_damaged_group(tmp_path):
    path = tmp_path / "all.parquet"
    table = pa.table({"jpg": [encoded(picture(i)) for i in range(9)]})
    pq.write_table(table, path, row_group_size=3, compression="none", use_dictionary=False)
    assert seeds(find_pictures(path), ["8", "0"]) == [8, 0]
    column = pq.ParquetFile(path).metadata.row_group(1).column(0)
    damaged = bytearray(path.read_bytes())
    damaged[column.data_page_offset : column.data_page_offset + 40] = b"\xff" * 40
    path.write_bytes(damaged)
    found = find_pictures(str(path))
    assert seeds(found, ["0", "4", "5", "8"]) == [0, None, None, 8]
    assert found.num_failed == 2


def test_a_dataset_of_hugging_face_in_memory_and_on_disk(tmp_path):
    datasets = pytest.importorskip("datasets", reason="needs datasets")
    columns = {"image": [picture(i) for i in range(7)], "label": [i % 2 for i in range(7)]}
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])})
    made = datasets.Dataset.from_dict(columns, features)
    made.save_to_disk(tmp_path / "saved")
    assert seeds(find_pictures(tmp_path / "saved"), ["6", "2"]) == [6, 2]
    assert seeds(find_pictures(made), [6, "2", 7]) == [6, 2, None]
    assert seeds(find_pictures(made.cast_column("image", datasets.Image(decode=False))), [5]) == [5]
    with pytest.raises(SgoifError, match="a DatasetDict of train, test; pass one of them"):
        find_pictures(datasets.DatasetDict({"train": made, "test": made}))


GIVES = {
    "tuple": lambda image, label: (image, label, "more"),
    "picture": lambda image, label: image,
    "image": lambda image, label: {"label": label, "image": image},
    "img": lambda image, label: {"img": np.asarray(image)},
    "pixel_values": lambda image, label: {"pixel_values": torch.tensor(np.asarray(image)).permute(2, 0, 1)},
    "encoded": lambda image, label: [encoded(image), label],
}


@pytest.mark.parametrize("give", GIVES.values(), ids=GIVES)
def test_a_dataset_by_position(give):
    dataset = Photos(give=give)
    found = find_pictures(dataset)
    assert found.about == "a dataset of 20"
    assert seeds(found, [7, np.int64(0), "19", 13, 20, -1, "-1", "07", "cat.png", 1]) == [7, 0, 19, *[None] * 6, 1]
    assert dataset.asked == [7, 0, 19, 13, 1]  # only those
    assert found.num_failed == 6 and found.link(3) is None


def test_ids_are_followed_through_wrappers_as_the_training_has_them():
    train, held = split(Photos(12), fraction=0.4)
    for part in (train, held):
        wrapped = with_ids(part)
        assert seeds(find_pictures(part), part.indices) == list(part.indices)
        assert seeds(find_pictures(wrapped), list(wrapped.ids)) == list(part.indices)
    assert seeds(find_pictures(held), train.indices) == [None] * len(train.indices)
    named = with_ids(Photos(12), [f"photo {i}" for i in range(12)])
    assert seeds(find_pictures(Subset(Subset(named, [3, 5, 7]), [2, 0])), ["photo 7", "photo 5"]) == [7, None]
    pixels = torch.stack([torch.tensor(np.asarray(picture(i))).permute(2, 0, 1) for i in range(4)])
    assert seeds(find_pictures(with_ids(TensorDataset(pixels, torch.arange(4)), torch.arange(10, 14))), [12]) == [2]


class ImageFolder(Dataset):
    """What torchvision's class of this name keeps, and a transform that hides the picture."""

    def __init__(self, root):
        self.root = str(root)
        self.samples = [(str(path), 0) for path in sorted(root.rglob("*.*"))]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return Image.open(self.samples[index][0]).crop((0, 0, 9, 9)), 0


def test_a_dataset_of_files_gives_the_files(tmp_path):
    for seed in range(4):
        (tmp_path / "cat").mkdir(exist_ok=True)
        picture(seed).save(tmp_path / "cat" / f"{seed}.png")
    dataset = ImageFolder(tmp_path)
    for found in (find_pictures(dataset), find_pictures(with_ids(Subset(dataset, [2, 3])))):
        assert seeds(found, [2, "3", "cat/1.png", "../x.png", 9]) == [2, 3, 1, None, None]
        assert found.link(2) == (tmp_path / "cat" / "2.png").as_uri()
        assert found.link("cat/1.png") == (tmp_path / "cat" / "1.png").as_uri()
        assert found.link(9) is None
    (tmp_path / "cat" / "0.png").rename(tmp_path / "cat" / "0.raw")  # known to the loader alone
    found = find_pictures(ImageFolder(tmp_path))
    assert displayed(next(found.read([0]))).size == (9, 9) and found.link(0) is None


def test_items_without_a_picture_say_what_they_have():
    found = find_pictures(Photos(give=lambda image, label: {"tokens": [1, 2], "label": label}))
    assert list(found.read([1])) == [None]
    assert "their keys are tokens, label" in found.last_error


def photo(id):
    """Found by its name below."""
    return {"one": encoded(picture(1)), 2: np.asarray(picture(2)), "gone": None}[id]


def test_a_function(monkeypatch):
    monkeypatch.setitem(sys.modules, "my_pictures", sys.modules[__name__])
    for images in (photo, "my_pictures:photo"):
        found = find_pictures(images)
        assert found.about == "the function 'photo'"
        assert seeds(found, [np.int64(2), np.str_("one"), "gone", "unknown"]) == [2, 1, None, None]
        assert found.num_failed == 2 and found.last_error == "KeyError: 'unknown'"
    assert find_pictures(found) is found


def test_the_last_error_is_that_of_the_dataset_and_long_ids_do_not_fill_messages():
    class Odd(Photos):
        def ids(self):  # a method of this name is no list of them
            return "something else"

    found = find_pictures(Odd(15))
    assert seeds(found, [12, 13, 14]) == [12, None, 14]
    assert found.last_error == "OSError: the disk is broken here"
    assert list(found.read(["x" * 10_000, "'\"><script>"])) == [None, None]
    assert len(found.last_error) < 200


class Endless(IterableDataset):
    def __iter__(self):
        return iter(())


def test_mistakes_are_named(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    for images, message in (
        (tmp_path / "nowhere", "does not exist; expected a folder"),
        ("", "does not exist"),
        (tmp_path / "notes.txt", "neither a folder, a table nor"),
        (tmp_path / "bad.parquet", "cannot be read as parquet"),
        (f"{tmp_path}/none-{{00..09}}.tar", "does not exist"),
        ("s3://bucket/all.parquet", "read from local files"),
        ("no_such_module:photo", "No module named"),
        ("os:no_such_thing", "no attribute"),
        ("os:sep", "is a str"),
        (Endless(), "cannot be found by id in a Endless"),
        (3, "in a int; expected"),
        (None, "NoneType"),
    ):
        with pytest.raises(SgoifError, match=message):
            find_pictures(images)
