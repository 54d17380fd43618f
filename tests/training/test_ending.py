"""Scripts that end before close(), by themselves, by trouble or by a signal: what they saw is in the run."""

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import sgoif
from sgoif.training import base
from tests.training.loops import data, fresh, train, watch

ROOT = Path(__file__).resolve().parents[2]
ENDINGS = ("", "error", "exit", "forgotten", "forked", "child", "early", "closed", "signal", "own handler")
SCRIPT = """
import gc, json, multiprocessing, os, signal, sys, time, weakref
import torch
import sgoif
import sgoif.store.writer
from tests.training.loops import data, fresh, train
PLAN = sgoif.Plan(refresh_every=10, examples_per_refresh=16, observe_every=2)

def train_one(out, epochs):
    train_set, holdout = data()
    model = fresh()
    monitor = sgoif.watch(model, anchors=holdout, train_size=48, plan=PLAN, out=out)
    train(model, train_set, monitor, epochs=epochs)
    return monitor

def run(ending, out, ready):
    if ending == "own handler":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    monitor = train_one(out, 4)  # 16 steps of 12; visits of the last ones wait for a refresh
    if ending == "error":
        raise ValueError("the user's own")
    if ending == "exit":
        sys.exit(5)
    if ending == "early":
        monitor.second = train_one(out + "-early", 1)
    if ending == "closed":
        monitor.close()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if ending == "forgotten":
        kept = weakref.ref(monitor)
        del monitor
        gc.collect()
        assert kept() is None  # and with it the model
        time.sleep(1)  # the sink's thread writes what it was given
    if ending == "forked" and os.fork() == 0:
        sys.exit(0)  # runs what is registered for the end of a process
    if ending in ("signal", "own handler"):
        os.write(ready, b"!")
        time.sleep(60)
    if ending == "child":
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        child.start()
        child.terminate()
        child.join(20)
        assert child.exitcode == -signal.SIGTERM, child.exitcode
    return monitor if ending != "forgotten" else None

folder, *endings = sys.argv[1:]
train_one(f"{folder}/first", 1).close()  # imports what the processes below have then
codes = {}
for ending in endings:
    waits, ready = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(f"{folder}/{ending}.log", os.O_WRONLY | os.O_CREAT), 2)
        kept = run(ending, f"{folder}/{ending or 'plain'}", ready)
        break  # the interpreter ends by itself
    if ending in ("signal", "own handler"):
        os.read(waits, 1)
        os.kill(pid, signal.SIGTERM)
    codes[ending] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
else:
    print(json.dumps(codes))
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """Scripts that ended in every way: their folder, and by ending the exit code and what was said."""
    folder = tmp_path_factory.mktemp("ended")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder), *ENDINGS], env=environment, capture_output=True, timeout=240
    )
    codes = json.loads(done.stdout)
    return folder, {ending: (codes[ending], (folder / f"{ending}.log").read_text()) for ending in ENDINGS}


@pytest.mark.parametrize(
    ("ending", "code"),
    [("", 0), ("error", 1), ("exit", 5), ("forked", 0), ("child", 0), ("forgotten", 0), ("early", 0)],
)
def test_a_script_that_ends_without_close_loses_no_visit(ended, ending, code):
    folder, told = ended
    assert told[ending][0] == code, told[ending]
    run = sgoif.load(folder / (ending or "plain"))
    assert len(run.visits["id"]) == 16 * 12
    assert run.info["state"] == "unclosed" and run.info["dropped_rows"] == 0 and run.info["next_step"] == 16
    if ending not in ("forgotten", "early"):
        assert told[ending][1].count("without monitor.close()") == 1


def test_a_script_that_ends_before_its_first_refresh_is_written_too(ended):
    assert len(sgoif.load(ended[0] / "early-early").visits["id"]) == 48


def test_a_closed_monitor_leaves_nothing_behind(ended):
    folder, told = ended
    assert told["closed"][0] == 0, told["closed"]
    assert sgoif.load(folder / "closed").info["state"] == "finished"
    assert "without monitor.close()" not in told["closed"][1]


def test_sigterm_writes_what_there_is_and_ends_the_process_as_it_would_have(ended):
    folder, told = ended
    assert told["signal"][0] == -signal.SIGTERM, told["signal"]
    run = sgoif.load(folder / "signal")
    assert len(run.visits["id"]) == 16 * 12 and run.info["state"] == "unclosed"


def test_a_handler_of_the_users_own_is_left_alone(ended):
    folder, told = ended
    assert told["own handler"][0] == 7, told["own handler"]  # by sys.exit: the visits are written at exit
    assert len(sgoif.load(folder / "own handler").visits["id"]) == 16 * 12


def test_a_monitor_that_is_forgotten_leaves_its_visits_and_no_thread(tmp_path):
    train_set, holdout = data()
    model, before = fresh(), set(threading.enumerate())
    monitor = watch(model, holdout, out=str(tmp_path / "run"))
    train(model, train_set, monitor)
    writing = [thread for thread in set(threading.enumerate()) - before if thread.name == "sgoif-store"]
    assert len(writing) == 1
    del monitor
    gc.collect()
    writing[0].join(timeout=20)
    assert not writing[0].is_alive()
    run = sgoif.load(tmp_path / "run")
    assert run.info["state"] == "unclosed" and len(run.visits["id"]) == 144


def test_visits_do_not_wait_for_a_refresh_longer_than_half_a_minute(tmp_path, monkeypatch):
    train_set, holdout = data()
    model, plan = fresh(), sgoif.Plan(refresh_every=1000, examples_per_refresh=16, observe_every=2)
    monitor = watch(model, holdout, out=str(tmp_path / "run"), plan=plan)
    train(model, train_set, monitor, epochs=1)
    recorded = monitor.recorder.num_visits
    monkeypatch.setattr(base, "_FLUSH_EVERY_S", 0.0)
    train(model, train_set, monitor, epochs=1)
    assert recorded == 12 and monitor.recorder.num_visits == 7 * 12  # at the first step is a refresh
    assert len(monitor.close().visits["id"]) == 8 * 12


def test_when_visits_are_recorded_changes_no_score(tmp_path, monkeypatch):
    runs = []
    for pause in (30.0, 0.0):
        monkeypatch.setattr(base, "_FLUSH_EVERY_S", pause)
        train_set, holdout = data()
        model = fresh()
        monitor = watch(model, holdout, out=str(tmp_path / str(pause)))
        train(model, train_set, monitor)
        runs.append(monitor.close().sql("select * exclude (attempt) from visits order by step, id"))
    assert runs[0].equals(runs[1])
    assert runs[0].num_rows == 144


def test_a_folder_that_is_deleted_while_the_training_goes_on_costs_visits_that_are_counted(tmp_path, caplog):
    train_set, holdout = data()
    model = fresh()
    monitor = watch(model, holdout, out=str(tmp_path / "run"))
    train(model, train_set, monitor, epochs=2)
    monitor.flush()
    monitor.recorder.sink.checkpoint()
    shutil.rmtree(tmp_path / "run")
    train(model, train_set, monitor, epochs=1)
    run = monitor.close()
    assert len(run.table["id"]) == 48 and run.table["n_visits"].sum() == 144  # added up in memory
    lost = run.info["dropped_rows"]
    assert len(run.visits["id"]) == 48 and lost >= 96  # and what the log of anchors had
    assert "deleted while it went on" in str(run.info["writing_faults"])
    assert f"{lost} rows are not in the run on disk" in caplog.text
