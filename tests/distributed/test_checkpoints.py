"""A monitor goes through torch.distributed.checkpoint like any part of a training, whatever the number of ranks."""

from dataclasses import replace

import numpy as np
import pytest

import sgoif
from tests.distributed.loops import Recipe, joined, killed, trained
from tests.distributed.test_ddp import assert_same

RECIPE = Recipe(steps=14, saves_at=6)  # between two refreshes, where step 5 waits among several ranks
EXACT = ("id", "step", "epoch", "harm", "worst", "confidence", "probe_margin", "harm_std", "worst_std")


@pytest.mark.parametrize("change", [{}, {"saves_async": True}, {"wrap": "fsdp"}], ids=["ddp", "async", "fsdp"])
def test_resumed_with_as_many_ranks_everything_is_the_same_to_the_bit(worlds, tmp_path, change):
    recipe = replace(RECIPE, saves_to=str(tmp_path), **change)
    whole = worlds.run(2, trained, recipe)
    later = worlds.run(2, trained, replace(recipe, saves_to=None), {}, None, str(tmp_path))
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
    worlds, tmp_path, before, after, wrap
):
    recipe = replace(RECIPE, saves_to=str(tmp_path), wrap=wrap)
    whole = joined([part["visits"] for part in worlds.run(before, trained, recipe)])
    parts = worlds.run(after, trained, replace(recipe, saves_to=None), {}, None, str(tmp_path))
    assert all(part["faults"] == {} and part["is_on"] for part in parts)
    later = joined([part["visits"] for part in parts])
    again = whole["step"] >= (6 if before == 1 else 5)
    for name in ("id", "step", "epoch"):
        np.testing.assert_array_equal(whole[name][again], later[name], err_msg=name)
    for name in ("harm", "worst", "confidence", "probe_margin", "loss", "harm_std", "worst_std"):
        gap = np.abs(whole[name][again] - later[name]).max() / np.abs(whole[name][again]).max()
        assert gap < 1e-8, (name, gap)


@pytest.mark.parametrize("before, after", [(2, 1), (1, 2)])
def test_a_run_on_disk_that_other_ranks_finish_is_that_of_one_process(worlds, tmp_path, before, after):
    expected = worlds.run(1, trained, replace(RECIPE, saves_at=None), {"out": str(tmp_path / "whole")})
    settings, folder = {"out": str(tmp_path / "run")}, str(tmp_path / "checkpoint")
    worlds.run(before, killed, replace(RECIPE, steps=10, saves_to=folder), settings)
    found = worlds.run(after, trained, RECIPE, settings, None, folder)
    whole, run = sgoif.load(tmp_path / "whole"), sgoif.load(tmp_path / "run")
    assert len(run.visits["id"]) == 14 * 16
    for name in ("visits", "visits_not_judged"):
        assert found[0]["info"]["counters"][name] == expected[0]["info"]["counters"][name], name
    tables = [
        {name: column[np.argsort(item.table["id"])] for name, column in item.table.items()} for item in (whole, run)
    ]
    for name in ("id", "n_visits", "suggested_label"):
        np.testing.assert_array_equal(tables[0][name], tables[1][name], err_msg=name)
    for name in ("harm", "worst_std", "p_mislabeled"):  # added up from visits, which are stored in float32
        np.testing.assert_allclose(tables[0][name], tables[1][name], rtol=1e-4, atol=1e-5, err_msg=name)
