"""Scripts that end before close(), by themselves, by trouble or by a signal: what they saw is in the run."""

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest

import sgoif
from sgoif.training import base
from tests.training.loops import data, train, train_watched

ROOT = Path(__file__).resolve().parents[2]
ENDINGS = ("error", "forked", "child", "early", "closed", "signal", "own handler")
SCRIPT = """
import gc, json, multiprocessing, os, signal, sys, time
import sgoif
import sgoif.store.writer
from tests.training.loops import train_watched

def train_one(out, epochs):
    plan = sgoif.Plan(refresh_every=10, examples_per_refresh=16, observe_every=2)
    return train_watched(epochs=epochs, plan=plan, out=out)

def run(ending, out, ready):
    if ending == "own handler":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    monitor = train_one(out, 4)  # 16 steps of 12; visits of the last ones wait for a refresh
    if ending == "error":
        raise ValueError("the user's own")
    if ending == "early":
        monitor.second = train_one(out + "-early", 1)
    if ending == "closed":
        monitor.close()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
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
    return monitor

folder, *endings = sys.argv[1:]
train_one(f"{folder}/first", 1).close()  # imports what the processes below have then
gc.freeze()  # what ends below need not look at all of torch again
codes = {}
for ending in endings:
    waits, ready = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(f"{folder}/{ending}.log", os.O_WRONLY | os.O_CREAT), 2)
        kept = run(ending, f"{folder}/{ending}", ready)
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
    [
        ("error", 1),
        ("forked", 0),
        ("child", 0),
        ("early", 0),
        ("signal", -signal.SIGTERM),
        ("own handler", 7),  # by sys.exit: the visits are written at exit
    ],
)
def test_a_script_that_ends_without_close_loses_no_visit_and_ends_as_it_would_have(ended, ending, code):
    folder, told = ended
    assert told[ending][0] == code, told[ending]
    run = sgoif.load(folder / ending)
    assert len(run.visits["id"]) == 16 * 12
    assert run.info["state"] == "unclosed" and run.info["dropped_rows"] == 0 and run.info["next_step"] == 16
    if ending not in ("early", "signal"):
        assert told[ending][1].count("without monitor.close()") == 1
    if ending == "early":  # the second monitor of a script, before its first refresh
        assert len(sgoif.load(folder / "early-early").visits["id"]) == 48


def test_a_closed_monitor_leaves_nothing_behind(ended):
    folder, told = ended
    assert told["closed"][0] == 0, told["closed"]
    assert sgoif.load(folder / "closed").info["state"] == "finished"
    assert "without monitor.close()" not in told["closed"][1]


def test_a_monitor_that_is_forgotten_leaves_its_visits_and_no_thread(tmp_path):
    before = set(threading.enumerate())
    monitor = train_watched(out=str(tmp_path / "run"))
    writing = [thread for thread in set(threading.enumerate()) - before if thread.name == "sgoif-store"]
    assert len(writing) == 1
    kept = weakref.ref(monitor)
    del monitor
    gc.collect()
    assert kept() is None  # and with it the model
    writing[0].join(timeout=20)
    assert not writing[0].is_alive()
    run = sgoif.load(tmp_path / "run")
    assert run.info["state"] == "unclosed" and len(run.visits["id"]) == 144


def test_visits_do_not_wait_for_a_refresh_longer_than_half_a_minute_and_score_the_same(tmp_path, monkeypatch):
    plan, runs = sgoif.Plan(refresh_every=1000, examples_per_refresh=16, observe_every=2), []
    for pause in (30.0, 0.0):
        monkeypatch.setattr(base, "_FLUSH_EVERY_S", pause)
        monitor = train_watched(epochs=2, out=str(tmp_path / str(pause)), plan=plan)
        assert monitor.recorder.num_visits == (12 if pause else 7 * 12)  # at the first step is a refresh
        runs.append(monitor.close().sql("select * exclude (attempt) from visits order by step, id"))
    assert runs[0].equals(runs[1]) and runs[0].num_rows == 8 * 12


def test_a_folder_that_is_deleted_while_the_training_goes_on_costs_visits_that_are_counted(tmp_path, caplog):
    monitor = train_watched(epochs=2, out=str(tmp_path / "run"))
    monitor.flush()
    monitor.recorder.sink.checkpoint()
    shutil.rmtree(tmp_path / "run")
    train(monitor.model, data()[0], monitor, epochs=1)
    run = monitor.close()
    assert len(run.table["id"]) == 48 and run.table["n_visits"].sum() == 144  # added up in memory
    lost = run.info["dropped_rows"]
    assert len(run.visits["id"]) == 48 and lost >= 96  # and what the log of anchors had
    assert "deleted while it went on" in str(run.info["writing_faults"])
    assert f"{lost} rows are not in the run on disk" in caplog.text
