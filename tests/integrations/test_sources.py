"""Ids are the same in every epoch, with any number of workers, whatever the data comes from."""

import io
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torch.utils.data import DataLoader

import sgoif
import tests.integrations.torchvision_operators  # noqa: F401 - ImageFolder is torchvision's
from sgoif.sources import find_pictures

NUM = 24
pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries


def encoded(i):
    file = io.BytesIO()
    Image.fromarray(np.full((4, 4, 3), 10 * i, np.uint8)).save(file, "PNG")
    return file.getvalue()


def seen(dataset, workers, batch_size=5, **settings):
    """One epoch: the label of every id; no id comes twice."""
    found = {}
    for batch in DataLoader(dataset, batch_size=batch_size, num_workers=workers, **settings):
        ids, labels = (batch["id"], batch["label"]) if isinstance(batch, dict) else (batch[2], batch[1])
        for id, label in zip(ids, labels, strict=True):
            key = id if isinstance(id, str) else int(id)
            assert key not in found
            found[key] = int(label)
    return found


def assert_stable(dataset, expected, **settings):
    for workers in (0, 2, 0):  # the third is another epoch of the first
        assert seen(dataset, workers, **settings) == expected


def test_image_folders_have_paths(tmp_path):
    folders = pytest.importorskip("torchvision.datasets")
    expected = {}
    for i in range(NUM):
        path = tmp_path / "abc"[i % 3] / f"{i:02d}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(encoded(i))
        expected[f"{path.parent.name}/{path.name}"] = i % 3
    folder = folders.ImageFolder(tmp_path, transform=np.asarray)
    ids = [os.path.relpath(path, folder.root) for path, _ in folder.samples]
    dataset = sgoif.with_ids(folder, ids=ids)
    assert_stable(dataset, expected, shuffle=True)
    (found,) = find_pictures(tmp_path).read(["a/03.png"])
    assert found is not None  # a page finds the picture by the same id


def test_hugging_face_tables_have_positions_or_a_column():
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict({"x": np.zeros((NUM, 2)), "label": [i % 3 for i in range(NUM)]})
    table = table.with_format("torch")
    assert_stable(sgoif.with_ids(table), {i: i % 3 for i in range(NUM)}, shuffle=True)
    named = sgoif.with_ids(table, ids=[f"n{i}" for i in range(NUM)])
    train_set, holdout = sgoif.split(named, fraction=0.4)
    both = seen(train_set, 2) | seen(holdout, 0)
    assert both == {f"n{i}": i % 3 for i in range(NUM)} and len(holdout) > 2


def example(sample):
    pixels = np.asarray(Image.open(io.BytesIO(sample["png"])))
    return pixels, int(sample["cls"]), f"{Path(sample['__url__']).stem}/{sample['__key__']}"


def test_webdataset_has_shards_and_keys(tmp_path):
    webdataset = pytest.importorskip("webdataset")
    expected = {}
    for shard in range(2):
        with tarfile.open(tmp_path / f"train-{shard:03d}.tar", "w") as file:
            for i in range(shard * NUM // 2, (shard + 1) * NUM // 2):
                for name, data in ((f"{i:04d}.png", encoded(i)), (f"{i:04d}.cls", str(i % 3).encode())):
                    entry = tarfile.TarInfo(name)
                    entry.size = len(data)
                    file.addfile(entry, io.BytesIO(data))
                expected[f"train-{shard:03d}/{i:04d}"] = i % 3
    pattern = str(tmp_path / "train-{000..001}.tar")
    dataset = webdataset.WebDataset(pattern, shardshuffle=False).map(example)
    assert_stable(dataset, expected)
    (found,) = find_pictures(pattern).read(["train-001/0013"])
    assert found is not None
