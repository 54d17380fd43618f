"""One line gives the dataset as people decided it should be, whatever kind of dataset it is."""

import io
import pickle
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Subset, TensorDataset

import sgoif
from sgoif.errors import SgoifError
from sgoif.files.tables import write_csv_rows
from tests.cli.runs import invoke, table, write_run

ACTIONS = {2: ("relabel", 1), 3: ("drop", None), 5: ("none", None), 7: ("several", 0), 8: ("unsure", 0), 9: ("keep", 0)}


def manifest(path, ids, actions=ACTIONS, given=0):
    """A manifest over some ids; what happens is told by position."""
    rows = [(id, given, *reversed(actions.get(i, ("unreviewed", given)))) for i, id in enumerate(ids)]
    names = ("id", "given_label", "label", "action")
    if path.suffix == ".csv":
        write_csv_rows(path, names, rows)
    else:
        pq.write_table(pa.table(dict(zip(names, (list(column) for column in zip(*rows)), strict=True))), path)
    return path


class Pairs(list):
    """A map-style dataset that lists nothing but its items, until it is told more."""


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
@pytest.mark.parametrize("label", [int, torch.tensor, np.int32])
def test_positions_are_ids_and_labels_keep_their_type(tmp_path, suffix, label):
    path = manifest(tmp_path / f"m{suffix}", range(12))
    found = sgoif.cleaned(Pairs([(f"x{i}", label(0)) for i in range(12)]), path)
    assert [item[0] for item in found] == [f"x{i}" for i in range(12) if i not in (3, 5)]
    assert [int(item[1]) for item in found] == [0, 0, 1, *[0] * 7]
    assert all(type(item[1]) is type(label(0)) for item in found)
    if label is torch.tensor:
        assert found[2][1].shape == () and found[2][1].dtype == torch.int64
    assert list(found.ids) == [0, 1, 2, 4, 6, 7, 8, 9, 10, 11]
    assert not hasattr(found, "targets")


def test_ids_stay_with_their_examples(tmp_path):
    whole = TensorDataset(torch.arange(30.0)[:, None], torch.zeros(30, dtype=torch.long))
    path = manifest(tmp_path / "m.parquet", range(30))
    train, held = sgoif.split(whole, fraction=0.3)
    for part in (train, held):
        found = sgoif.with_ids(sgoif.cleaned(part, path))
        seen = {int(id): (float(x), int(y)) for x, y, id in found}
        assert set(seen) == set(part.indices) - {3, 5}
        assert all(seen[id] == (id, 1 if id == 2 else 0) for id in seen)
        again = sgoif.cleaned(sgoif.with_ids(part), path)
        assert [int(item[2]) for item in again] == list(found.ids)
    loader = DataLoader(sgoif.cleaned(whole, path), batch_size=7, num_workers=1)
    assert sum(len(labels) for _, labels in loader) == 28
    assert len(pickle.loads(pickle.dumps(sgoif.cleaned(whole, path)))) == 28


def test_ids_may_come_in_the_items_or_by_name(tmp_path):
    names = [f"n{i}" for i in range(12)]
    path = manifest(tmp_path / "m.csv", names)
    listed = sgoif.cleaned(sgoif.with_ids(Pairs([(i, 0) for i in range(12)]), names), path)
    in_items = sgoif.cleaned(Pairs([(i, 0, name) for i, name in enumerate(names)]), path)
    assert list(listed) == list(in_items) and listed[2] == (2, 1, "n2") and len(listed) == 10
    assert list(sgoif.cleaned(listed, path)) == list(listed)  # cleaning twice changes nothing more


class Folder:
    """What torchvision's ImageFolder offers: root, samples and targets."""

    def __init__(self, root):
        self.root, classes = str(root), sorted(root.iterdir())
        self.samples = [(str(path), label) for label, name in enumerate(classes) for path in sorted(name.iterdir())]
        self.targets = [label for _, label in self.samples]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        path, label = self.samples[index]
        return Image.open(path).convert("RGB"), label


def test_a_folder_goes_by_paths_or_positions(tmp_path):
    paths = [f"{name}/{i}.png" for name in ("ant", "bee") for i in range(6)]
    for path in paths:
        (tmp_path / "data" / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(tmp_path / "data" / path)
    pictures = Folder(tmp_path / "data")
    actions = {2: ("relabel", 1), 3: ("drop", None)}
    for number, ids in enumerate((paths, range(12))):
        path = manifest(tmp_path / f"{number}.parquet", ids, actions)
        found = sgoif.cleaned(pictures, path)
        assert found.targets == [0, 0, 1, 0, 0, 1, 1, 1, 1, 1, 1]
        assert [item[1] for item in found] == found.targets
        assert list(found.ids) == [id for i, id in enumerate(ids) if i != 3]
        cut = sgoif.cleaned(Subset(pictures, [3, 2, 11]), path)
        assert cut.targets == [1, 1] and list(cut.ids) == [ids[2], ids[11]]


def test_other_labels_than_those_that_were_reviewed_are_refused(tmp_path):
    path = manifest(tmp_path / "m.parquet", range(12))
    later = sgoif.cleaned(Pairs([(i, 2) for i in range(12)]), path)
    assert later[0] == (0, 2)
    with pytest.raises(SgoifError, match=r"example 2 has the label 2 in this dataset, but 0 was reviewed"):
        later[2]
    listing = Pairs([(i, 2) for i in range(12)])
    listing.targets = [0, 0, 0, 2, *[0] * 8]
    with pytest.raises(SgoifError, match="example 3 has the label 2"):
        sgoif.cleaned(listing, path)


def test_a_stranger_to_the_manifest_is_refused(tmp_path):
    path = manifest(tmp_path / "m.parquet", [f"n{i}" for i in range(12)])
    with pytest.raises(SgoifError, match=r"no id of this dataset .* look like 0, the manifest's like 'n0'"):
        sgoif.cleaned(Pairs([(i, 0) for i in range(12)]), path)
    unchanged = sgoif.cleaned(sgoif.with_ids(Pairs([(0, 0)]), ["n11"]), path)  # it is known, and stays
    assert list(unchanged.ids) == ["n11"]
    (tmp_path / "m.json").write_text("{}")
    pq.write_table(pa.table({"id": [1]}), tmp_path / "x.parquet")
    columns = "no column given_label and no label and no action"
    for name, said in (("none.parquet", "is no file"), ("m.json", "must end in"), ("x.parquet", columns)):
        with pytest.raises(SgoifError, match=said):
            sgoif.cleaned(Pairs([(0, 0)]), tmp_path / name)


def test_a_hugging_face_dataset_is_selected_and_relabelled(tmp_path):
    datasets = pytest.importorskip("datasets")
    text, label = datasets.Value("string"), datasets.ClassLabel(names=["a", "b"])
    features = datasets.Features({"text": text, "label": label, "id": text})
    columns = {"text": [f"t{i}" for i in range(12)], "label": [0] * 12, "id": [f"n{i}" for i in range(12)]}
    whole = datasets.Dataset.from_dict(columns, features=features)
    found = sgoif.cleaned(whole, manifest(tmp_path / "m.parquet", columns["id"]))
    assert found.features == whole.features and found.column_names == whole.column_names
    assert found["text"][:] == [f"t{i}" for i in range(12) if i not in (3, 5)]
    assert found["label"][:] == [0, 0, 1, *[0] * 7]
    assert whole["label"][:] == [0] * 12
    by_position = whole.remove_columns("id").rename_column("label", "kind")
    path = manifest(tmp_path / "p.csv", range(12))
    assert sgoif.cleaned(by_position, path)["kind"][:] == [0, 0, 1, *[0] * 7]
    plain = datasets.Dataset.from_dict({"y": [0] * 12, "x": list(range(12))})
    with pytest.raises(SgoifError, match="which column is the label"):
        sgoif.cleaned(plain, path)
    assert sgoif.cleaned(plain, path, label="y")["y"][:] == [0, 0, 1, *[0] * 7]
    with pytest.raises(SgoifError, match="no id of this dataset"):
        sgoif.cleaned(plain, tmp_path / "m.parquet", label="y")


def test_a_webdataset_is_filtered_as_it_streams(tmp_path):
    wds = pytest.importorskip("webdataset")
    with tarfile.open(tmp_path / "shard.tar", "w") as tar:
        for i in range(12):
            for name, data in ((f"k{i:02d}.cls", b"0"), (f"k{i:02d}.txt", f"t{i}".encode())):
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
    path = manifest(tmp_path / "m.parquet", [f"k{i:02d}" for i in range(12)])
    url = str(tmp_path / "shard.tar")
    raw = list(sgoif.cleaned(wds.WebDataset(url, shardshuffle=False), path))
    assert [sample["__key__"] for sample in raw] == [f"k{i:02d}" for i in range(12) if i not in (3, 5)]
    assert [sample["cls"] for sample in raw] == [b"0", b"0", b"1", *[b"0"] * 7]
    decoded = sgoif.cleaned(wds.WebDataset(url, shardshuffle=False).decode(), path)
    assert [sample["cls"] for sample in decoded] == [0, 0, 1, *[0] * 7] == [sample["cls"] for sample in decoded]


def test_streams_that_do_not_fit_are_refused(tmp_path):
    path = manifest(tmp_path / "m.parquet", [f"k{i}" for i in range(12)])
    for samples, said in (
        ([{"__key__": f"other{i}", "cls": 0} for i in range(5)], "none of 5 keys"),
        ([(0, 1)], "dictionaries with __key__, got tuple"),
        ([{"__key__": "k2", "y": 0}], "has no 'cls'; it has __key__, y"),
    ):
        with pytest.raises(SgoifError, match=said):
            list(sgoif.cleaned(iter(samples), path))
    assert list(sgoif.cleaned(iter([{"__key__": "k2", "y": 0}]), path, label="y")) == [{"__key__": "k2", "y": 1}]


@pytest.mark.parametrize("has_ids", [True, False])
def test_a_frame_loses_rows_and_gets_new_labels_by_name_or_number(tmp_path, has_ids):
    pd = pytest.importorskip("pandas")
    names = np.array(["cat", "dog"])
    given = np.arange(12) % 2
    p = np.where(np.isin(np.arange(12), (2, 5)), 0.99, 0.01)
    ids = [f"row{i}" for i in range(12)] if has_ids else list(range(12))
    run = write_run(tmp_path / "run", table(p, given, 1 - given, ids=ids), names=["cat", "dog"])
    path = tmp_path / "manifest.parquet"
    assert invoke("apply", run, "--relabel-from", "90%", "--out", path).exit_code == 0
    known = {"id": ids} if has_ids else {}
    frame = pd.DataFrame({**known, "x": np.arange(12.0), "label": names[given]})
    found = sgoif.cleaned(frame, path)
    expected = names[np.where(p > 0.5, 1 - given, given)].tolist()
    assert found["label"].tolist() == expected and found["x"].tolist() == frame["x"].tolist()
    assert frame["label"].tolist() == names[given].tolist()  # the frame itself stays
    numbers = sgoif.cleaned(frame.assign(label=given), path)["label"]
    assert numbers.tolist() == np.where(p > 0.5, 1 - given, given).tolist()
    assert invoke("apply", run, "--drop-from", "90%", "--out", path).exit_code == 0
    assert sgoif.cleaned(frame, path)["x"].tolist() == [x for x in range(12) if x not in (2, 5)]
    for changed, said in (
        (frame.assign(label="dog"), "was reviewed"),
        (frame.rename(columns={"label": "y"}), "Pass label="),
        (frame.assign(id="other"), "no id of this table"),
    ):
        with pytest.raises(SgoifError, match=said):
            sgoif.cleaned(changed, path)
