"""A run too large to be held is closed bucket by bucket, with the numbers of one that is held."""

import numpy as np
import pytest

import sgoif
from sgoif import finish
from sgoif.store import RunFiles, merge_evidence
from sgoif.training.judged import judge_run
from tests.training.loops import data, fresh, train, watch

NUM = 400


def closed(folder, *, held, sample):
    """Train, and close from the visits on disk as several processes do, with room for some examples."""
    with pytest.MonkeyPatch.context() as patch:
        room = {"_HELD": held, "_SAMPLE": sample, "_AT_ONCE": 90, "_BUCKET_BYTES": 100_000}
        for name, value in room.items():
            patch.setattr(finish, name, value)
        train_set, holdout = data(num=NUM, held=80, apart=3.0)
        model = fresh()
        monitor = watch(model, holdout, train_size=NUM, out=str(folder), trusted=True, gate="none")
        monitor.recorder.keeps_evidence = False
        train(model, train_set, monitor, epochs=3, batch=40)
        assert monitor.faults == {}
        run = monitor.close()
    order = np.argsort(run.table["id"])
    return run, {name: column[order] for name, column in run.table.items()}, monitor


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Give the run and its table, added up and judged in memory."""
    return closed(tmp_path_factory.mktemp("whole") / "run", held=2_000_000, sample=200_000)[:2]


def test_a_sample_of_all_gives_the_same_run(tmp_path, whole):
    (expected, wanted), (run, found, _) = whole, closed(tmp_path / "run", held=10, sample=NUM)
    assert run.info["num_examples"] == NUM and found.keys() == wanted.keys()
    assert found["no_p_reason"].tolist() == wanted["no_p_reason"].tolist() == [None] * NUM
    for name in wanted.keys() - {"no_p_reason"}:
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-9, atol=1e-12, err_msg=name)
    for name in ("expected_errors", "num_not_judged", "transition"):
        np.testing.assert_allclose(run.info[name], expected.info[name], rtol=1e-9, err_msg=name)
    assert len(run.sql("select * from holdout")) == len(expected.sql("select * from holdout"))


def test_a_smaller_sample_judges_all_and_changes_nothing_but_what_is_learnt(tmp_path, whole):
    wanted, (run, found, monitor) = whole[1], closed(tmp_path / "run", held=10, sample=120)
    assert run.info["num_examples"] == NUM
    learnt = {name for name in wanted if name.startswith(("p_mislabeled", "p_suggested", "suggested", "label_score"))}
    for name in wanted.keys() - learnt:
        np.testing.assert_array_equal(found[name], wanted[name], err_msg=name)
    (visited,) = merge_evidence(RunFiles(run.url), buckets=1)
    sample = np.argsort(visited["id_hash"])[:120]
    scores, engine = monitor.holdout_scores, monitor.engine
    alone = judge_run(
        {name: column[sample] for name, column in visited.items()}, scores.heldout(engine), scores.known_classes(engine)
    )
    p = 1 - found["label_score"][visited["id"]]  # which are 0, 1, 2, ...
    np.testing.assert_allclose(p, alone.judge(visited).p, rtol=1e-9)


def test_where_it_cannot_be_written_the_rest_of_the_run_is(tmp_path, monkeypatch, caplog):
    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr("sgoif.store.editions._write_part", full)
    monkeypatch.setattr(sgoif.Run, "table", {"id": np.zeros(0)})
    run, *_ = closed(tmp_path / "run", held=10, sample=120)
    assert "no space left" in caplog.text and run.info["state"] == "finished"
    assert len(run.visits["id"]) == 3 * NUM and len(run.sql("select * from holdout"))


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("steps", [0, 1])
def test_a_run_of_no_step_or_one_can_be_asked_everything(tmp_path, on_disk, steps):
    train_set, holdout = data()
    model = fresh()
    monitor = watch(model, holdout, **({"out": str(tmp_path / "run")} if on_disk else {}))
    train(model, train_set, monitor, epochs=steps, batch=48)
    run = monitor.close()
    for opened in [run, sgoif.load(tmp_path / "run")] if on_disk else [run]:
        listed = opened.label_issues()["source"].to_pylist()
        assert len(opened.table["id"]) == listed.count("train") == 48 * steps
        for table in ("examples", "visits", "holdout", "anchors"):
            (count,) = opened.sql(f"select count(*) as n from {table}").to_pydict()["n"]
            assert count == 48 * steps or table not in ("examples", "visits")


def test_examples_whose_every_visit_met_a_shut_gate_are_counted():
    model, (train_set, holdout) = fresh(), data(num=40, held=40)
    monitor = watch(model, holdout, train_size=40, trusted=True)
    train(model, train_set, monitor, epochs=1)
    run = monitor.close()
    assert run.info["num_not_judged"] == (run.table["confidence"] == 0).sum() > 0
