"""A training of a language model that ends without close(): what it had seen is on disk, and can be added up."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import sgoif
from sgoif import closing
from sgoif.closing import close_run
from sgoif.errors import SgoifError, StoreError
from tests.cli.runs import invoke
from tests.training.sequences.loops import start, train

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = """
import os, signal, sys
from sgoif.training import base
from tests.training.sequences.loops import start, train
base._FLUSH_EVERY_S = 0.0
for ending in ("SIGKILL", "SIGTERM"):  # of forks, which need not import everything again
    if os.fork() == 0:
        parts = start(out=f"{sys.argv[1]}/{ending}")
        train(*parts, steps=7)
        if ending == "SIGKILL":
            parts[2].state_dict()
            train(*parts, steps=2)  # on disk half a minute later
        os.kill(os.getpid(), getattr(signal, ending))
        signal.pause()
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""


def write_what_there_is(monitor):
    monitor.flush()
    monitor.sink.checkpoint()


def told(run):
    return " ".join(run.summary().lines())


def assert_same(first, second, **how):
    """Compare the tables of two runs; numbers as numpy does with ``how``."""
    for table, order in (("examples", "id"), ("group_effects", "id, group_name")):
        one, two = (run.sql(f"select * from {table} order by {order}") for run in (first, second))
        assert set(one.column_names) == set(two.column_names) and len(one) == len(two) > 0
        for name in set(one.column_names) - {"no_p_reason"}:
            if pa.types.is_floating(one[name].type):
                np.testing.assert_allclose(one[name].to_numpy(), two[name].to_numpy(), err_msg=name, **how)
            else:
                assert one[name].to_pylist() == two[name].to_pylist(), name


def test_a_run_that_goes_on_is_added_up_and_then_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(closing, "_AT_ONCE", 4)  # in pieces: nothing in the first one has a group that it hurts most
    model, optimizer, monitor = start(out=tmp_path / "run")
    train(model, optimizer, monitor, steps=3)
    write_what_there_is(monitor)
    assert close_run(tmp_path / "run") == len(monitor.recorder.index) > 4
    so_far = sgoif.load(tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "kept")
    assert "without monitor.close()" in told(so_far) and "steps 0 to 2" in told(so_far)
    monitor.sink.write_info({})
    monitor.sink.checkpoint()  # the training writes on, and the note stays as long as the table does
    assert "steps 0 to 2" in told(sgoif.load(tmp_path / "run"))
    assert so_far.sequence_issues(by="harm").num_rows == len(monitor.recorder.index)

    run = monitor.close()
    assert "without monitor.close()" not in told(run) and "added_up" not in run.info
    assert_same(sgoif.load(tmp_path / "kept"), run, rtol=0)  # the visits keep the precision that they were scored in
    with pytest.raises(SgoifError, match="closed already"):
        close_run(tmp_path / "run")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Give the run of a training that is closed."""
    model, optimizer, monitor = start(out=tmp_path_factory.mktemp("whole") / "run")
    train(model, optimizer, monitor)
    return monitor.close()


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Give the folder of the runs of two processes that were ended by a signal."""
    folder, environment = tmp_path_factory.mktemp("killed"), {**os.environ, "PYTHONPATH": f"{ROOT}/src:{ROOT}"}
    command = [sys.executable, "-c", SCRIPT, str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, timeout=300)
    assert done.stdout.split() == ["-9", "-15"] and "Traceback" not in done.stderr, done.stderr
    return folder


@pytest.mark.parametrize("ending", ["SIGKILL", "SIGTERM"])
def test_what_a_process_had_seen_that_was_killed_is_added_up_by_a_command(tmp_path, ending, killed, whole):
    out = killed / ending
    assert f"sgoif close {out}" in " ".join(invoke("info", out).stdout.split())
    done = invoke("close", out)
    assert done.exit_code == 0 and f"{len(whole.table['id'])} examples" in done.stdout, done.stderr
    assert_same(whole, sgoif.load(out), rtol=1e-5, atol=1e-7)
    for command in (["issues"], ["report", "--out", tmp_path / "page.html"], ["info"]):
        assert invoke(command[0], out, *command[1:]).exit_code == 0


def test_what_a_killed_attempt_repeats_is_counted_once(tmp_path):
    model, optimizer, first = start(out=tmp_path / "run")
    train(model, optimizer, first, steps=4)
    state = first.state_dict()
    train(model, optimizer, first, steps=3, seed=1)  # which the next attempt repeats
    first.flush()
    first.sink.end(5.0)
    model, optimizer, second = start(out=tmp_path / "run")
    second.load_state_dict(state)
    train(model, optimizer, second, steps=5, seed=2)
    write_what_there_is(second)
    close_run(tmp_path / "run")
    added, expected = sgoif.load(tmp_path / "run"), second.recorder.examples()
    assert added.table["n_visits"].sum() == 9 * 4 == second.recorder.num_visits
    found = added.sql("select harm from examples order by id")["harm"].to_numpy()
    np.testing.assert_allclose(found, expected["harm"][np.argsort(expected["id"])], rtol=1e-6)


def test_a_training_that_is_closed_meanwhile_keeps_its_own_result(tmp_path, monkeypatch):
    model, optimizer, monitor = start(out=tmp_path / "run")
    train(model, optimizer, monitor, steps=4)
    write_what_there_is(monitor)
    write, runs = closing.write_parts, []

    def close_first(*args, **settings):
        if not runs:
            train(model, optimizer, monitor, steps=3)
            runs.append(monitor.close())
        return write(*args, **settings)

    monkeypatch.setattr(closing, "write_parts", close_first)
    with pytest.raises(SgoifError, match="ended or began"):
        close_run(tmp_path / "run")
    run = sgoif.load(tmp_path / "run")
    assert run.files.is_finished and run.table["n_visits"].sum() == 7 * 4 == runs[0].table["n_visits"].sum()
    parts = [path.name for path in (tmp_path / "run/examples").rglob("*.parquet")]
    assert parts == ["edition-0001-part-000000.parquet"]


def test_a_folder_that_can_be_written_later_only_is_added_up_all_the_same(tmp_path, monkeypatch):
    from sgoif.store import writer

    model, optimizer, monitor = start(out=tmp_path / "run")
    real, calls = writer.ParquetSink, []

    def fail_first(*args, **settings):
        calls.append(1)
        if len(calls) == 1:
            raise StoreError("the disk is not there yet")
        return real(*args, **settings)

    monkeypatch.setattr(writer, "ParquetSink", fail_first)
    monkeypatch.setattr(writer, "_REST_S", 0.0)
    train(model, optimizer, monitor, steps=1)
    monitor.flush()
    train(model, optimizer, monitor, steps=3)
    write_what_there_is(monitor)
    assert close_run(tmp_path / "run") > 0 and len(calls) == 2
    assert sgoif.load(tmp_path / "run").has_sequences


def test_one_bad_step_does_not_cost_the_others_at_the_end_of_a_process(tmp_path):
    model, optimizer, monitor = start(out=tmp_path / "run")
    train(model, optimizer, monitor, steps=1)
    monitor.flush()
    train(model, optimizer, monitor, steps=2)
    waiting = monitor.recorder._waiting
    waiting[0] = replace(waiting[0], ids=np.array([0.5] * 4))
    number = len(waiting)
    with pytest.raises(SgoifError):
        monitor._flush_at_end()
    monitor.sink.end(5.0)
    close_run(tmp_path / "run")
    assert sgoif.load(tmp_path / "run").table["n_visits"].sum() == 2 * 4 and number == 2


def test_a_label_run_that_is_resumed_and_closed_has_no_word_of_it(tmp_path):
    from tests.training import loops

    train_set, holdout = loops.data()
    model = loops.fresh()
    first = loops.watch(model, holdout, 48, out=str(tmp_path / "run"))
    loops.train(model, train_set, first, epochs=1)
    state = first.state_dict()
    assert close_run(tmp_path / "run") == 48
    assert "without monitor.close()" in told(sgoif.load(tmp_path / "run"))
    second = loops.watch(model, holdout, 48, out=str(tmp_path / "run"))
    second.load_state_dict(state)
    loops.train(model, train_set, second, epochs=1)
    assert "without monitor.close()" not in told(second.close())


def test_visits_can_be_left_unwritten(tmp_path):
    model, optimizer, monitor = start(out=tmp_path / "run", budget={"keep_visits": "none"})
    train(model, optimizer, monitor)
    run = monitor.close()
    assert run.table["n_visits"].sum() == 7 * 4 and run.sql("select * from sequence_visits").num_rows == 0
