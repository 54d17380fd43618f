"""``sgoif score``: from a snapshot and data to findings, with a model by its name."""

import re
import shutil

import pytest
import torch

from tests.cli.runs import answer, golden, read_output, read_refusal
from tests.scoring.pictures import as_parquet, train_and_audit

MODULE = """
import torch
from tests.scoring.pictures import ColourNet

def make():
    model = ColourNet()
    model.load_state_dict(torch.load("{weights}"))
    return model

def fresh():
    return ColourNet()

def grey(picture):
    raise ValueError("no colours here")
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("score")
    trained = train_and_audit(folder)
    torch.save(trained.model.state_dict(), folder / "weights.pt")
    (folder / "colours.py").write_text(MODULE.format(weights=folder / "weights.pt"))
    as_parquet(trained.train, folder / "data", broken={9})
    return folder


@pytest.fixture
def here(made, tmp_path, monkeypatch):
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


ARGUMENTS = ("score", "snapshot.safetensors", "--data", "data")


def test_it_prints_what_it_found_and_what_to_do_next(here):
    printed = read_output(*ARGUMENTS, "--model", "colours:make", "--out", "run")
    first = printed.splitlines()[:4]
    golden("score.txt", re.sub(r"\d[\d,]*", "N", "\n".join(first[:2] + first[3:])) + "\n")
    assert "299 examples scored now, 1 put aside" in printed and "sgoif issues run" in printed
    assert re.search(r"kind +score", read_output("info", "run"))
    again = answer(*ARGUMENTS, "--model", "colours:make", "--out", "run")  # a second call finds nothing left to do
    assert again["counts"]["num_scored"] == 0
    assert again["summary"]["num_examples"] == 299 and len(again["issues"]) == 20


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--model", "colours:fresh"], "not those of the snapshot"),
        (["--model", "colours:none"], "cannot be found"),
        (["--model", "colours:make", "--engine", "spark"], "--engine is local or ray"),
        (["--model", "colours:make", "--transform", "grey"], "--transform takes module:"),
        (["--model", "colours:make", "--transform", "colours:grey"], "none of the 300 records"),
        (["--model", "colours:make", "--only-unjudged", "nothing"], "is no run"),
    ],
)
def test_mistakes_are_told_before_anything_is_written(here, arguments, message):
    assert message in read_refusal(*ARGUMENTS, "--out", "run", *arguments)
    assert not (here / "run").exists()
