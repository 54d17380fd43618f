"""Language models with DDP and FSDP2: one run of all ranks, with the scores of one process on the same batches."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import sgoif
from sgoif.closing import close_run
from tests.distributed import trainer_loops
from tests.distributed.loops import hear
from tests.distributed.sequence_loops import Recipe, needing_the_whole, trained, with_other_groups
from tests.distributed.test_ddp import assert_same, assert_trained_as_bare

SCORES = ("harm", "worst", "cosine", "loss", "loss_first", "loss_last")


def assert_close(one, many, gap=1e-8):
    assert one["examples"]["id"] == many["examples"]["id"]
    for name in ("n_visits", "n_judged", "num_tokens", "worst_group"):
        assert one["examples"][name] == many["examples"][name], name
    for table, names in (("examples", SCORES), ("effects", ("harm", "cosine"))):
        for name in names:
            first, second = (np.array(found[table][name], float) for found in (one, many))
            largest = np.nanmax(np.abs(first))
            assert largest > 0
            np.testing.assert_allclose(first, second, atol=gap * largest, rtol=0, err_msg=name)


def assert_as_alone(one, parts, gap=1e-6):
    """Ask every rank for the run of one process, in which nothing went wrong."""
    for part in parts:
        assert part["info"]["faults"] == {} and part["info"]["switched_off"] is None
        assert part["info"]["counters"]["visits"] == one["info"]["counters"]["visits"]
        assert_close(one, part, gap)


def assert_untouched(worlds, recipe, parts):
    """Ask for the weights of a training without a monitor, which is one whatever the monitor was to do."""
    bare = replace(recipe, curvature="identity", breaks=None, breaks_at="measure", out=None)
    assert_trained_as_bare(worlds, bare, parts, trained)


@pytest.mark.parametrize("curvature, accumulate", [("identity", 1), ("kfac", 1), ("kfac", 2), ("diagonal", 2)])
def test_scores_of_two_ranks_are_those_of_one_process(worlds, curvature, accumulate):
    recipe = Recipe(curvature, accumulate=accumulate)
    (one,), parts = worlds.share(1, trained, recipe), worlds.share(2, trained, recipe)
    assert one["info"]["counters"]["visits"] == 8 * 4 * accumulate
    assert_as_alone(one, parts, 1e-8 if curvature == "identity" else 1e-6)
    for name, value in parts[0]["directions"].items():
        np.testing.assert_array_equal(value, parts[1]["directions"][name])


def test_weights_are_those_without_a_monitor_to_the_bit(worlds):
    assert_untouched(worlds, Recipe("kfac"), worlds.share(2, trained, Recipe("kfac")))


def test_rank_0_writes_the_run_of_all_and_a_used_folder_is_refused_by_all(worlds, tmp_path):
    recipe = Recipe(out=str(tmp_path / "run"))
    parts = worlds.run(2, trained, recipe)
    run = sgoif.load(recipe.out)
    assert run.sql("select * from examples order by id")["harm"].to_pylist() == parts[0]["examples"]["harm"]
    assert run.info["world_size"] == 2 and run.sequence_issues().num_rows == parts[1]["info"]["num_examples"]
    messages = worlds.run(2, hear, trained, replace(recipe, steps=1))
    assert messages[0] == messages[1] and "run" in messages[0]


@pytest.mark.parametrize("wrap, place", [("ddp", "measure"), ("fsdp", "measure"), ("fsdp", "draw")])
def test_a_failing_rank_ends_the_watching_of_all_and_each_keeps_what_it_has(worlds, wrap, place, tmp_path):
    out = str(tmp_path / "run")
    recipe = Recipe("kfac", wrap=wrap, breaks=1, breaks_at=place, out=out)
    parts = worlds.run(2, trained, recipe)
    for part in parts:
        assert part["info"]["switched_off"] is not None
        assert "visits of the other process are missing" in part["warnings"]["ranks_missing"]
        assert f"`sgoif close {out}` adds up those of all" in part["warnings"]["ranks_missing"]
    assert_untouched(worlds, recipe, parts)
    written = sgoif.load(out)
    assert written.table["n_visits"].sum() == np.sum(parts[0]["examples"]["n_visits"])
    close_run(out)
    run, visits = sgoif.load(out), sum(np.sum(part["examples"]["n_visits"]) for part in parts)
    assert run.table["n_visits"].sum() == visits > written.table["n_visits"].sum()
    assert "ranks_missing" not in run.info.get("warnings", {})
    for told in (written, run):
        assert "scoring ended after step" in " ".join(told.summary().lines())


def test_processes_that_end_without_close_leave_the_visits_of_all(worlds, tmp_path):
    recipe = Recipe("kfac", out=str(tmp_path / "run"), closes=False)
    whole = worlds.share(2, trained, Recipe("kfac"))
    worlds.run(2, trained, recipe)
    assert close_run(recipe.out) == len(whole[0]["examples"]["id"])
    run = sgoif.load(recipe.out)
    found = {"examples": run.sql("select * from examples order by id").to_pydict()}
    found["effects"] = run.sql("select * from group_effects order by id, group_name").to_pydict()
    assert_close(whole[0], found, 1e-6)


def test_a_folder_that_rank_0_alone_is_given_is_that_of_all(worlds, tmp_path):
    recipe = Recipe("kfac", out=str(tmp_path / "run"), out_is_of_first=True)
    parts = worlds.run(2, trained, recipe)
    run = sgoif.load(recipe.out)
    assert run.table["n_visits"].sum() == 8 * 4 == np.sum(parts[1]["examples"]["n_visits"])
    assert {part.path.split("/")[1] for part in run.files.parts("sequence_visits")} == {"rank-00000", "rank-00001"}


def test_a_loss_that_is_wrong_on_another_rank_is_told_by_the_run_of_all(worlds):
    for part in worlds.run(2, trained, Recipe("kfac", halved=True)):
        assert "in 2 of 14 (micro-)batches" in part["warnings"]["loss_changed"]


def test_ranks_with_ids_of_other_kinds_do_not_score(worlds, tmp_path):
    for part in worlds.run(2, trained, Recipe(steps=2, out=str(tmp_path / "run"), strings=True)):
        off = part["info"]["switched_off"]
        assert off["step"] == 1 and "some processes have integers as ids and others strings" in off["reason"]


def test_ranks_with_other_groups_are_told_at_once(worlds):
    messages = worlds.run(2, with_other_groups)
    assert all("different groups of evaluation sequences" in (message or "") for message in messages), messages
    assert "'c': 3" in messages[1]


def test_a_resumed_run_ends_as_the_unbroken_one(worlds):
    whole = worlds.share(2, trained, Recipe("kfac"))
    first, second = worlds.run(2, trained, Recipe("kfac", saves_at=5))
    state = {"step": 5, "model": first["model"], "monitor": [first["monitor"], second["monitor"]]}
    for one, two in zip(whole, worlds.run(2, trained, Recipe("kfac", state=state))):
        assert_close(one, two, 1e-12)
    # one process takes over from both
    of_ranks = [saved["monitor"]["ranks"].items() for saved in (second, first)]
    ranks = {place: block for found in of_ranks for place, block in found if block is not None}
    state["monitor"] = [{"shared": first["monitor"]["shared"], "ranks": ranks}]
    assert_close(whole[0], trained(Recipe("kfac", state=state)), 1e-6)


@pytest.mark.parametrize(
    "kind",
    [
        {"curvature": "kfac"},
        {"curvature": "adam", "adam": True, "family": "gpt2", "lora": False},
        {"curvature": "kfac", "checkpointed": True, "family": "gpt2", "lora": False},
    ],
    ids=["llama", "gpt2", "checkpointed"],
)
def test_a_sharded_model_has_the_scores_of_one_process_and_its_own_weights_to_the_bit(worlds, kind):
    recipe = Recipe(accumulate=2, **kind)
    (one,), parts = worlds.share(1, trained, recipe), worlds.run(2, trained, replace(recipe, wrap="fsdp"))
    assert_as_alone(one, parts)
    assert_untouched(worlds, replace(recipe, wrap="fsdp"), parts)


def test_a_sharded_model_in_mixed_precision_trains_as_it_would(worlds):
    recipe = Recipe("kfac", wrap="fsdp", mixed=torch.bfloat16)
    parts = worlds.run(2, trained, recipe)
    assert_untouched(worlds, recipe, parts)
    for part in parts:
        assert part["info"]["faults"] == {} and part["info"]["switched_off"] is None
        assert np.isfinite(part["examples"]["harm"]).all() and part["info"]["counters"]["visits_not_judged"] < 16


@pytest.mark.parametrize("wrap", ["ddp", "fsdp"])
def test_ranks_with_batches_of_other_sizes_look_at_as_many_evaluation_sequences(worlds, wrap):
    (one,) = worlds.share(1, trained, Recipe(looks=2))
    assert_as_alone(one, worlds.run(2, trained, Recipe(wrap=wrap, uneven=True, looks=2)), 1e-8)


def test_what_needs_a_model_that_is_whole_says_so(worlds):
    for tokens, audited in worlds.run(2, needing_the_whole):
        assert "tokens of a sharded model cannot be explained" in tokens
        assert "audit() takes no sharded model" in audited


def test_the_trainer_gives_the_scores_of_one_process_and_its_own_weights_to_the_bit(worlds, tmp_path):
    folder = str(tmp_path / "trainer")
    one = trainer_loops.trained(folder)
    parts = worlds.run(2, trainer_loops.trained, folder, True, str(tmp_path / "run"))
    assert one["info"]["counters"]["visits"] == trainer_loops.STEPS * trainer_loops.BATCH
    assert_as_alone(one, parts, 1e-4)  # float32
    for plain, part in zip(worlds.run(2, trainer_loops.trained, folder, False), parts):
        assert_same(plain["weights"], part["weights"])
    assert sgoif.load(str(tmp_path / "run")).info["world_size"] == 2
