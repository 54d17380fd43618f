"""``sgoif scan``: from a folder to findings, through the embeddings path, and the YAML that repeats it."""

import csv
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import sgoif
from sgoif.cli.scan import read_settings
from tests.cli.runs import answer, read_output, read_refusal

NAMES = ("ant", "bee", "cow")


@pytest.fixture(scope="module", autouse=True)
def quick_heads():
    """Fewer trees, waves and folds for all scans here: they show what the command does, not how well it judges."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sgoif.scanning.tabular._TREES", 20)
        patch.setattr("sgoif.scanning.tabular._WAVES", 60)
        patch.setattr("sgoif.judging.folds._REPEATED", 0)
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Pictures in class folders, a tenth of them in the wrong one, with embeddings that show it."""
    root, rng = tmp_path_factory.mktemp("scan"), np.random.default_rng(0)
    truth = np.repeat(np.arange(3), 120)
    wrong = np.zeros(len(truth), bool)
    wrong[rng.choice(len(truth), 36, replace=False)] = True
    given = np.where(wrong, (truth + rng.integers(1, 3, len(truth))) % 3, truth)
    shades = np.clip(60 + 120 * np.eye(3)[truth] + 25 * rng.standard_normal((len(truth), 3)), 0, 255).astype(int)
    for i, label in enumerate(given):
        folder = root / "photos" / NAMES[label]
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), tuple(shades[i])).save(folder / f"{i:03d}.png")
    paths = sorted(path.relative_to(root / "photos").as_posix() for path in (root / "photos").rglob("*.png"))
    number = np.array([int(path[-7:-4]) for path in paths])
    rows = 3.0 * np.eye(3)[truth[number]] + rng.standard_normal((len(paths), 3))
    np.save(root / "rows.npy", rows.astype(np.float32))
    errors = {path: NAMES[truth[i]] for path, i in zip(paths, number, strict=True) if wrong[i]}
    return root, errors


@pytest.fixture(scope="module")
def scanned(data):
    root, _ = data
    out = root / "run"
    return out, read_output("scan", root / "photos", "--features", root / "rows.npy", "--out", out)


def test_a_scan_prints_what_it_found_and_what_to_do_next(data, scanned):
    out, printed = scanned
    for text in ("Estimated errors", "given -> suggested", f"The run is in {out}"):
        assert text in printed
    rows = printed.partition("given -> suggested")[2].splitlines()[1:]
    assert [row.split()[0] for row in rows[:8]] == list("12345678") and rows[8] == ""  # eight findings, a line each
    assert rows[-1] == f"  sgoif report {out} --images run --out report.html"  # and one step
    assert printed.count("\n  sgoif ") == 1
    assert "Pictures were not opened" in printed  # before, broken ones were judged without a word
    rows = answer("issues", out, "--top", 20)["issues"]
    assert sum(row["id"] in data[1] for row in rows) >= 16
    assert "heads on embeddings from a file" in read_output("info", out)


def test_of_a_table_without_pictures_none_are_spoken_of(tmp_path):
    rng, truth = np.random.default_rng(0), np.arange(120) % 2
    pq.write_table(pa.table({"id": [f"r{i}" for i in range(120)], "label": truth}), tmp_path / "table.parquet")
    np.save(tmp_path / "rows.npy", (rng.standard_normal((120, 3)) + 4 * truth[:, None]).astype(np.float32))
    how = ("--features", tmp_path / "rows.npy", "--out", tmp_path / "run")
    printed = read_output("scan", tmp_path / "table.parquet", *how)
    assert "icture" not in printed and "--images" not in printed and "sgoif verify" in printed


def test_its_settings_repeat_it(data, scanned, tmp_path):
    out, _ = scanned
    settings = read_settings(str(out / "scan.yaml"))
    assert settings["data"] == str(data[0] / "photos") and settings["seed"] == 0
    document = answer("scan", "--config", out / "scan.yaml", "--out", tmp_path / "again", "--seed", 0)
    assert document["run"] == str(tmp_path / "again")
    assert document["settings"]["features"] == str(data[0] / "rows.npy")
    first = answer("issues", out, "--top", 20)["issues"]
    assert [row["id"] for row in document["issues"]] == [row["id"] for row in first]
    assert (tmp_path / "again" / "scan.yaml").read_text() == (out / "scan.yaml").read_text()


def test_verified_labels_are_not_asked_again(data, scanned, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    listed = answer("issues", scanned[0], "--top", 40)["issues"]
    with open("verified.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "label"])
        for row in listed:
            writer.writerow([row["id"], data[1].get(row["id"], row["given_name"])])
    arguments = ["--features", data[0] / "rows.npy", "--verified", "verified.csv", "--out", "next"]
    document = answer("scan", data[0] / "photos", *arguments)
    assert document["summary"]["num_verified"] == 40 and document["summary"]["holdout"] is None
    doubted = {row["id"]: row for row in answer("issues", "next", "--top", 0)["issues"]}
    assert len(doubted) == 320 and not set(doubted) & {row["id"] for row in listed}
    assert document["summary"]["expected_errors"] < answer("info", scanned[0])["summary"]["expected_errors"]


def test_a_scan_has_no_hold_out_to_verify(scanned):
    assert "is a scan, which holds nothing out" in read_refusal("holdout", scanned[0], "--out", "verify.csv")


def test_what_could_not_be_read_or_judged_is_named(data, tmp_path, monkeypatch):
    """Before: pictures that could not be read went without a word, and no file named them."""
    monkeypatch.chdir(tmp_path)
    photos = tmp_path / "photos"
    shutil.copytree(data[0] / "photos", photos)
    for name in ("ant/zz1.jpg", "bee/=cmd.jpg", "cow/zz3.jpg"):
        (photos / name).write_bytes(b"cut short")
    (photos / "dodo").mkdir()
    Image.new("RGB", (8, 8)).save(photos / "dodo" / "only.png")
    printed = read_output("scan", photos, "--backbone", "tests.colours:backbone", "--out", "run")
    assert "3 pictures could not be read: ant/zz1.jpg, bee/=cmd.jpg, cow/zz3.jpg" in printed
    assert "listed with the reasons in run/unreadable.csv" in printed
    assert "Not judged: 1 example (dodo/only.png): class dodo has 1 example, too few to judge." in printed
    listed = (tmp_path / "run" / "unreadable.csv").read_text().splitlines()
    assert len(listed) == 4 and listed[0] == "id,reason" and "cannot identify image file" in listed[1]
    document = answer("info", tmp_path / "run")
    assert document["summary"]["num_examples"] == 361
    found = sgoif.load(tmp_path / "run")
    assert found.info["unreadable"] == 3
    assert [item["id"] for item in found.info["unreadable_pictures"]] == ["ant/zz1.jpg", "bee/=cmd.jpg", "cow/zz3.jpg"]


def test_an_error_in_a_backbone_is_the_backbones(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scan_backbone_bad.py").write_text("def make():\n    return lambda pictures: pictures.no_such_thing\n")
    said = read_refusal("scan", data[0] / "photos", "--backbone", "scan_backbone_bad:make", "--out", "run")
    assert "error in sgoif itself" not in said  # before, exit code 3
    assert "the backbone 'scan_backbone_bad:make', given float32 pictures [64, 3, 224, 224] in [0, 1], raised" in said
    assert "scan_backbone_bad.py, line 2" in said


def test_mistakes_are_told_before_anything_is_written(data, scanned, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save(tmp_path / "short.npy", np.load(data[0] / "rows.npy")[:-1])
    np.save(tmp_path / "same.npy", np.ones((360, 4), np.float32))
    photos, new = data[0] / "photos", tmp_path / "new"
    for arguments, said in (
        (("nowhere",), "'nowhere' does not exist"),
        ((photos, "--out", new), "pictures are judged by what a pretrained model sees of them: name one ("),
        ((photos, "--features", tmp_path / "short.npy", "--out", new), "has 359 rows, expected"),
        ((photos, "--features", tmp_path / "same.npy", "--out", new), "all 4 features are the same"),
        ((photos, "--features", data[0] / "rows.npy", "--out", scanned[0]), "holds a run already"),
    ):
        assert said in read_refusal("scan", *arguments)
    assert {path.name for path in tmp_path.iterdir()} == {"short.npy", "same.npy"}
