"""``sgoif ood``: from a scorer's file and pictures to alarms, with a model by its name."""

import csv

import numpy as np
import pytest
import torch

from sgoif.ood import OodScorer
from tests.cli.digitnet import as_images, load_pixels, save_digit_model, save_pictures
from tests.cli.runs import answer, read_output, read_refusal


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A network for digits, its scorer, and a folder of digits, noise and one broken file."""
    folder, (digits, labels) = tmp_path_factory.mktemp("ood"), load_pixels()
    images = as_images(digits)
    model = save_digit_model(folder, "digitnet", images[:1000], torch.tensor(labels[:1000]))
    OodScorer.fit(model, images[1000:1600]).save(folder / "scorer.safetensors")
    save_pictures(digits[1600:1640], folder / "pictures" / "new")
    noise = np.random.default_rng(0).integers(0, 256, (10, 8, 8), dtype=np.uint8)
    save_pictures(noise, folder / "pictures", [f"noise{i}.png" for i in range(10)])
    (folder / "pictures" / "broken.png").write_text("no picture")
    return folder


@pytest.fixture
def here(made, monkeypatch, tmp_path):
    monkeypatch.chdir(made)
    monkeypatch.syspath_prepend(str(made))
    return tmp_path


ARGUMENTS = ("ood", "scorer.safetensors", "--model", "digitnet:make", "--data", "pictures")


def test_noise_raises_alarms_and_the_broken_file_is_named(here):
    document = answer(*ARGUMENTS)
    assert document["counts"]["num_pictures"] == 50 and document["counts"]["num_broken"] == 1
    first = [row["id"] for row in document["pictures"][:10]]
    assert sum(name.startswith("noise") for name in first) >= 9
    assert document["broken"][0]["id"] == "broken.png"
    flagged = [row for row in document["pictures"] if row["flag"]]
    assert 10 <= len(flagged) <= 16 and all(row["score"] >= 0.95 for row in flagged)


def test_it_prints_and_writes(here):
    printed = read_output(*ARGUMENTS, "--top", "5")
    assert "1 picture could not be read" in printed and "noise" in printed
    read_output(*ARGUMENTS, "--top", "0", "--csv", here / "found.csv")
    rows = list(csv.DictReader((here / "found.csv").read_text().splitlines()))
    assert len(rows) == 50 and list(rows[0]) == ["id", "score", "flag", "confidence", "raw_score"]


def test_mistakes_are_told(here):
    for arguments, said in (
        ((*ARGUMENTS, "--false-alarms", "0.01%"), "at best"),
        ((*ARGUMENTS[:-1], "nowhere"), "neither a folder"),
        (("ood", "none", *ARGUMENTS[2:]), "there is no scorer"),
        ((*ARGUMENTS, "--json", "--csv", "x.csv"), "choose one"),
    ):
        assert said in read_refusal(*arguments)
