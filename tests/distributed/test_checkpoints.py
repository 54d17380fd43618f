"""A monitor goes through torch.distributed.checkpoint like any part of a training, whatever the number of ranks."""

from dataclasses import replace

import numpy as np
import pytest

import sgoif
from tests.distributed.loops import Recipe, joined, killed, trained
from tests.distributed.test_ddp import assert_same
from tests.distributed.test_runs import assert_same_run

RECIPE = Recipe(steps=11, saves_at=6)  # between two refreshes, where step 5 waits among several ranks
EXACT = ("id", "step", "epoch", "harm", "worst", "confidence", "probe_margin", "harm_std", "worst_std")


@pytest.fixture(scope="module")
def save(worlds, tmp_path_factory):
    """Give a training that so many ranks saved on its way: the folder, and what each had at the end."""
    folder = tmp_path_factory.mktemp("saved")

    def save(size, name, **change):
        recipe = replace(RECIPE, saves_to=str(folder / f"{name}-{size}"), **change)
        return recipe.saves_to, worlds.share(size, trained, recipe)

    return save


@pytest.mark.parametrize("change", [{}, {"saves_async": True}, {"wrap": "fsdp"}], ids=["ddp", "async", "fsdp"])
def test_resumed_with_as_many_ranks_everything_is_the_same_to_the_bit(worlds, save, change):
    folder, whole = save(2, change.get("wrap", "async" if change else "ddp"), **change)
    later = worlds.run(2, trained, replace(RECIPE, **change), {}, None, folder)
    for one, two in zip(whole, later):
        assert two["faults"] == {}
        assert_same(one["weights"], two["weights"])
        again = one["visits"]["step"] >= 5
        for name in EXACT:
            np.testing.assert_array_equal(one["visits"][name][again], two["visits"][name], err_msg=name)


@pytest.mark.parametrize(
    "before, after, wrap", [(2, 1, "ddp"), (1, 2, "ddp"), (2, 4, "ddp"), (2, 1, "fsdp"), (1, 2, "fsdp")]
)
def test_resumed_with_other_ranks_no_visit_is_lost_and_scores_are_those_of_the_unbroken_run(
    worlds, save, before, after, wrap
):
    folder, parts = save(before, wrap if before > 1 else "alone", wrap=wrap if before > 1 else "ddp")
    whole = joined([part["visits"] for part in parts])
    parts = worlds.run(after, trained, replace(RECIPE, wrap=wrap), {}, None, folder)
    assert all(part["faults"] == {} and part["is_on"] for part in parts)
    later = joined([part["visits"] for part in parts])
    again = whole["step"] >= (6 if before == 1 else 5)
    for name in ("id", "step", "epoch"):
        np.testing.assert_array_equal(whole[name][again], later[name], err_msg=name)
    for name in ("harm", "worst", "confidence", "probe_margin", "loss", "harm_std", "worst_std"):
        gap = np.abs(whole[name][again] - later[name]).max() / np.abs(whole[name][again]).max()
        assert gap < 1e-8, (name, gap)


@pytest.mark.parametrize("before, after", [(2, 1), (1, 2)])
def test_a_run_on_disk_that_other_ranks_finish_is_that_of_one_process(worlds, alone, tmp_path, before, after):
    settings, folder = {"out": str(tmp_path / "run")}, str(tmp_path / "checkpoint")
    worlds.run(before, killed, replace(RECIPE, steps=9, saves_to=folder), settings)
    worlds.run(after, trained, RECIPE, settings, None, folder)
    run = sgoif.load(tmp_path / "run")
    assert len(run.visits["id"]) == 11 * 16
    assert_same_run(alone, run)
