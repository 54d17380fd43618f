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
from benchmarks.large.datasets import DATASETS, OTHER, OUTSIDE, UNVERIFIED
from benchmarks.large.pictures import Augmented, Prepared, divide
from benchmarks.large.recipe import RecipeError, read_recipe, read_recipes


@pytest.fixture(autouse=True)
def usual_context():
    yield
    context.use()


def draw(path, number=0, size=(40, 36)):
    """A picture whose colour says which class it is of."""
    rng = np.random.default_rng(number)
    pixels = rng.integers(0, 60, (size[1], size[0], 3)) + np.array([40, 90, 140])[np.roll([0, 1, 2], number)]
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.astype(np.uint8)).save(path)


def write(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


WNIDS = ("n01440764", "n01443537", "n01484850")


def make_imagenet(root, flat=False):
    folder = root / "imagenet"
    for label, wnid in enumerate(WNIDS):
        for number in range(12):
            draw(folder / "train" / wnid / f"{wnid}_{number}.JPEG", label)
    solution = ["ImageId,PredictionString"]
    for number in range(15):
        name, wnid = f"ILSVRC2012_val_{number:08d}", WNIDS[number % 3]
        draw(folder / "val" / ("" if flat else wnid) / f"{name}.JPEG", number % 3)
        solution.append(f"{name},{wnid} 85 1 499 272")
    if flat:
        write(folder / "LOC_val_solution.csv", solution)


def make_webvision(root):
    folder = root / "webvision"
    write(folder / "info" / "synsets.txt", [f"n{number:08d} name {number}, other" for number in range(60)])
    for source, count in (("google", 30), ("flickr", 20)):
        lines = [f"{source}/q{number:04d}/picture {number}.jpg {2 * number % 60}" for number in range(count)]
        write(folder / "info" / f"train_filelist_{source}.txt", lines)
        for line in lines:
            draw(folder / line.rsplit(maxsplit=1)[0])
    write(folder / "info" / "val_filelist.txt", [f"val{number:06d}.jpg {number}" for number in (5, 55)])
    draw(folder / "val_images_256" / "val000005.jpg")
    draw(folder / "val_images_256" / "val000055.jpg")


CLOTHES = ("T-Shirt", "Shirt", "Knitwear")


def make_clothing1m(root):
    """30 noisy pictures; 36 with clean labels: 12 to train on, 9 of which have a noisy label too, a third wrong."""
    folder = root / "clothing1m"
    noisy = {f"images/0/{number:02d}.jpg": number % 3 for number in range(30)}
    clean = {f"images/1/{number:02d}.jpg": number % 3 for number in range(12)}
    both = {key: (label + (number % 3 == 0)) % 3 for number, (key, label) in enumerate(clean.items()) if number < 9}
    val = {f"images/2/{number:02d}.jpg": number % 3 for number in range(18)}
    test = {f"images/3/{number:02d}.jpg": number % 3 for number in range(6)}
    write(folder / "category_names_eng.txt", CLOTHES)
    write(folder / "noisy_label_kv.txt", [f"{key} {label}" for key, label in (noisy | both).items()])
    write(folder / "clean_label_kv.txt", [f"{key} {label}" for key, label in (clean | val | test).items()])
    lists = {"noisy_train": noisy, "clean_train": clean, "clean_val": val, "clean_test": test}
    for name, keys in lists.items():
        write(folder / f"{name}_key_list.txt", keys)
    for key, label in (noisy | clean | val | test).items():
        draw(folder / key, label)


FOODS = ("apple_pie", "baklava", "waffles")


def make_food101n(root):
    """45 pictures to train on, 15 of them verified and 5 of those wrong; 9 verified for validation, 3 wrong."""
    folder = root / "food101n"
    keys = [f"{food}/{number:032x}.jpg" for food in FOODS for number in range(18)]
    train, val = [key for number, key in enumerate(keys) if number % 6], keys[::6]
    write(folder / "meta" / "classes.txt", ["class_name", *FOODS])
    write(folder / "meta" / "imagelist.tsv", ["class_name/key", *keys])
    for name, listed in (("train", train[::3]), ("val", val)):
        lines = [f"{key}\t{int(number % 3 != 0)}" for number, key in enumerate(listed)]
        write(folder / "meta" / f"verified_{name}.tsv", ["class_name/key\tverification_label", *lines])
    for key in keys:
        draw(folder / "images" / key, FOODS.index(key.partition("/")[0]))


def make_animal10n(root):
    for part, count in (("training", 40), ("testing", 20)):
        for number in range(count):
            draw(root / "animal10n" / part / f"{number % 10}_{number:05d}.jpg", number % 10, (16, 16))


def make_openood(root, count=7):
    folder = root / "openood"
    for name, pictures in datasets.OPENOOD_SETS.items():
        is_inside = name.endswith("imagenet")
        lines = [f"{name}/picture {number}.jpg {number % 3 if is_inside else -1}" for number in range(count)]
        write(folder / "benchmark_imglist" / "imagenet" / f"{name}.txt", lines)
        for number, line in enumerate(lines):
            draw(folder / pictures / line.rsplit(maxsplit=1)[0], number)


def counts(pictures):
    return np.bincount(pictures.given).tolist()


@pytest.mark.parametrize("flat", [False, True])
def test_imagenet(tmp_path, flat):
    make_imagenet(tmp_path, flat)
    train_set, val = datasets.imagenet(tmp_path), datasets.imagenet(tmp_path, "val")
    assert (counts(train_set), counts(val)) == ([12, 12, 12], [5, 5, 5])
    assert train_set.class_names == WNIDS and (train_set.clean == UNVERIFIED).all()
    picture, label, name = train_set[12]
    assert (picture.mode, picture.size) == ("RGB", (40, 36))
    assert (label, name) == (1, "train/n01443537/n01443537_0.JPEG")
    found = dict(zip(val.ids.tolist(), val.given.tolist(), strict=True))
    assert found["val/ILSVRC2012_val_00000004.JPEG" if flat else "val/n01443537/ILSVRC2012_val_00000004.JPEG"] == 1
    assert len({val[number][2] for number in range(len(val))}) == 15


def test_a_flat_folder_of_imagenet_needs_its_solution(tmp_path):
    make_imagenet(tmp_path, flat=True)
    (tmp_path / "imagenet" / "LOC_val_solution.csv").unlink()
    with pytest.raises(DataMissing, match=r"LOC_val_solution\.csv' is missing; it holds the class of each picture"):
        datasets.imagenet(tmp_path, "val")


def test_webvision_and_its_mini_subset(tmp_path):
    make_webvision(tmp_path)
    whole, mini = datasets.webvision(tmp_path), datasets.webvision(tmp_path, mini=True)
    assert (len(whole), len(mini)) == (50, 25)
    assert len(whole.class_names) == 60 and mini.class_names[1] == "name 1, other" and len(mini.class_names) == 50
    assert whole[31][1:] == (2, "flickr/q0001/picture 1.jpg")
    assert all(name.startswith("google/") for name in mini.ids) and mini.given.max() == 48
    assert datasets.webvision(tmp_path, "val")[1][1:] == (55, "val_images_256/val000055.jpg")
    assert datasets.webvision(tmp_path, "val", mini=True).given.tolist() == [5]


def test_clothing1m_knows_the_truth_of_pictures_with_both_labels(tmp_path):
    make_clothing1m(tmp_path)
    train_set, verified = datasets.clothing1m(tmp_path), datasets.clothing1m(tmp_path, "verified")
    assert train_set.class_names == CLOTHES
    assert (len(train_set), len(verified), train_set.is_verified.sum()) == (39, 9, 9)
    assert train_set.ids[train_set.is_verified].tolist() == verified.ids.tolist()
    assert verified.is_wrong.tolist() == [number % 3 == 0 for number in range(9)]
    assert verified.clean.tolist() == [number % 3 for number in range(9)]
    assert verified[3][1:] == (1, "images/1/03.jpg") and train_set.given[30:].tolist() == verified.given.tolist()
    assert [len(datasets.clothing1m(tmp_path, split)) for split in ("clean_train", "val", "test")] == [12, 18, 6]
    assert not datasets.clothing1m(tmp_path, "val").is_wrong.any()


def test_food101n_knows_which_labels_are_wrong(tmp_path):
    make_food101n(tmp_path)
    train_set, val = datasets.food101n(tmp_path), datasets.food101n(tmp_path, "val")
    assert (counts(train_set), counts(val)) == ([15, 15, 15], [3, 3, 3]) and train_set.class_names == FOODS
    assert (train_set.is_verified.sum(), train_set.is_wrong.sum(), val.is_wrong.sum()) == (15, 5, 3)
    assert set(train_set.clean[train_set.is_wrong]) == {OTHER}
    is_right = train_set.is_verified & ~train_set.is_wrong
    assert (train_set.clean[is_right] == train_set.given[is_right]).all()
    assert train_set[15][1:] == (1, f"images/baklava/{1:032x}.jpg")
    assert not set(train_set.ids) & set(val.ids)


def test_animal10n(tmp_path):
    make_animal10n(tmp_path)
    train_set = datasets.animal10n(tmp_path)
    assert (counts(train_set), counts(datasets.animal10n(tmp_path, "test"))) == ([4] * 10, [2] * 10)
    assert (train_set.class_names[3], train_set.class_names[9]) == ("coyote", "guinea pig")
    assert train_set[4][1:] == (1, "training/1_00001.jpg")


def test_openood(tmp_path):
    make_openood(tmp_path)
    for name in datasets.OPENOOD_SETS:
        found = datasets.openood(tmp_path, name)
        assert found.given.tolist() == ([0, 1, 2, 0, 1, 2, 0] if name.endswith("imagenet") else [OUTSIDE] * 7)
        assert found[6][2].endswith(f"{name}/picture 6.jpg")
    assert datasets.openood(tmp_path, "test_textures").ids[0].startswith("images_classic/")
    with pytest.raises(ValueError, match="must be one of val_imagenet"):
        datasets.openood(tmp_path, "test_places")


MISSING = [
    (make_imagenet, datasets.imagenet, "imagenet/train", "a folder for each class"),
    (make_webvision, datasets.webvision, "webvision/info/synsets.txt", "a line for each class"),
    (make_webvision, datasets.webvision, "webvision/info/train_filelist_flickr.txt", "a line for each picture"),
    (make_clothing1m, datasets.clothing1m, "clothing1m/noisy_train_key_list.txt", "the pictures with noisy labels"),
    (make_clothing1m, datasets.clothing1m, "clothing1m/clean_label_kv.txt", "the clean labels"),
    (make_food101n, datasets.food101n, "food101n/meta/verified_val.tsv", "what people said of pictures"),
    (make_food101n, datasets.food101n, "food101n/meta/imagelist.tsv", "the pictures, a line each"),
    (make_animal10n, datasets.animal10n, "animal10n/training", "the pictures"),
]


@pytest.mark.parametrize(("make", "load", "name", "holds"), MISSING, ids=[case[2] for case in MISSING])
def test_a_missing_file_is_named_with_what_it_holds(tmp_path, make, load, name, holds):
    make(tmp_path)
    (tmp_path / name).rename(tmp_path / "elsewhere")
    with pytest.raises(DataMissing, match=f"{name}' is missing.*it holds {holds}"):
        load(tmp_path)


def test_missing_data_and_pictures_are_named(tmp_path, monkeypatch):
    monkeypatch.delenv("SGOIF_LARGE", raising=False)
    with pytest.raises(DataMissing, match="set SGOIF_LARGE, or pass --root"):
        datasets.large_root()
    monkeypatch.setenv("SGOIF_LARGE", str(tmp_path))
    assert datasets.large_root() == tmp_path and datasets.large_root("other").name == "other"
    with pytest.raises(DataMissing, match=r"benchmark_imglist/imagenet/test_ninco\.txt' is missing"):
        datasets.openood(tmp_path, "test_ninco")
    make_animal10n(tmp_path)
    pictures = datasets.animal10n(tmp_path)
    (tmp_path / "animal10n" / pictures.ids[0]).unlink()
    with pytest.raises(DataMissing, match=r"0_00000\.jpg' is missing"):
        pictures[0]


def change(text, **fields):
    """The text of a recipe with other fields."""
    kept = [line for line in text.splitlines() if line.partition(" =")[0] not in fields]
    return "\n".join([*kept, *(f"{name} = {json.dumps(value)}" for name, value in fields.items() if value is not None)])


WRONG = [
    ({"epoch": 3}, "no field epoch; known: table, dataset, model, image"),
    ({"lr": None}, "missing 1 required keyword-only argument: 'lr'"),
    ({"dataset": "mnist"}, "dataset must be one of imagenet, webvision"),
    ({"model": "vgg"}, "model must be one of resnet18, resnet50"),
    ({"epochs": "ten"}, "epochs must be of the kind int, got 'ten'"),
    ({"epochs": 2.5}, "epochs must be of the kind int"),
    ({"width": 0}, "width must be positive"),
    ({"seeds": [1, "two"]}, r"seeds must be of the kind list\[int\]"),
    ({"seeds": 1}, r"seeds must be of the kind list\[int\]"),
    ({"seeds": []}, "must name at least one"),
    ({"batch": 250, "ranks": 4}, "batch 250 cannot be shared by 4 ranks"),
    ({"noises": ["sym-20"]}, "labels of clothing1m are noisy already"),
    ({"ood": ["places"]}, "OpenOOD has no list test_places; known: val_imagenet"),
    ({"amp": "fp16"}, "amp must be one of bf16, none"),
]


@pytest.mark.parametrize(("fields", "message"), WRONG, ids=[str(case[0]) for case in WRONG])
def test_a_wrong_recipe_is_refused(tmp_path, fields, message):
    path = tmp_path / "mine.toml"
    path.write_text(change((recipe.FOLDER / "table2_clothing1m.toml").read_text(), **fields))
    with pytest.raises(RecipeError, match=f"^mine: .*{message}"):
        read_recipe(path)


def test_fields_of_the_method_are_checked_too(tmp_path):
    path, text = tmp_path / "mine.toml", (recipe.FOLDER / "animal10n.toml").read_text()
    path.write_text(f'{text}\n[method]\nsolver = "cg"\nplanned = 3\n')
    with pytest.raises(RecipeError, match="method has no field planned; known: curvature"):
        read_recipe(path)
    path.write_text(f'{text}\n[method]\nsolver = "cg"\n')
    method = read_recipe(path).make_method(12)
    assert (method.solver, method.planned_steps) == ("cg", 12)


def test_an_unknown_recipe_is_refused_with_the_known_ones():
    with pytest.raises(RecipeError, match="no recipe table9; known: animal10n, cifar100"):
        read_recipes(["table9"])


@pytest.fixture(scope="module")
def priced():
    return {found["recipe"]: found for found in map(dry_run.estimate, read_recipes())}


def test_every_recipe_is_walked_without_data(priced):
    told = dry_run.describe(list(priced.values()), 60.0)
    assert all(f"| {name} |" in told for name in priced) and "60 TFLOP/s" in told
    assert {read_recipe(path).dataset for path in recipe.FOLDER.glob("*.toml")} == set(DATASETS)
    large = priced["table3_imagenet"]
    assert large["parameters"] == 25_557_032  # the published size of ResNet-50
    assert large["forward_flops"] / large["batch"] == pytest.approx(2 * 4.09e9, rel=0.01)  # 4.1 billion products
    assert large["steps"] == 90 * 1252
    assert 2.9 < large["step_flops"] / large["forward_flops"] <= 3
    # activations: within what a batch of 128 is known to need in half precision, between 30 and 60 MB a picture
    assert 30e6 < large["activation_bytes"] / large["batch"] < 60e6


def test_the_estimate_follows_the_recipe_and_the_assumptions():
    small = read_recipes(["animal10n"])[0]
    slow, fast = (dry_run.estimate(small, tflops) for tflops in (20.0, 60.0))
    assert 2 < slow["hours"] / fast["hours"] <= 3 and slow["activations_gb"] == fast["activations_gb"]
    few = dry_run.estimate(small, examples=1000)
    assert few["steps"] == small.epochs * 4


def test_the_committed_log_is_of_these_recipes(priced):
    def facts(text):  # what a change of the forecaster leaves as it is
        rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
        return [row[:5] + row[6:8] for row in rows]

    told = dry_run.describe(list(priced.values()), dry_run.TFLOPS)
    assert facts((records.RESULTS / "tier_g_dry_run.txt").read_text()) == facts(told)


def test_the_dry_run_is_a_command(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    asked = ["tier", "G", "--dry-run", "--only", "animal10n"]
    assert command.main([*asked, "--epochs", "1", "--tflops", "30"]) == 0
    assert "| animal10n | 50,000 | 10 |" in capsys.readouterr().out and not list(tmp_path.iterdir())
    with pytest.raises(SystemExit):
        command.main(["tier", "S", "--dry-run"])
    assert "only tier G has the options dry_run" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command.main(["tier", "S", "--only", "animal10n"])
    assert "no experiment animal10n" in capsys.readouterr().err


def test_parts_do_not_overlap_and_noise_is_known(tmp_path):
    make_imagenet(tmp_path)
    make_food101n(tmp_path)
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


def test_pictures_are_cropped_by_seed_epoch_and_place_alone(tmp_path):
    make_imagenet(tmp_path)
    pictures, large = datasets.imagenet(tmp_path), read_recipes(["table3_imagenet"])[0]
    first, label, name = Augmented(pictures, large, seed=1, epoch=2)[13]
    again, other = (Augmented(pictures, large, seed=1, epoch=epoch)[13][0] for epoch in (2, 3))
    assert first.shape == (3, 224, 224) and (label, name) == (1, pictures.ids[13])
    assert first.equal(again) and not first.equal(other)
    plain, label = Prepared(pictures, large)[13]
    assert plain.shape == (3, 224, 224) and label == 1


def run_tiny(root, out, *more, only="table2_clothing1m"):
    """Train by a recipe with everything small."""
    small = ["--epochs", "2", "--width", "4", "--batch", "8", "--amp", "none", "--workers", "0", "--device", "cpu"]
    return command.main(["tier", "G", "--only", only, "--root", str(root), "--out", str(out), *small, *more])


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """A recipe for small pictures and one seed, beside the imitation of its data."""
    folder = tmp_path / "recipes"
    folder.mkdir()
    text = (recipe.FOLDER / "table2_clothing1m.toml").read_text()
    fields = {"model": "resnet18", "image": 32, "seeds": [1], "held_per_class": 6, "ranks": 1}
    (folder / "table2_clothing1m.toml").write_text(change(text, **fields))
    monkeypatch.setattr(recipe, "FOLDER", folder)
    make_clothing1m(tmp_path)
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


def test_a_network_is_tried_on_the_lists_of_openood(tmp_path, monkeypatch):
    make_imagenet(tmp_path)
    make_openood(tmp_path, count=40)
    folder = tmp_path / "recipes"
    folder.mkdir()
    fields = {"model": "resnet18", "image": 32, "held_per_class": 5, "ranks": 1, "ood": ["ninco", "textures"]}
    text = change((recipe.FOLDER / "table3_imagenet.toml").read_text(), **fields, noises=["sym-20"])
    (folder / "table3_imagenet.toml").write_text(text)
    monkeypatch.setattr(recipe, "FOLDER", folder)
    run_tiny(tmp_path, tmp_path / "out", "--examples", "30", "--epochs", "1", only="table3_imagenet")
    found = json.loads((tmp_path / "out" / "table3_imagenet-sym-20-1" / "result.jsonl").read_text())
    assert set(found["ood"]) == {"ninco", "textures"} and 0 <= found["ood"]["ninco"]["auroc"] <= 100
    assert found["accuracy"] is None and found["detection"]["loss"]["examples"] == 30  # all of val is held out


def test_too_few_steps_are_refused(tiny):
    with pytest.raises(ValueError, match="8 pictures in batches of 8 give 2 steps; 3 are needed"):
        run_tiny(tiny, tiny / "out", "--examples", "8")


def test_missing_data_end_a_training_with_their_name(tiny):
    (tiny / "clothing1m" / "noisy_label_kv.txt").unlink()
    with pytest.raises(DataMissing, match=r"noisy_label_kv\.txt' is missing; it holds the noisy labels"):
        run_tiny(tiny, tiny / "out")


@pytest.mark.slow
def test_two_ranks_share_a_training_and_go_on_together(tmp_path):
    make_clothing1m(tmp_path)
    root, out = Path(__file__).parents[2], tmp_path / "out"
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "benchmarks"]
    small = ["--epochs", "2", "--width", "4", "--batch", "8", "--amp", "none", "--workers", "0", "--device", "cpu"]
    asked = ["tier", "G", "--only", "table2_clothing1m", "--seeds", "1", "--root", str(tmp_path), "--out", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}"}
    for more in (["--stop-after", "1"], []):
        subprocess.run([sys.executable, *torchrun, *asked, *small, *more], cwd=root, env=environment, check=True)
    folder = out / "table2_clothing1m-none-1"
    found = json.loads((folder / "result.jsonl").read_text())
    assert found["settings"]["processes"] == 2 and found["detection"]["worst"]["examples"] == 9
    visits = sgoif.load(str(folder / "run")).visits
    assert sorted(set(visits["epoch"])) == [0, 1] and len(visits["id"]) == 2 * 40  # 39, and one again to share evenly
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["0002-0.pt", "0002-1.pt"]
