"""Scans of real files, from scratch and on features: every example scored under its own id, by heads new to it."""

import numpy as np
import pytest
from PIL import Image

from sgoif.scanning import loop
from sgoif.scanning.holdout import choose_holdout

pytestmark = pytest.mark.usefixtures("quick_heads", "narrow_networks")

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


@pytest.mark.parametrize("is_watched", [False, True])
def test_a_folder_is_scanned_from_scratch(folder, tmp_path, monkeypatch, is_watched):
    if is_watched:
        monkeypatch.setattr(loop, "_CROSS_FITTED", 0)
    (folder / "teal").mkdir()
    Image.new("RGB", (16, 16), (20, 140, 140)).save(folder / "teal" / "0.png")
    told = []
    run = loop.scan(folder, out=str(tmp_path / "run"), epochs=4, progress=lambda *what: told.append(what))
    assert run.info["kind"] == "scan"
    assert run.info["unreadable"] == 1
    assert run.info["class_names"] == ["green", "red", "teal"]
    assert set(run.table["id"]).isdisjoint(run.holdout()["id"].to_pylist())
    assert all(name.endswith(".png") for name in run.holdout()["id"].to_pylist())
    assert {stage for stage, _, _ in told} >= {"reading pictures", "training the network"}
    assert all(0 < done <= total for _, done, total in told)
    rows = {row["id"]: row for row in run.sql("select * from examples").to_pylist()}
    alone = rows.pop("teal/0.png")
    assert alone["p_mislabeled"] is None and alone["no_p_reason"] == "class teal has 1 example, too few to judge"
    assert {row["n_visits"] for row in rows.values()} == {4 if is_watched else 1}
    assert len(rows) + run.info["num_held_out"] in (160, 161)  # the broken one may have been held out


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
    assert wrong.sum() >= 6
    assert run.table["margin"][wrong].max() < np.median(run.table["margin"][~wrong])


def test_copies_are_found_and_taken_out_of_the_hold_out(folder, tmp_path):
    source = loop.open_source(folder)
    ids = np.array(source.ids)
    held = ids[choose_holdout(ids, source.labels, 2)]
    copied = next(name for name in held.tolist() if name.startswith("red/") and "broken" not in name)
    (folder / "green" / "copy.png").write_bytes((folder / copied).read_bytes())
    run = loop.scan(folder, out=str(tmp_path / "run"), epochs=1)
    assert copied not in run.holdout()["id"].to_pylist()
    assert copied in run.table["id"].tolist()
    [first] = run.duplicates().to_pylist()[:1]
    assert {first["id"], first["other_id"]} == {copied, "green/copy.png"}
    assert first["labels_differ"] and first["bits_apart"] == 0


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
    assert again.table["p_mislabeled"].tolist() == run.table["p_mislabeled"].tolist()
    wrong = np.array([name.startswith("green/") and int(name[6:-4]) < 12 for name in run.table["id"].tolist()])
    assert wrong[np.argsort(-run.table["p_mislabeled"])[: wrong.sum()]].mean() > 0.8
