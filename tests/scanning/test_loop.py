"""Scans of real files, by a backbone and on features: every example judged under its own id, by heads new to it."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from sgoif.backbones import describe_backbones
from sgoif.errors import SgoifError
from sgoif.findings.neighbours import nearest_examples
from sgoif.scanning import loop

pytestmark = pytest.mark.usefixtures("quick_heads")

COLOURS_SEEN = "tests.colours:backbone"
COLOURS = {"green": (40, 160, 60), "red": (180, 50, 40)}


@pytest.fixture
def folder(tmp_path):
    """Noisy patches of two colours; twelve red ones lie among the green."""
    rng = np.random.default_rng(0)
    for number in range(160):
        given = "green" if number < 80 else "red"
        shown = "red" if number < 12 else given
        pixels = np.clip(rng.normal(COLOURS[shown], 40, (16, 16, 3)), 0, 255).astype(np.uint8)
        path = tmp_path / "data" / given / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    (tmp_path / "data" / "red" / "broken.png").write_bytes(b"no picture")
    return tmp_path / "data"


def test_a_folder_is_scanned_by_a_backbone(folder, tmp_path):
    (folder / "teal").mkdir()
    Image.new("RGB", (16, 16), (20, 140, 140)).save(folder / "teal" / "0.png")
    told = []
    out = str(tmp_path / "run")
    run = loop.scan(folder, backbone=COLOURS_SEEN, out=out, progress=lambda *what: told.append(what))
    assert run.info["kind"] == "scan"
    assert run.info["unreadable"] == 1
    assert run.info["class_names"] == ["green", "red", "teal"]
    assert len(run.holdout()) == 0
    assert "harm" not in run.label_issues().column_names
    assert {stage for stage, _, _ in told} >= {"fitting", "checking the data"}
    assert all(0 < done <= total for _, done, total in told)
    rows = {row["id"]: row for row in run.sql("select * from examples").to_pylist()}
    alone = rows.pop("teal/0.png")
    assert alone["p_mislabeled"] is None and alone["no_p_reason"] == "class teal has 1 example, too few to judge"
    assert len(rows) == 160 and all(row["harm"] is None and row["label_score"] is not None for row in rows.values())


@pytest.mark.parametrize(
    ("recommended", "way"), [((), "after pip install timm"), (("pictures",), "--backbone timm:tf_efficientnet_lite0;")]
)
def test_pictures_without_a_backbone_are_refused_with_a_way_to_get_one(folder, tmp_path, monkeypatch, recommended, way):
    here = [replace(one, recommended=recommended) for one in describe_backbones() if one.prefix == "timm"]
    monkeypatch.setattr("sgoif.scanning.inputs.describe_backbones", lambda: here)
    with pytest.raises(SgoifError, match="pictures are judged by what a pretrained model sees") as refused:
        loop.scan(folder, out=str(tmp_path / "run"))
    assert all(text in str(refused.value) for text in (way, "--features FILE", "sgoif.watch()", "sgoif doctor"))
    assert not (tmp_path / "run").exists()


def test_features_are_enough(folder, tmp_path):
    source = loop.open_source(folder)
    rng = np.random.default_rng(1)
    is_red = np.array([name.startswith("red/") or int(name[6:-4]) < 12 for name in source.ids])
    features = rng.normal(size=(len(is_red), 8)) + 3 * is_red[:, None]
    np.save(tmp_path / "features.npy", features)
    run = loop.scan(folder, features=tmp_path / "features.npy")
    assert run.info["path"] == "features"
    # heads that never saw an example do not believe its wrong label
    wrong = np.array([name.startswith("green/") and int(name[6:-4]) < 12 for name in run.table["id"].tolist()])
    assert wrong.sum() == 12
    assert run.table["label_score"][wrong].max() < np.median(run.table["label_score"][~wrong])


def test_the_nearest_examples_of_a_scan_are_those_with_the_nearest_features(folder, tmp_path):
    ids = loop.open_source(folder).ids
    rows = np.random.default_rng(2).normal(size=(len(ids), 8))
    rows[0] = rows[1] * 1.01
    np.save(tmp_path / "features.npy", rows)
    run = loop.scan(folder, features=tmp_path / "features.npy")
    near = run.label_issues(neighbours=True)
    assert near["num_near"].to_pylist() == [6] * len(ids)
    assert nearest_examples(run.sql, [ids[0]], count=1)["other_id"].to_pylist() == [ids[1]]


def test_copies_are_found(folder, tmp_path):
    copied = "red/100.png"
    (folder / "green" / "copy.png").write_bytes((folder / copied).read_bytes())
    run = loop.scan(folder, backbone=COLOURS_SEEN, out=str(tmp_path / "run"))
    [first] = run.duplicates().to_pylist()[:1]
    assert {first["id"], first["other_id"]} == {copied, "green/copy.png"}
    assert first["labels_differ"] and first["bits_apart"] == 0 and not first["is_across_holdout"]


def test_a_backbone_embeds_once_and_is_remembered(folder, tmp_path, monkeypatch):
    (tmp_path / "my_backbone.py").write_text(
        "import torch\n"
        "calls = []\n"
        "def factory():\n"
        "    def embed(pictures):\n"
        "        calls.append(len(pictures))\n"
        "        assert pictures.shape[1:] == (3, 224, 224) and 0 <= pictures.min() and pictures.max() <= 1\n"
        "        return torch.nn.functional.adaptive_avg_pool2d(pictures, 6)\n"
        "    return embed\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    run = loop.scan(folder, backbone="my_backbone:factory", out=str(tmp_path / "runs" / "a"))
    import my_backbone

    assert run.info["path"] == "backbone" and run.info["unreadable"] == 1
    assert sum(my_backbone.calls) == 160
    again = loop.scan(folder, backbone="my_backbone:factory", out=str(tmp_path / "runs" / "b"))
    assert sum(my_backbone.calls) == 160
    assert again.table["label_score"].tolist() == run.table["label_score"].tolist()
    wrong = np.array([name.startswith("green/") and int(name[6:-4]) < 12 for name in run.table["id"].tolist()])
    assert wrong[np.argsort(run.table["label_score"])[: wrong.sum()]].mean() > 0.8
