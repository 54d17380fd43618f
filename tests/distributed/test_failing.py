"""Trouble inside the monitor of one rank: scoring ends on all of them, and the training goes on as if never watched."""

import pytest

import sgoif
from tests.distributed.loops import Recipe, Trouble, several, trained
from tests.distributed.test_ddp import assert_same

RECIPE = Recipe(steps=10)


def assert_off(part):
    assert not part["is_on"]
    assert sum(part["faults"].values()) == 1, part["faults"]


@pytest.mark.parametrize("kind", ["raises", "stalls"])
def test_trouble_on_one_rank_ends_scoring_on_all_and_the_training_goes_on(worlds, tmp_path, kind):
    out = str(tmp_path / "run")
    settings = {"out": out, "peer_timeout_s": 4}
    parts = worlds.run(2, trained, RECIPE, settings, Trouble(kind))
    bare = worlds.run(2, several, [Recipe(steps=10, is_watched=False)])
    for part, (expected,) in zip(parts, bare):
        assert_off(part)
        assert_same(expected["weights"], part["weights"])
    told = sgoif.load(out).info["switched_off"]
    assert told["rank"] == 0 and told["step"] in (6, 7, 9)  # batches are scored at the next refresh
    # the exchange at the end of step 4 was the last that all took part in
    assert set(sgoif.load(out).visits["step"]) >= set(range(5))


def test_a_killed_rank_ends_scoring_and_not_the_others(worlds, tmp_path):
    out = str(tmp_path / "run")
    recipe = Recipe(steps=10, wrap=None)  # DDP itself would not go on without the dead rank
    settings, trouble = {"out": out, "peer_timeout_s": 600}, Trouble("dies", rank=3)  # found by closed sockets
    *alive, dead = worlds.run(4, trained, recipe, settings, trouble, dies=3)
    assert dead is None
    for part in alive:
        assert_off(part)
    run = sgoif.load(out)
    assert run.info["switched_off"]["rank"] == 0 and set(run.visits["rank"]) >= {0, 1, 2}


def test_ranks_that_lose_step_are_found_out_and_train_on(worlds):
    parts = worlds.run(2, trained, RECIPE, {"peer_timeout_s": 6}, Trouble("forgets"))
    for part in parts:
        assert_off(part)
    assert_same(parts[0]["weights"], parts[1]["weights"])


def test_what_another_rank_could_not_write_is_told_in_run_json(worlds, tmp_path):
    out = str(tmp_path / "run")
    parts = worlds.run(2, trained, RECIPE, {"out": out}, Trouble("cannot_write"))
    assert all(part["is_on"] and part["faults"] == {} for part in parts)
    run = sgoif.load(out)
    assert run.info["dropped_rows"] == 80 and len(run.visits["id"]) == 80 and set(run.visits["rank"]) == {0}
    assert any("other ranks" in cause for cause in run.info["writing_faults"])
    assert run.info["switched_off"] is None
