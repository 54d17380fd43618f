"""A training of a language model that ends without close(): what it had seen is on disk, and can be added up."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

import sgoif
from sgoif.closing import close_run
from sgoif.errors import SgoifError
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
    assert "before step 7" in so_far.info["warnings"]["not_closed"]
    assert "without monitor.close()" in " ".join(so_far.summary().lines())
    assert so_far.sequence_issues(by="harm").num_rows == len(monitor.recorder.index)

    run = monitor.close()
    assert "not_closed" not in (run.info.get("warnings") or {})
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


def test_visits_can_be_left_unwritten(tmp_path):
    model = build("gpt2", lora=True)
    monitor = watch(model, tmp_path / "run", adam(model), keep_visits="none")
    train(model, adam(model), monitor)
    monitor.flush()
    run = monitor.close()
    assert run.table["n_visits"].sum() == 7 * 4 and run.sql("select * from sequence_visits").num_rows == 0
    with pytest.raises(SgoifError, match="all visits or none"):
        watch(model, tmp_path / "other", adam(model), keep_visits="last")


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
