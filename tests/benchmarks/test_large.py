"""Tier G on imitations: folders of tiny pictures in the published layouts, and tiny networks."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import sgoif
from benchmarks import __main__ as command
from benchmarks import context, records
from benchmarks.data import DataMissing
from benchmarks.large import datasets, dry_run, recipe
from benchmarks.large.datasets import OTHER, OUTSIDE, UNVERIFIED
from benchmarks.large.pictures import divide
from benchmarks.large.recipe import read_recipes


@pytest.fixture(autouse=True)
def usual_context():
    yield
    context.use()


def lay(folder, pictures, lists=()):
    """Write pictures, paths with their classes, in colours that say the class; and lists, files with their lines."""
    for path, lines in dict(lists).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("\n".join(lines) + "\n")
    for path, label in pictures.items():
        pixels = np.random.default_rng(label).integers(0, 60, (36, 40, 3)) + np.roll([40, 90, 140], label)
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(folder / path)


WNIDS = ("n01440764", "n01443537", "n01484850")


def lay_imagenet(root, flat=False):
    pictures = {f"train/{wnid}/{wnid}_{n}.JPEG": label for label, wnid in enumerate(WNIDS) for n in range(12)}
    solution = ["ImageId,PredictionString"]
    for number in range(15):
        name, wnid = f"ILSVRC2012_val_{number:08d}", WNIDS[number % 3]
        pictures[f"val/{'' if flat else wnid + '/'}{name}.JPEG"] = number % 3
        solution.append(f"{name},{wnid} 85 1 499 272")
    lay(root / "imagenet", pictures, {"LOC_val_solution.csv": solution} if flat else {})


def lay_clothing1m(root):
    """30 noisy pictures; 36 with clean labels: 12 to train on, 9 of which have a noisy label too, a third wrong."""
    noisy = {f"images/0/{number:02d}.jpg": number % 3 for number in range(30)}
    clean = {f"images/1/{number:02d}.jpg": number % 3 for number in range(12)}
    both = {key: (label + (number % 3 == 0)) % 3 for number, (key, label) in enumerate(clean.items()) if number < 9}
    val = {f"images/2/{number:02d}.jpg": number % 3 for number in range(18)}
    test = {f"images/3/{number:02d}.jpg": number % 3 for number in range(6)}
    lists = {"category_names_eng.txt": ("T-Shirt", "Shirt", "Hat")}
    lists |= {f"{name}_key_list.txt": keys for name, keys in zip(PARTS, (noisy, clean, val, test))}
    for name, labels in (("noisy", noisy | both), ("clean", clean | val | test)):
        lists[f"{name}_label_kv.txt"] = [f"{key} {label}" for key, label in labels.items()]
    lay(root / "clothing1m", noisy | clean | val | test, lists)


PARTS = ("noisy_train", "clean_train", "clean_val", "clean_test")
FOODS = ("apple_pie", "baklava", "waffles")


def lay_food101n(root):
    """45 pictures to train on, 15 of them verified and 5 of those wrong; 9 verified for validation, 3 wrong."""
    keys = [f"{food}/{number:032x}.jpg" for food in FOODS for number in range(18)]
    train, val = [key for number, key in enumerate(keys) if number % 6], keys[::6]
    lists = {"meta/classes.txt": ["class_name", *FOODS], "meta/imagelist.tsv": ["class_name/key", *keys]}
    for name, listed in (("train", train[::3]), ("val", val)):
        lines = [f"{key}\t{int(number % 3 != 0)}" for number, key in enumerate(listed)]
        lists[f"meta/verified_{name}.tsv"] = ["class_name/key\tverification_label", *lines]
    lay(root / "food101n", {f"images/{key}": FOODS.index(key.partition("/")[0]) for key in keys}, lists)


def counts(pictures):
    return np.bincount(pictures.given).tolist()


@pytest.mark.parametrize("flat", [False, True])
def test_imagenet(tmp_path, flat):
    lay_imagenet(tmp_path, flat)
    train_set, val = datasets.imagenet(tmp_path), datasets.imagenet(tmp_path, "val")
    assert (counts(train_set), counts(val)) == ([12, 12, 12], [5, 5, 5])
    assert train_set.class_names == WNIDS and (train_set.clean == UNVERIFIED).all()
    picture, label, name = train_set[12]
    assert (picture.mode, picture.size) == ("RGB", (40, 36))
    assert (label, name) == (1, "train/n01443537/n01443537_0.JPEG")
    found = dict(zip(val.ids.tolist(), val.given.tolist(), strict=True))
    assert found["val/ILSVRC2012_val_00000004.JPEG" if flat else "val/n01443537/ILSVRC2012_val_00000004.JPEG"] == 1


def test_clothing1m_knows_the_truth_of_pictures_with_both_labels(tmp_path):
    lay_clothing1m(tmp_path)
    train_set, verified = datasets.clothing1m(tmp_path), datasets.clothing1m(tmp_path, "verified")
    assert (len(train_set), len(verified), train_set.is_verified.sum()) == (39, 9, 9)
    assert train_set.ids[train_set.is_verified].tolist() == verified.ids.tolist()
    assert verified.is_wrong.tolist() == [number % 3 == 0 for number in range(9)]
    assert verified.clean.tolist() == [number % 3 for number in range(9)]
    assert [len(datasets.clothing1m(tmp_path, split)) for split in ("clean_train", "val", "test")] == [12, 18, 6]
    (tmp_path / "clothing1m" / "clean_label_kv.txt").unlink()
    with pytest.raises(DataMissing, match=r"clean_label_kv\.txt' is missing; it holds the clean labels"):
        datasets.clothing1m(tmp_path)


def test_food101n_knows_which_labels_are_wrong(tmp_path):
    lay_food101n(tmp_path)
    train_set, val = datasets.food101n(tmp_path), datasets.food101n(tmp_path, "val")
    assert (counts(train_set), counts(val)) == ([15, 15, 15], [3, 3, 3]) and train_set.class_names == FOODS
    assert (train_set.is_verified.sum(), train_set.is_wrong.sum(), val.is_wrong.sum()) == (15, 5, 3)
    assert set(train_set.clean[train_set.is_wrong]) == {OTHER}
    assert train_set[15][1:] == (1, f"images/baklava/{1:032x}.jpg")
    assert not set(train_set.ids) & set(val.ids)


def test_webvision_animal10n_and_openood(tmp_path):
    synsets = [f"n{number:08d} name {number}, other" for number in range(60)]
    google, flickr = (
        {f"{source}/q{number}/picture {number}.jpg": number for number in (1, 55)} for source in ("google", "flickr")
    )
    lists = {"info/synsets.txt": synsets, "info/val_filelist.txt": ["val000005.jpg 5", "val000055.jpg 55"]}
    for source, pictures in (("google", google), ("flickr", flickr)):
        lists[f"info/train_filelist_{source}.txt"] = [f"{path} {label}" for path, label in pictures.items()]
    lay(tmp_path / "webvision", google | flickr | {"val_images_256/val000055.jpg": 55}, lists)
    whole, mini = datasets.webvision(tmp_path), datasets.webvision(tmp_path, mini=True)
    assert (whole.given.tolist(), mini.given.tolist()) == ([1, 55, 1, 55], [1])  # the first 50 classes, of Google alone
    assert whole[3][1:] == (55, "flickr/q55/picture 55.jpg") and whole.class_names[1] == "name 1, other"
    assert datasets.webvision(tmp_path, "val")[1][1:] == (55, "val_images_256/val000055.jpg")
    lay(tmp_path / "animal10n", {"training/3_00007.jpg": 3, "testing/9_00001.jpg": 9})
    assert datasets.animal10n(tmp_path)[0][1:] == (3, "training/3_00007.jpg")
    assert datasets.animal10n(tmp_path, "test").given.tolist() == [9]
    listed = {"test_textures": "test_textures/a b.jpg -1", "val_imagenet": "val_imagenet/c.jpg 2"}
    pictures = {"images_classic/test_textures/a b.jpg": 0, "images_largescale/val_imagenet/c.jpg": 2}
    lists = {f"benchmark_imglist/imagenet/{name}.txt": [line] for name, line in listed.items()}
    lay(tmp_path / "openood", pictures, lists)
    for (name, label), path in zip((("test_textures", OUTSIDE), ("val_imagenet", 2)), pictures):
        assert datasets.openood(tmp_path, name)[0][1:] == (label, path)


def change(text, **fields):
    """The text of a recipe with other fields."""
    kept = [line for line in text.splitlines() if line.partition(" =")[0] not in fields]
    return "\n".join([*kept, *(f"{name} = {json.dumps(value)}" for name, value in fields.items())])


def test_the_committed_log_is_of_the_recipes_and_of_networks_of_known_size():
    def facts(text):  # what a change of prices leaves as it is
        rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
        return [row[:5] + row[6:8] for row in rows]

    priced = {found["recipe"]: found for found in map(dry_run.estimate, read_recipes())}
    told = dry_run.describe(list(priced.values()), dry_run.TFLOPS)
    assert facts((records.RESULTS / "tier_g_dry_run.txt").read_text()) == facts(told)
    large = priced["table3_imagenet"]
    assert large["parameters"] == 25_557_032  # the published size of ResNet-50
    assert large["forward_flops"] / large["batch"] == pytest.approx(2 * 4.09e9, rel=0.01)  # 4.1 billion products
    assert 2.9 < large["step_flops"] / large["forward_flops"] <= 3
    # activations: within what a batch of 128 is known to need in half precision, between 30 and 60 MB a picture
    assert 30e6 < large["activation_bytes"] / large["batch"] < 60e6


def test_parts_do_not_overlap_and_noise_is_known(tmp_path):
    lay_imagenet(tmp_path)
    lay_food101n(tmp_path)
    given = recipe.Recipe(
        name="mine", table="none", dataset="imagenet", model="resnet18", image=32, epochs=1, batch=4, lr=0.1, seeds=[1],
        held_per_class=2, holdout="as-given", noises=["sym-20"],
    )  # fmt: skip
    parts = divide(given, tmp_path, "sym-20", 1)
    assert (len(parts.train), len(parts.held), len(parts.test)) == (30, 6, 15)
    assert counts(parts.held) == [2, 2, 2] and not set(parts.held.ids) & set(parts.train.ids)
    assert parts.train.is_verified.all() and parts.train.is_wrong.sum() + parts.held.is_wrong.sum() == 7
    few = divide(dataclasses.replace(given, holdout="trusted"), tmp_path, "sym-20", 1, examples=7)
    assert few.train.is_wrong.sum() < 7  # which pictures are taken does not depend on which are wrong
    trusted = read_recipes(["food101n"])[0]
    parts = divide(trusted, tmp_path, "none", 1, examples=20)
    assert (len(parts.train), len(parts.held), len(parts.test)) == (20, 6, 0)
    assert not parts.held.is_wrong.any()


SMALL = ["--epochs", "2", "--width", "4", "--batch", "8", "--amp", "none", "--workers", "0", "--device", "cpu"]
ASKED = ["tier", "G", "--only", "table2_clothing1m"]


def run_tiny(root, out, *more):
    """Train by a recipe with everything small."""
    return command.main([*ASKED, "--root", str(root), "--out", str(out), *SMALL, *more])


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """A recipe for small pictures and one seed, beside the imitation of its data."""
    folder = tmp_path / "recipes"
    folder.mkdir()
    text = (recipe.FOLDER / "table2_clothing1m.toml").read_text()
    fields = {"model": "resnet18", "image": 32, "seeds": [1], "held_per_class": 6, "ranks": 1}
    (folder / "table2_clothing1m.toml").write_text(change(text, **fields))
    monkeypatch.setattr(recipe, "FOLDER", folder)
    lay_clothing1m(tmp_path)
    return tmp_path


def test_a_training_from_folder_to_metrics_is_resumed_where_it_stopped(tiny, capsys):
    assert run_tiny(tiny, tiny / "whole") == 0
    told = capsys.readouterr().out
    assert "epoch 2 of 2" in told and "worst AP" in told
    run_tiny(tiny, tiny / "parts", "--stop-after", "1")
    folder = tiny / "parts" / "table2_clothing1m-none-1"
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["0001-0.pt"]
    assert not (folder / "result.jsonl").exists()
    with pytest.raises(ValueError, match="written with another width, examples; choose another --out"):
        run_tiny(tiny, tiny / "parts", "--width", "8", "--examples", "20")
    (folder / "checkpoints" / "0001-0.pt").rename(folder / "checkpoints" / "0001-1.pt")  # as if rank 0 had not written
    with pytest.raises(ValueError, match="has no state of all 1 ranks"):
        run_tiny(tiny, tiny / "parts")
    (folder / "checkpoints" / "0001-1.pt").rename(folder / "checkpoints" / "0001-0.pt")
    capsys.readouterr()
    run_tiny(tiny, tiny / "parts")
    assert "epoch 1 of 2" not in capsys.readouterr().out
    whole, parts = (
        json.loads((tiny / name / "table2_clothing1m-none-1" / "result.jsonl").read_text())
        for name in ("whole", "parts")
    )
    assert parts["detection"] == whole["detection"] and parts["accuracy"] == whole["accuracy"]
    assert (whole["detection"]["worst"]["examples"], whole["detection"]["worst"]["errors"]) == (9, 3)
    assert whole["settings"]["epochs"] == 2 and whole["settings"]["examples"] == 39 and whole["seed"] == 1
    ran = {name: sgoif.load(str(tiny / name / "table2_clothing1m-none-1" / "run")) for name in ("whole", "parts")}
    assert len(ran["parts"].visits["id"]) == 2 * 39
    assert set(ran["parts"].table["id"]) == set(datasets.clothing1m(tiny).ids)
    run_tiny(tiny, tiny / "parts")  # what is finished is not trained again
    assert len((folder / "result.jsonl").read_text().splitlines()) == 1


@pytest.mark.slow
def test_two_ranks_share_a_training_and_go_on_together(tmp_path):
    lay_clothing1m(tmp_path)
    root, out = Path(__file__).parents[2], tmp_path / "out"
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "benchmarks"]
    asked = [*ASKED, *SMALL, "--seeds", "1", "--root", str(tmp_path), "--out", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}"}
    for more in (["--stop-after", "1"], []):
        subprocess.run([sys.executable, *torchrun, *asked, *more], cwd=root, env=environment, check=True)
    folder = out / "table2_clothing1m-none-1"
    found = json.loads((folder / "result.jsonl").read_text())
    assert found["settings"]["processes"] == 2 and found["detection"]["worst"]["examples"] == 9
    visits = sgoif.load(str(folder / "run")).visits
    assert sorted(set(visits["epoch"])) == [0, 1] and len(visits["id"]) == 2 * 40  # 39, and one again to share evenly
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["0002-0.pt", "0002-1.pt"]
