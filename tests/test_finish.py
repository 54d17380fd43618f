"""A run too large to be held is closed bucket by bucket, with the numbers of one that is held."""

import numpy as np
import pytest

import sgoif
from sgoif import finish
from sgoif.store import RunFiles, merge_evidence
from sgoif.training.calibration import calibrate_run
from tests.training.loops import data, fresh, train, watch

NUM = 400


def closed(folder, monkeypatch, *, held, sample):
    """Train, and close from the visits on disk as several processes do, with room for some examples."""
    monkeypatch.setattr(finish, "_HELD", held)
    monkeypatch.setattr(finish, "_SAMPLE", sample)
    monkeypatch.setattr(finish, "_AT_ONCE", 90)
    monkeypatch.setattr(finish, "_BUCKET_BYTES", 100_000)
    train_set, holdout = data(num=NUM, held=80, apart=3.0)
    model = fresh()
    monitor = watch(model, holdout, train_size=NUM, out=str(folder), trusted=True, gate="none")
    monitor.recorder.keeps_evidence = False
    train(model, train_set, monitor, epochs=3, batch=40)
    assert monitor.faults == {}
    run = monitor.close()
    order = np.argsort(run.table["id"])
    return run, {name: column[order] for name, column in run.table.items()}, monitor


@pytest.fixture
def whole(tmp_path, monkeypatch):
    """Give the run and its table, added up and judged in memory."""
    return closed(tmp_path / "whole", monkeypatch, held=2_000_000, sample=200_000)


def test_a_sample_of_all_gives_the_same_run(tmp_path, monkeypatch, whole):
    (expected, wanted, _), (run, found, _) = whole, closed(tmp_path / "run", monkeypatch, held=10, sample=NUM)
    assert run.info["calibrated_on"] == run.info["num_examples"] == NUM
    assert "calibrated_on" not in expected.info and found.keys() == wanted.keys()
    assert found.pop("no_p_reason").tolist() == wanted.pop("no_p_reason").tolist() == [None] * NUM
    for name, column in wanted.items():
        np.testing.assert_allclose(found[name], column, rtol=1e-9, atol=1e-12, err_msg=name)
    for name in ("expected_errors", "num_not_judged", "transition"):
        np.testing.assert_allclose(run.info[name], expected.info[name], rtol=1e-9, err_msg=name)
    assert len(run.sql("select * from holdout")) == len(expected.sql("select * from holdout"))


def test_a_smaller_sample_judges_all_and_changes_nothing_but_what_is_learnt(tmp_path, monkeypatch, whole):
    wanted, (run, found, monitor) = whole[1], closed(tmp_path / "run", monkeypatch, held=10, sample=120)
    assert run.info["calibrated_on"] == 120 and run.info["num_examples"] == NUM
    learnt = {name for name in wanted if name.startswith(("p_mislabeled", "suggested"))}
    for name in wanted.keys() - learnt:
        np.testing.assert_array_equal(found[name], wanted[name], err_msg=name)
    (visited,) = merge_evidence(RunFiles(run.url), buckets=1)
    sample = np.argsort(visited["id_hash"])[:120]
    alone = calibrate_run(monitor.ledger, {name: column[sample] for name, column in visited.items()}, monitor.engine)
    p = found["p_mislabeled"][visited["id"]]  # which are 0, 1, 2, ...
    np.testing.assert_allclose(p, alone.judge.judge(visited).p_mislabeled, rtol=1e-9)
    np.testing.assert_allclose(p[sample], alone.examples.p_mislabeled, rtol=1e-9)


def test_where_it_cannot_be_written_the_rest_of_the_run_is(tmp_path, monkeypatch, caplog):
    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr("sgoif.store.editions._write_part", full)
    monkeypatch.setattr(sgoif.Run, "table", {"id": np.zeros(0)})
    run, *_ = closed(tmp_path / "run", monkeypatch, held=10, sample=120)
    assert "no space left" in caplog.text and run.info["state"] == "finished"
    assert len(run.visits["id"]) == 3 * NUM and len(run.sql("select * from holdout"))


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("steps", [0, 1])
def test_a_run_of_no_step_or_one_can_be_asked_everything(tmp_path, on_disk, steps):
    train_set, holdout = data()
    model = fresh()
    monitor = watch(model, holdout, **({"out": str(tmp_path / "run")} if on_disk else {}))
    train(model, train_set, monitor if steps else None, epochs=1, batch=48)
    run = monitor.close()
    for opened in [run, sgoif.load(tmp_path / "run")] if on_disk else [run]:
        listed = opened.label_issues()["source"].to_pylist()
        assert len(opened.table["id"]) == listed.count("train") == 48 * steps
        for table in ("examples", "visits", "holdout", "anchors", "canaries"):
            (count,) = opened.sql(f"select count(*) as n from {table}").to_pydict()["n"]
            assert count == 48 * steps or table not in ("examples", "visits")


@pytest.mark.parametrize("keep_visits", ["all", "none"])
def test_a_run_that_is_closed_twice_holds_every_example_once(tmp_path, keep_visits):
    train_set, holdout = data()
    model = fresh()
    monitor = watch(model, holdout, out=str(tmp_path / "run"), keep_visits=keep_visits)
    train(model, train_set, monitor)
    first, second = monitor.close(), monitor.close()
    assert len(first.table["id"]) == len(second.table["id"]) == 48
    read = sgoif.load(tmp_path / "run")
    for table in ("examples", "holdout", "canaries"):
        assert read.sql(f"select count(*) as n from {table}") == first.sql(f"select count(*) as n from {table}")
    assert len(read.table["id"]) == 48


def test_examples_whose_every_visit_met_a_shut_gate_are_counted():
    model, (train_set, holdout) = fresh(), data(num=40, held=40)
    monitor = watch(model, holdout, train_size=40, trusted=True)
    train(model, train_set, monitor, epochs=1)
    run = monitor.close()
    assert run.info["num_not_judged"] == (run.table["confidence"] == 0).sum() > 0
