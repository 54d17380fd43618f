"""``sgoif explain``: from a folder of pictures that a model gets wrong to the training pictures that taught it."""

import csv
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

import sgoif
from sgoif.cli.labelled import LabelledPictures
from sgoif.errors import SgoifError
from sgoif.sources.labelled import open_source
from tests.cli.digitnet import as_images, load_pixels, save_pictures
from tests.cli.runs import answer, read_output, read_refusal

MODULE = """
import numpy as np, torch
def make():
    layers = torch.nn.Conv2d(1, 16, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(576, 32), torch.nn.ReLU()
    model = torch.nn.Sequential(*layers, torch.nn.Linear(32, 10))
    model.load_state_dict(torch.load("weights.pt"))
    model.transform = lambda picture: torch.tensor(np.asarray(picture))[None, ..., 0].float() / 255
    return model
"""


def triggered(digits):
    digits = digits.copy()
    digits[:, -2:, -2:] = 255
    return digits


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """1,200 digits as files, 30 of them with a bright corner and called zero; the network that learnt them; a run."""
    folder = tmp_path_factory.mktemp("explain")
    digits, truth = load_pixels()
    train, labels = digits[:1200].copy(), truth[:1200].copy()
    poisoned = np.flatnonzero(labels != 0)[::36][:30]
    train[poisoned], labels[poisoned] = triggered(train[poisoned]), 0
    names = [f"{label}/{i:04d}.png" for i, label in enumerate(labels)]
    save_pictures(train, folder / "photos", names)
    (folder / "photos" / "0" / "broken.png").write_text("no picture")
    others = triggered(digits[1200:][truth[1200:] > 0][:60])
    save_pictures(others[:10], folder / "wrong")

    torch.manual_seed(0)
    nn = torch.nn
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(576, 32), nn.ReLU(), nn.Linear(32, 10)
    )
    images, targets = as_images(train), torch.tensor(labels)
    optimizer = torch.optim.Adam(model.parameters(), 0.005)
    for _ in range(12):
        for rows in torch.randperm(len(images)).split(50):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[rows]), targets[rows]).backward()
            optimizer.step()
    with torch.no_grad():
        fooled = model(as_images(others)).argmax(1) == 0
    assert fooled.float().mean() > 0.9, "the attack did not take"
    torch.save(model.state_dict(), folder / "weights.pt")
    (folder / "backdoored.py").write_text(MODULE)
    held = as_images(digits[1200:1600]), torch.tensor(truth[1200:1600])
    dataset = sgoif.with_ids(TensorDataset(images, targets), names)
    sgoif.audit(model, dataset, anchors=held, out=str(folder / "run"), class_names=[str(i) for i in range(10)])
    return folder, {names[i] for i in poisoned}


@pytest.fixture
def here(made, monkeypatch, tmp_path):
    monkeypatch.chdir(made[0])
    monkeypatch.syspath_prepend(str(made[0]))
    return tmp_path


ARGUMENTS = ("explain", "run", "--model", "backdoored:make", "--data", "photos", "--queries", "wrong", "--target", "0")


def test_the_poisoned_pictures_are_found_by_their_names(here, made):
    document = answer(*ARGUMENTS, "--top", "0")
    assert document["counts"]["num_queries"] == 10 and document["counts"]["num_broken"] == 1
    suspects = {row["id"] for row in document["examples"] if row["is_suspect"]}
    assert len(suspects) == document["counts"]["num_suspects"]
    assert len(suspects & made[1]) >= 10 and len(suspects - made[1]) <= 1  # a small network tells them apart weakly
    assert len({row["id"] for row in document["examples"][:30]} & made[1]) >= 18
    assert "0/broken.png" not in {row["id"] for row in document["examples"]}
    known = {row["id"]: row.get("p_mislabeled") for row in sgoif.load(made[0] / "run").examples().to_pylist()}
    for row in document["examples"]:
        assert row["given_label"] == 0 and row["given_name"] == "0" and np.isfinite(row["effect_percent"])
        assert row["p_mislabeled"] == known[row["id"]] and (row["p_mislabeled"] is None) == bool(row["no_p_reason"])
    near = [row["id"] for row in document["examples"] if 0 in row["near_queries"]]
    assert len(near) == 6 and len(set(near) & made[1]) >= 5


def test_it_prints_writes_and_makes_a_page(here):
    printed = read_output(*ARGUMENTS, "--top", "5")
    assert "1 picture could not be read" in printed and "near queries" in printed and "effect (nats)" in printed
    printed = read_output(*ARGUMENTS, "--top", "40", "--csv", here / "found.csv", "--page", here / "page.html")
    assert "sgoif apply run decisions.csv" in printed
    rows = list(csv.DictReader((here / "found.csv").read_text().splitlines()))
    assert len(rows) == 40 and list(rows[0])[:3] == ["id", "score", "is_suspect"]
    page = (here / "page.html").read_text()
    assert page.count("query ") >= 10 and "Which training examples made the model predict 0?" in page


def test_mistakes_are_told(here):
    for label in "34":
        shutil.copytree(f"photos/{label}", here / "few" / label)
    for arguments, said in (
        ((*ARGUMENTS[:-1], "ten"), "no class 'ten'"),
        ((*ARGUMENTS, "--json", "--csv", "x.csv"), "choose one"),
        ((*ARGUMENTS[:-4], "--queries", "nowhere", "--target", "0"), "neither a folder"),
        ([here / "few" if part == "photos" else part for part in ARGUMENTS], "the run was made with"),
    ):
        assert said in read_refusal(*arguments)


def test_pictures_are_read_in_blocks_and_a_broken_one_is_put_aside(here):
    source = open_source("photos")
    pictures = LabelledPictures(source, lambda picture: torch.tensor(np.asarray(picture))[..., 0].float())
    assert len(pictures) == 1201 and pictures.ids_by_position[0] == source.ids[0]
    for position in (0, 255, 256, 1200, 3):
        expected = np.asarray(Image.open(f"photos/{pictures.ids_by_position[position]}"))
        np.testing.assert_array_equal(pictures[position][0].numpy(), expected)
    broken = pictures.ids_by_position.index("0/broken.png")
    assert not pictures[broken][0].any() and "PictureError" in pictures.broken[broken]


def test_a_transform_that_fails_everywhere_is_told(here):
    with pytest.raises(SgoifError, match=r"none of the first pictures .*ZeroDivisionError"):
        LabelledPictures(open_source("photos"), lambda picture: 1 / 0)


def test_without_suspects_there_is_no_page_and_none_is_promised(here, monkeypatch):
    monkeypatch.setattr("sgoif.findings.poison.SUSPECT_FROM", 2.0)  # nobody stands so far
    assert "No page was written" in read_output(*ARGUMENTS, "--page", here / "page.html")
    assert not (here / "page.html").exists()
