"""A training of a language model that ends without close(): what it had seen is on disk, and can be added up."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

import sgoif
from sgoif import closing
from sgoif.closing import close_run
from sgoif.errors import SgoifError, StoreError
from tests.cli.runs import invoke
from tests.language_models import build
from tests.training.sequences.test_sequence_monitor import COUNT, PLAN, adam, groups, train

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = """
import os, sys
import torch
from sgoif.training import base
base._FLUSH_EVERY_S = 0.0
from tests.language_models import build
from tests.training.sequences.test_unclosed import adam, train, watch
model = build("gpt2", lora=True)
optimizer = adam(model)
monitor = watch(model, sys.argv[1], optimizer)
train(model, optimizer, monitor, steps=7)
if sys.argv[2] == "error":
    raise ValueError("the user's own")
if sys.argv[2] == "kill":
    monitor.state_dict()
    train(model, optimizer, monitor, steps=2)  # on disk half a minute later
print("ready", flush=True)
sys.stdin.read()
"""


def watch(model, out, optimizer=None, **budget):
    return sgoif.watch(
        model, optimizer, anchors=groups(), train_size=COUNT, task="sequences", out=str(out),
        budget=sgoif.Budget(plan=PLAN, **budget),
    )  # fmt: skip


def assert_same(first, second, names=None):
    for table, keys in (("examples", ["id"]), ("group_effects", ["id", "group_name"])):
        one, two = (
            run.sql(f"select * from {table}").sort_by([(key, "ascending") for key in keys]) for run in (first, second)
        )
        assert set(one.column_names) == set(two.column_names) and len(one) == len(two) > 0
        for name in one.column_names:
            if pa.types.is_floating(one[name].type):
                np.testing.assert_allclose(one[name].to_numpy(), two[name].to_numpy(), rtol=1e-5, atol=1e-7)
            else:
                assert one[name].to_pylist() == two[name].to_pylist(), name


def test_a_run_that_goes_on_is_added_up_and_then_closed(tmp_path):
    model = build("gpt2", lora=True)
    monitor = watch(model, tmp_path / "run", adam(model))
    train(model, adam(model), monitor)
    monitor.flush()
    monitor.sink.checkpoint()
    assert close_run(tmp_path / "run") == len(monitor.recorder.index)
    so_far = sgoif.load(tmp_path / "run")
    kept = {name: so_far.sql(f"select * from {name}") for name in ("examples", "group_effects")}
    assert "without monitor.close()" in (told := " ".join(so_far.summary().lines())) and "steps 0 to 6" in told
    monitor.sink.write_info({})
    monitor.sink.checkpoint()  # the training writes on, and the note stays as long as the table does
    assert "steps 0 to 6" in " ".join(sgoif.load(tmp_path / "run").summary().lines())
    assert so_far.sequence_issues(by="harm").num_rows == len(monitor.recorder.index)

    run = monitor.close()
    assert "without monitor.close()" not in " ".join(run.summary().lines()) and "added_up" not in run.info
    for name, columns in kept.items():  # to the bit: the visits keep the precision that they were scored in
        keys = [("id", "ascending"), ("group_name", "ascending")][: 1 + (name == "group_effects")]
        one, two = columns.sort_by(keys), run.sql(f"select * from {name}").sort_by(keys)
        for column in set(two.column_names) - {"no_p_reason"}:
            assert one[column].to_pylist() == two[column].to_pylist(), column
    with pytest.raises(SgoifError, match="closed already"):
        close_run(tmp_path / "run")


@pytest.mark.parametrize("ending", ["kill", "term", "error"])
def test_what_a_process_had_seen_that_was_killed_is_added_up_by_a_command(tmp_path, ending):
    torch.manual_seed(0)
    model = build("gpt2", lora=True)
    optimizer = adam(model)
    monitor = watch(model, tmp_path / "whole", optimizer)
    train(model, optimizer, monitor, steps=7)
    whole = monitor.close()

    out = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(out), ending], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": f"{ROOT}/src:{ROOT}"},
    )  # fmt: skip
    if ending != "error":
        assert process.stdout.readline() == "ready\n", process.stderr.read()
        process.send_signal(signal.SIGKILL if ending == "kill" else signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert "Traceback" not in said or ending == "error"
    shown = invoke("info", out)
    assert f"sgoif close {out}" in " ".join(shown.stdout.split()).replace("close /", "close /"), shown.stdout
    done = invoke("close", out)
    assert done.exit_code == 0 and f"{len(whole.table['id'])} examples" in done.stdout, done.stderr
    assert_same(whole, sgoif.load(out))
    for command in (["issues"], ["report", "--out", tmp_path / "page.html"], ["info"]):
        assert invoke(command[0], out, *command[1:]).exit_code == 0


def test_what_a_killed_attempt_repeats_is_counted_once(tmp_path):
    torch.manual_seed(0)
    model = build("gpt2", lora=True)
    optimizer = adam(model)
    first = watch(model, tmp_path / "run", optimizer)
    train(model, optimizer, first, steps=4)
    state = first.state_dict()
    train(model, optimizer, first, steps=3, seed=1)  # which the next attempt repeats
    first.flush()
    first.sink.end(5.0)
    second = watch(model, tmp_path / "run", optimizer)
    second.load_state_dict(state)
    train(model, optimizer, second, steps=5, seed=2)
    second.flush()
    second.sink.checkpoint()
    close_run(tmp_path / "run")
    added = sgoif.load(tmp_path / "run")
    assert added.table["n_visits"].sum() == 9 * 4 == second.recorder.num_visits
    expected = second.recorder.examples()
    order = np.argsort(expected["id"])
    np.testing.assert_allclose(
        added.sql("select harm from examples order by id")["harm"].to_numpy(), expected["harm"][order], rtol=1e-6
    )


def test_a_training_that_is_closed_meanwhile_keeps_its_own_result(tmp_path, monkeypatch):
    model = build("gpt2", lora=True)
    monitor = watch(model, tmp_path / "run", adam(model))
    train(model, adam(model), monitor, steps=4)
    monitor.flush()
    monitor.sink.checkpoint()
    write, runs = closing.write_parts, []

    def close_first(*args, **settings):
        if not runs:
            train(model, adam(model), monitor, steps=3)
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

    model = build("gpt2", lora=True)
    monitor = watch(model, tmp_path / "run", adam(model))
    real, calls = writer.ParquetSink, []

    def fail_first(*args, **settings):
        calls.append(1)
        if len(calls) == 1:
            raise StoreError("the disk is not there yet")
        return real(*args, **settings)

    monkeypatch.setattr(writer, "ParquetSink", fail_first)
    monkeypatch.setattr(writer, "_REST_S", 0.0)
    train(model, adam(model), monitor, steps=1)
    monitor.flush()
    train(model, adam(model), monitor, steps=3)
    monitor.flush()
    monitor.sink.checkpoint()
    assert close_run(tmp_path / "run") > 0 and len(calls) == 2
    assert sgoif.load(tmp_path / "run").has_sequences


def test_one_bad_step_does_not_cost_the_others_at_the_end_of_a_process(tmp_path):
    model = build("gpt2", lora=True)
    monitor = watch(model, tmp_path / "run", adam(model))
    train(model, adam(model), monitor, steps=1)
    monitor.flush()
    train(model, adam(model), monitor, steps=2)
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
    assert "without monitor.close()" in " ".join(sgoif.load(tmp_path / "run").summary().lines())
    second = loops.watch(model, holdout, 48, out=str(tmp_path / "run"))
    second.load_state_dict(state)
    loops.train(model, train_set, second, epochs=1)
    assert "without monitor.close()" not in " ".join(second.close().summary().lines())


def test_many_sequences_are_written_in_pieces_whatever_is_in_them(tmp_path, monkeypatch):
    monkeypatch.setattr(closing, "_AT_ONCE", 4)
    model = build("gpt2", lora=True)
    monitor = watch(model, tmp_path / "run", adam(model))
    train(model, adam(model), monitor, steps=3)  # those of the first step alone have no group that they hurt most
    monitor.flush()
    monitor.sink.checkpoint()
    assert close_run(tmp_path / "run") == len(monitor.recorder.index) > 4


def test_visits_can_be_left_unwritten(tmp_path):
    model = build("gpt2", lora=True)
    monitor = watch(model, tmp_path / "run", adam(model), keep_visits="none")
    train(model, adam(model), monitor)
    monitor.flush()
    run = monitor.close()
    assert run.table["n_visits"].sum() == 7 * 4 and run.sql("select * from sequence_visits").num_rows == 0
    for wrong, told in (("last", "all visits or none"), ("non", "must be one of all, last, none")):
        with pytest.raises(SgoifError, match=told):
            watch(model, tmp_path / "other", adam(model), keep_visits=wrong)


def test_the_losses_of_a_sequence_over_its_visits_can_be_read(tmp_path):
    model = build("gpt2", lora=True)
    monitor = watch(model, tmp_path / "run", adam(model))
    train(model, adam(model), monitor)
    run = monitor.close()
    visits = run.sql("select * from sequence_visits order by step")
    assert len(visits) == 7 * 4 and visits["harm"].null_count == 4  # the first step comes before the first look
    last = dict(zip(visits["id"].to_pylist(), visits["loss"].to_pylist()))
    table = run.sql("select id, loss_last from examples")
    assert last == pytest.approx(dict(zip(table["id"].to_pylist(), table["loss_last"].to_pylist())), rel=1e-6)
