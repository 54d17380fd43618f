"""``sgoif score``: from a snapshot and data to findings, with a model by its name."""

import json
import re
import shutil

import pytest
import torch

from tests.cli.runs import answer, golden, invoke
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
    done = invoke(*ARGUMENTS, "--model", "colours:make", "--out", "run")
    assert done.exit_code == 0, done.stderr
    first = done.stdout.splitlines()[:4]
    golden("score.txt", re.sub(r"\d[\d,]*", "N", "\n".join(first[:2] + first[3:])) + "\n")
    assert "sgoif issues run" in done.stdout
    assert "kind" in invoke("info", "run").stdout and "score" in invoke("info", "run").stdout


def test_json_and_a_second_call_that_finds_nothing_left_to_do(here):
    document = answer(*ARGUMENTS, "--model", "colours:make", "--out", "run")
    assert document["counts"]["num_scored"] == 299 and document["counts"]["num_quarantined"] == 1
    assert document["summary"]["num_examples"] == 299 and len(document["issues"]) == 20
    again = json.loads(invoke(*ARGUMENTS, "--model", "colours:make", "--out", "run", "--json").stdout)
    assert again["counts"]["num_scored"] == 0 and again["issues"] == document["issues"]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--model", "colours:fresh", "--out", "run"], "not those of the snapshot"),
        (["--model", "colours:none", "--out", "run"], "cannot be found"),
        (["--model", "colours:make", "--out", "run", "--engine", "spark"], "--engine is local or ray"),
        (["--model", "colours:make", "--out", "run", "--transform", "grey"], "--transform takes module:"),
        (["--model", "colours:make", "--out", "run", "--only-unjudged", "nothing"], "is no run"),
    ],
)
def test_mistakes_are_one_line_and_nothing_is_written(here, arguments, message):
    done = invoke(*ARGUMENTS, *arguments)
    assert done.exit_code == 2 and message in done.stderr
    assert not (here / "run").exists()


def test_a_transform_that_fails_on_everything_is_told_before_the_work_begins(here):
    done = invoke(*ARGUMENTS, "--model", "colours:make", "--out", "run", "--transform", "colours:grey")
    assert done.exit_code == 2 and "none of the 300 records" in done.stderr and "no colours here" in done.stderr
    assert not (here / "run").exists()
