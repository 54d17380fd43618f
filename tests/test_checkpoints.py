"""The training of docs/checkpoints.md, killed in the middle of an epoch and started again, is the unbroken one."""

import re
from pathlib import Path

import numpy as np
import torch

import sgoif
from sgoif.training.monitor import Monitor

ROOT = Path(__file__).resolve().parents[1]
EXACT = ("id", "step", "epoch", "given_label", "harm", "worst", "confidence", "probe_margin", "harm_std", "worst_std")


class Killed(BaseException):
    """Nothing catches it."""


def run_page(folder, monkeypatch, killed_at=None):
    """Run the page's code in a folder, to its end or until some step."""
    monkeypatch.chdir(folder)
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/checkpoints.md").read_text(), re.S)
    assert "num_workers=2" in block  # processes of their own draw the examples
    step, steps = Monitor.step, []

    def counted(self, *arguments):
        if len(steps) == killed_at:
            raise Killed
        steps.append(None)
        return step(self, *arguments)

    names = {"__name__": "__main__"}
    with monkeypatch.context() as patched:
        patched.setattr(Monitor, "step", counted)
        try:
            exec(compile(block, "checkpoints.md", "exec"), names)
        except Killed:
            names["monitor"].recorder.sink.checkpoint()  # the disk may have more than the checkpoint
    return names, len(steps)


def visits_of(folder):
    run = sgoif.load(folder / "runs/resumed")
    order = np.lexsort((run.visits["id"], run.visits["step"]))
    return run, {name: run.visits[name][order] for name in (*EXACT, "attempt")}


def test_a_training_that_is_killed_in_mid_epoch_ends_as_the_unbroken_one(tmp_path, monkeypatch, capsys):
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    unbroken.mkdir()
    broken.mkdir()
    whole, num_steps = run_page(unbroken, monkeypatch)
    per_epoch = num_steps // 3
    killed_at = per_epoch + 8
    assert killed_at % per_epoch and killed_at % 8
    run_page(broken, monkeypatch, killed_at=killed_at)
    again, steps_left = run_page(broken, monkeypatch)
    assert steps_left == num_steps - killed_at // 8 * 8

    for key, value in whole["model"].state_dict().items():
        assert torch.equal(value, again["model"].state_dict()[key]), key
    (expected, wanted), (found, given) = visits_of(unbroken), visits_of(broken)
    assert set(given.pop("attempt")) == {0, 1} and set(wanted.pop("attempt")) == {0}
    for name, column in wanted.items():
        np.testing.assert_array_equal(given[name], column, err_msg=name)
    assert (found.table["n_visits"] == 3).all() and len(found.table["id"]) == len(expected.table["id"])
    assert found.info["counters"]["visits"] == expected.info["counters"]["visits"]
