"""``sgoif ood``: from a scorer's file and pictures to alarms, with a model by its name."""

import csv
import json

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from sgoif.ood import OodScorer
from tests.cli.digitnet import save_digit_model
from tests.cli.runs import invoke


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A network for digits, its scorer, and a folder of digits, noise and one broken file."""
    folder, rng = tmp_path_factory.mktemp("ood"), np.random.default_rng(0)
    digits = (load_digits().images * 255 / 16).astype(np.uint8)
    images, labels = torch.tensor(digits)[:, None].float() / 255, torch.tensor(load_digits().target)
    model = save_digit_model(folder, "digitnet", images[:1000], labels[:1000])
    OodScorer.fit(model, images[1000:1600]).save(folder / "scorer.safetensors")
    (folder / "pictures" / "new").mkdir(parents=True)
    for i, pixels in enumerate(digits[1600:1640]):
        Image.fromarray(pixels).save(folder / "pictures" / "new" / f"digit{i:02d}.png")
    for i in range(10):
        noise = rng.integers(0, 256, (8, 8), dtype=np.uint8)
        Image.fromarray(noise).save(folder / "pictures" / f"noise{i}.png")
    (folder / "pictures" / "broken.png").write_text("no picture")
    return folder


@pytest.fixture
def here(made, monkeypatch, tmp_path):
    monkeypatch.chdir(made)
    monkeypatch.syspath_prepend(str(made))
    return tmp_path


ARGUMENTS = ("ood", "scorer.safetensors", "--model", "digitnet:make", "--data", "pictures")


def test_noise_raises_alarms_and_the_broken_file_is_named(here):
    document = json.loads(invoke(*ARGUMENTS, "--json").stdout)
    assert document["counts"]["num_pictures"] == 50 and document["counts"]["num_broken"] == 1
    first = [row["id"] for row in document["pictures"][:10]]
    assert sum(name.startswith("noise") for name in first) >= 9
    assert document["broken"][0]["id"] == "broken.png"
    flagged = [row for row in document["pictures"] if row["flag"]]
    assert 10 <= len(flagged) <= 16 and all(row["score"] >= 0.95 for row in flagged)


def test_it_prints_and_writes(here):
    done = invoke(*ARGUMENTS, "--top", "5")
    assert done.exit_code == 0 and "1 picture could not be read" in done.stdout and "noise" in done.stdout
    assert invoke(*ARGUMENTS, "--top", "0", "--csv", here / "found.csv").exit_code == 0
    rows = list(csv.DictReader((here / "found.csv").read_text().splitlines()))
    assert len(rows) == 50 and list(rows[0]) == ["id", "score", "flag", "confidence", "raw_score"]


def test_mistakes_are_told(here):
    assert "at best" in invoke(*ARGUMENTS, "--false-alarms", "0.01%").stderr
    assert "neither a folder" in invoke(*ARGUMENTS[:-1], "nowhere").stderr
    assert "there is no scorer" in invoke("ood", "none", *ARGUMENTS[2:]).stderr
    assert "choose one" in invoke(*ARGUMENTS, "--json", "--csv", "x.csv").stderr
