"""``sgoif sentinel``: from a sentinel's file and pictures in their order to an alarm, with a model by its name."""

import json

import numpy as np
import pytest
import torch

from sgoif.shift import ShiftSentinel
from tests.cli.digitnet import as_images, load_pixels, save_digit_model, save_pictures
from tests.cli.runs import invoke

BATCH = 20


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A network for digits, its sentinel, usual pictures with a broken one, and pictures that fade after 6 batches."""
    folder, order = tmp_path_factory.mktemp("sentinel"), np.random.default_rng(0).permutation(1797)
    digits, labels = (part[order] for part in load_pixels())
    images = as_images(digits)
    model = save_digit_model(folder, "streamnet", images[:500], torch.tensor(labels[:500]))
    ShiftSentinel.fit(model, images[500:1300], batch_size=BATCH).save(folder / "sentinel.safetensors")
    later = digits[1300:1540]
    save_pictures(later, folder / "usual")
    save_pictures(np.concatenate([later[:120], (later[120:] * 0.5).astype(np.uint8)]), folder / "faded")
    (folder / "usual" / "050.png").write_text("no picture")
    return folder


@pytest.fixture
def here(made, monkeypatch, tmp_path):
    monkeypatch.chdir(made)
    monkeypatch.syspath_prepend(str(made))
    return tmp_path


def sentinel(data, *more, file="sentinel.safetensors"):
    return invoke("sentinel", file, "--model", "streamnet:make", "--data", data, *more)


def test_usual_pictures_pass_and_the_broken_one_is_named(here):
    done = sentinel("usual", "--json", "--top", "0")
    document = json.loads(done.stdout)
    assert done.exit_code == 0 and document["alarm"] is None
    assert document["counts"] == {"num_pictures": 239, "num_batches": 12, "num_broken": 1}
    assert document["broken"][0]["id"] == "050.png" and len(document["batches"]) == 12
    assert document["settings"]["batch"] == BATCH and document["settings"]["false_alarms"] == 1e-4


def test_pictures_that_fade_end_with_an_alarm_and_exit_code_1(here):
    done = sentinel("faded", "--json")
    alarm = json.loads(done.stdout)["alarm"]
    assert done.exit_code == 1 and alarm["batch"] in (7, 8, 9) and abs(alarm["changed_at"] - 7) <= 1
    shown = sentinel("faded", "--top", "3")
    assert shown.exit_code == 1 and f"Alarm at batch {alarm['batch']}" in shown.stdout
    assert "once in 10,000 batches" in shown.stdout and len(shown.stdout.splitlines()) < 10


def test_a_stream_goes_on_from_the_file_that_was_written(here):
    assert sentinel("usual", "--out", here / "later.safetensors").exit_code == 0
    document = json.loads(sentinel("usual", "--json", "--top", "1", file=here / "later.safetensors").stdout)
    assert 13 <= document["batches"][0]["batch"] <= 24


def test_mistakes_are_told(here):
    (here / "empty").mkdir()
    (here / "empty" / "a.png").write_text("no picture")
    for done, said in [
        (sentinel("nowhere"), "neither a folder"),
        (sentinel("usual", file="none"), "there is no sentinel"),
        (sentinel(here / "empty"), "could be read"),
        (sentinel("usual", "--transform", "streamnet:nothing"), "cannot be found"),
    ]:
        assert done.exit_code == 2 and said in " ".join(done.stderr.split())
