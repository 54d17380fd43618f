"""Runs of several ranks: written as parts and read as one, saved and resumed with as many ranks or others."""

import numpy as np
import pytest

import sgoif
from tests.distributed.loops import Recipe, hear, joined, resumed, stopped, train, trained, with_odd_rows

RECIPE = Recipe(steps=11, saves_at=6)  # between two refreshes


def assert_same_run(one, two):
    """Ask for the same visits and, but for the order in which float32 visits were added up, the same examples."""
    for name in ("visits", "visits_not_judged"):
        assert two.info["counters"][name] == one.info["counters"][name], name
    tables = [{name: column[np.argsort(run.table["id"])] for name, column in run.table.items()} for run in (one, two)]
    for name in ("id", "given_label", "suggested_label", "n_visits"):
        np.testing.assert_array_equal(tables[0][name], tables[1][name], err_msg=name)
    for name in ("harm", "worst", "worst_std", "confidence", "probe_margin", "harm_solved", "loss", "p_mislabeled"):
        np.testing.assert_allclose(tables[0][name], tables[1][name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_parts_of_all_ranks_are_one_run(worlds, alone, tmp_path):
    first, second = worlds.run(2, trained, Recipe(steps=11), {"out": str(tmp_path)})
    assert second["visits"] is None and first["info"]["world_size"] == 2
    run = sgoif.load(tmp_path)
    assert run.info["state"] == "finished" and run.info["num_examples"] == alone.info["num_examples"]
    assert run.info["counters"]["visits"] == 11 * 16 and set(run.visits["rank"]) == {0, 1}
    assert_same_run(alone, run)
    assert len(run.anchors()) == len(alone.anchors())  # once, not once per rank


def test_resumed_with_as_many_ranks_scores_are_the_same_to_the_bit(worlds):
    whole = worlds.share(2, trained, RECIPE)
    later = worlds.run(2, resumed, RECIPE, [part["kept"] for part in whole])
    for one, two in zip(whole, later):
        assert two["faults"] == {}
        again = one["visits"]["step"] >= 5  # step 5 waited for its refresh when the state was saved
        for name in ("id", "step", "epoch", "harm", "worst", "confidence", "probe_margin", "harm_std"):
            np.testing.assert_array_equal(one["visits"][name][again], two["visits"][name], err_msg=name)


@pytest.mark.parametrize("size", [1, 4])
def test_resumed_with_other_ranks_scores_are_those_of_the_same_steps(worlds, size):
    parts = worlds.share(2, trained, RECIPE)
    whole, kept = joined([part["visits"] for part in parts]), [parts[0]["kept"]] * size  # as rank 0 saved it
    later = joined([part["visits"] for part in worlds.run(size, resumed, RECIPE, kept)])
    waited, again, after = later["step"] == 5, whole["step"] >= 6, later["step"] >= 6
    first = parts[0]["visits"]
    assert set(later["id"][waited]) == set(first["id"][first["step"] == 5])  # rank 1's were not saved
    assert (whole["id"][again] == later["id"][after]).all()
    for name in ("harm", "worst", "confidence"):
        gap = np.abs(whole[name][again] - later[name][after]).max() / np.abs(whole[name]).max()
        assert gap < 1e-8, (name, gap)


def test_a_resumed_run_on_disk_counts_nothing_twice(worlds, tmp_path):
    worlds.run(2, stopped, RECIPE, {"out": str(tmp_path)})
    run = sgoif.load(tmp_path)
    assert len(run.visits["id"]) == run.table["n_visits"].sum() == 11 * 16
    assert set(run.visits["attempt"]) == {0, 1}


def test_all_ranks_refuse_a_folder_that_holds_a_run_and_overwrite_it_together(worlds, tmp_path):
    settings = {"out": str(tmp_path / "run")}
    worlds.run(2, trained, Recipe(steps=4), settings)
    said = worlds.run(2, hear, train, Recipe(steps=4), settings)
    assert said[0] == said[1] and "a finished run of" in said[0] and "64 visits" in said[0]
    assert len(sgoif.load(settings["out"]).visits["id"]) == 4 * 16
    worlds.run(2, trained, Recipe(steps=2), settings | {"overwrite": True})
    run = sgoif.load(settings["out"])
    assert len(run.visits["id"]) == 2 * 16 and run.info["dropped_rows"] == 0
    assert {path.name[:12] for path in (tmp_path / "run" / "visits").rglob("*.parquet")} == {"attempt-0001"}


def test_all_ranks_hear_of_a_folder_that_cannot_hold_a_run(worlds, tmp_path):
    (tmp_path / "run.json").write_text("{")
    said = worlds.run(2, hear, train, RECIPE, {"out": str(tmp_path)}, timeout_s=60)
    assert said[0] == said[1] and "not valid JSON" in said[0]


def test_rows_that_cannot_be_scored_cost_no_other_rank_and_are_counted(worlds, tmp_path):
    """Before, a label of ignore_index or one bad batch of ids on one rank ended scoring on all."""
    parts = worlds.run(2, with_odd_rows, {"out": str(tmp_path / "run")})
    assert all(part["is_on"] for part in parts)
    assert parts[0]["faults"] == {} and len(parts[1]["faults"]) == 1
    counters = parts[0]["info"]["counters"]
    for counted, offered in ((counters, 2 * 96), (parts[0]["own"], 96), (parts[1]["own"], 96)):
        ends = sum(counted[f"visits{end}"] for end in ("", "_refused", "_lost", "_waiting"))
        assert counted["visits_offered"] == ends == offered
    assert counters["visits_waiting"] == 0
    assert counters["visits_refused"] == counters["visits_ignored"] + 8
    run = sgoif.load(tmp_path / "run")
    assert len(run.visits["id"]) == counters["visits"] and (run.visits["given_label"] >= 0).all()
