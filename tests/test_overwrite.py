"""A run is never hidden: a folder that holds one is refused, unless it is resumed, overwritten or started again."""

import copy
import json
import shutil
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import sgoif
from sgoif.errors import SgoifError
from tests.training.loops import data, fresh, train, watch
from tests.training.multilabel import worlds as tags
from tests.training.twins import in_forked_child


def steps(monitor, model, train_set, count=3):
    pixels, labels = train_set
    for _ in range(count):
        with monitor.step(torch.arange(12), labels[:12]):
            F.cross_entropy(model(pixels[:12]), labels[:12]).backward()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder that holds a finished run of 48 examples, and a file of somebody else; and the monitor's last state."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    train_set, holdout = data()
    model = fresh()
    monitor = watch(model, holdout, out=str(folder))
    train(model, train_set, monitor)
    state = copy.deepcopy(monitor.state_dict())
    monitor.close()
    (folder / "notes.txt").write_text("mine")
    (folder / "visits" / "mine.parquet").write_text("mine")
    return folder, state


@pytest.fixture
def held(finished, tmp_path):
    """A copy of that folder, the data, and the state."""
    shutil.copytree(finished[0], tmp_path / "run")
    return str(tmp_path / "run"), *data(), copy.deepcopy(finished[1])


def test_watch_refuses_a_folder_that_holds_a_run(held):
    out, train_set, holdout, _ = held
    model = fresh()
    monitor = watch(model, holdout, out=out)
    with pytest.raises(SgoifError) as refused:
        steps(monitor, model, train_set)
    said = str(refused.value)
    assert out in said and "a finished run of 48 examples and 144 visits" in said
    assert all(way in said for way in ("another folder with out=", "overwrite=True", "load_state_dict"))
    # whoever goes on regardless gets a run in memory, and the old one is as it was
    run = monitor.close()
    assert run.url is None and "holds a finished run" in str(run.info["writing_faults"])
    assert len(sgoif.load(out).table["id"]) == 48


def test_an_unfinished_run_is_refused_as_well_and_two_monitors_do_not_share_a_folder(tmp_path):
    train_set, holdout = data()
    models = [fresh(), fresh()]
    monitors = [watch(model, holdout, out=str(tmp_path)) for model in models]
    steps(monitors[0], models[0], train_set)
    monitors[0].flush()
    monitors[0].recorder.sink.checkpoint()
    with pytest.raises(SgoifError, match="an unfinished run of 0 examples and 36 visits"):
        steps(monitors[1], models[1], train_set)
    assert len(monitors[0].close().visits["id"]) == 36


def test_overwrite_deletes_the_old_run_and_nothing_else(held, tmp_path):
    out, train_set, holdout, _ = held
    model = fresh()
    monitor = watch(model, holdout, out=out, overwrite=True)
    assert len(sgoif.load(out).table["id"]) == 48  # until the new run begins
    steps(monitor, model, train_set)
    run = monitor.close()
    assert sorted(run.table["id"]) == list(range(12)) and len(run.visits["id"]) == 36
    assert [item["start_step"] for item in run.info["attempts"]] == [0]
    parts = [path.name for path in (tmp_path / "run" / "visits").rglob("attempt-*.parquet")]
    assert parts and all(name.startswith("attempt-0001") for name in parts)
    assert (tmp_path / "run" / "notes.txt").read_text() == (tmp_path / "run" / "visits" / "mine.parquet").read_text()


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_resumed_run_goes_on_where_it_was(held, overwrite):
    out, train_set, holdout, state = held
    model = fresh()
    monitor = watch(model, holdout, out=out, overwrite=overwrite)  # left in the script: a resumed run stays
    monitor.load_state_dict(state)
    steps(monitor, model, train_set)
    assert len(monitor.close().visits["id"]) == 144 + 36


@pytest.mark.parametrize("is_finished", [True, False])
def test_torchrun_starts_its_own_run_again_but_hides_no_finished_one(held, monkeypatch, is_finished):
    out, train_set, holdout, _ = held
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    if not is_finished:
        file = Path(out, "run.json")
        file.write_text(json.dumps({**json.loads(file.read_text()), "state": "running"}))
    model = fresh()
    monitor = watch(model, holdout, out=out)
    if is_finished:
        with pytest.raises(SgoifError, match="holds a finished run"):
            steps(monitor, model, train_set)
    else:
        steps(monitor, model, train_set)
        assert len(monitor.close().visits["id"]) == 36


def test_audit_refuses_and_overwrites(held):
    out, train_set, holdout, _ = held
    with pytest.raises(SgoifError, match=r"a finished run of 48 examples.*overwrite=True to delete that run and start"):
        sgoif.audit(fresh(), train_set, anchors=holdout, out=out)
    assert sgoif.load(out).info["kind"] == "watch"
    run = sgoif.audit(fresh(), train_set, anchors=holdout, out=out, overwrite=True)
    assert run.info["kind"] == "audit" and len(run.visits["id"]) == 48


def test_multilabel_refuses_resumes_and_overwrites(held):
    out, (inputs, given, _, holdout), model = held[0], tags.data(), tags.fresh()
    with pytest.raises(SgoifError, match="holds a finished run"):
        sgoif.audit(model, (inputs, given), anchors=holdout, out=out, task="multilabel")
    monitor = tags.watch(model, holdout, out=out, overwrite=True)
    tags.train(model, inputs, given, monitor, epochs=1)
    state = copy.deepcopy(monitor.state_dict())
    assert monitor.close().info["task"] == "multilabel"
    again = tags.watch(model, holdout, out=out)
    again.load_state_dict(state)
    tags.train(model, inputs, given, again, epochs=1)
    assert again.close().url is not None


def test_a_forked_copy_closes_at_once_and_writes_nothing(tmp_path):
    train_set, holdout = data()
    model = fresh()
    monitor = watch(model, holdout, out=str(tmp_path / "run"))
    train(model, train_set, monitor, epochs=2)
    monitor.flush()
    monitor.recorder.sink.checkpoint()

    def child():  # as a worker does that got the monitor by accident
        steps(monitor, model, train_set)
        assert monitor.close() is None and not monitor.is_on

    assert in_forked_child(child) == 0
    assert sgoif.load(str(tmp_path / "run")).info["state"] == "running"
    train(model, train_set, monitor, epochs=1)
    run = monitor.close()
    assert len(run.visits["id"]) == 144 and run.info["dropped_rows"] == 0 and run.info["faults"] == {}
