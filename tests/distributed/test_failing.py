"""Trouble inside the monitor of one rank: scoring ends on all of them, and the training goes on as if never watched."""

import pytest

import sgoif
from tests.distributed.loops import Recipe, Trouble, trained
from tests.distributed.test_ddp import assert_trained_as_bare


def assert_off(parts):
    for part in parts:
        assert not part["is_on"] and sum(part["faults"].values()) == 1, part["faults"]


@pytest.mark.parametrize(
    ("kind", "wrap", "peer_timeout_s"),
    [("raises", "ddp", 30), ("raises", "fsdp", 30), ("stalls", "ddp", 4), ("forgets", "ddp", 6)],
)
def test_trouble_on_one_rank_ends_scoring_on_all_and_the_training_goes_on(worlds, tmp_path, kind, wrap, peer_timeout_s):
    recipe, settings = Recipe(steps=10, wrap=wrap), {"out": str(tmp_path / "run"), "peer_timeout_s": peer_timeout_s}
    parts = worlds.run(2, trained, recipe, settings, Trouble(kind))
    assert_off(parts)
    assert_trained_as_bare(worlds, recipe, parts)
    told = sgoif.load(settings["out"]).info["switched_off"]
    assert told["rank"] == 0 and told["step"] in (6, 7, 9)  # batches are scored at the next refresh
    # the exchange at the end of step 4 was the last that all took part in
    assert set(sgoif.load(settings["out"]).visits["step"]) >= set(range(5))


def test_a_killed_rank_ends_scoring_and_not_the_others(worlds, tmp_path):
    recipe = Recipe(steps=10, wrap=None)  # DDP itself would not go on without the dead rank
    settings = {"out": str(tmp_path / "run"), "peer_timeout_s": 600}  # found by closed sockets
    *alive, dead = worlds.run(4, trained, recipe, settings, Trouble("dies", rank=3), dies=3)
    assert dead is None
    assert_off(alive)
    run = sgoif.load(settings["out"])
    assert run.info["switched_off"]["rank"] == 0 and set(run.visits["rank"]) >= {0, 1, 2}


def test_what_another_rank_could_not_write_is_told_in_run_json(worlds, tmp_path):
    out = str(tmp_path / "run")
    parts = worlds.run(2, trained, Recipe(steps=10), {"out": out}, Trouble("cannot_write"))
    assert all(part["is_on"] and part["faults"] == {} for part in parts)
    run = sgoif.load(out)
    assert run.info["dropped_rows"] == 80 and len(run.visits["id"]) == 80 and set(run.visits["rank"]) == {0}
    assert any("other ranks" in cause for cause in run.info["writing_faults"])
    assert run.info["switched_off"] is None
