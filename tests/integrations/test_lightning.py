"""The same training through Lightning and through the plain loop: the same weights, and the same scores to the bit."""

import os
import pickle
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

import sgoif
import tests.integrations.torchvision_operators  # noqa: F401
from sgoif.errors import SgoifError
from tests.integrations.small import (
    BATCH,
    IDS,
    NUM,
    PLAN,
    Net,
    assert_same_scores,
    assert_same_weights,
    fresh,
    in_order,
    pictures,
    plain_run,
    run_windows,
    sgd,
)

pytest.importorskip("lightning")

import lightning.pytorch as L

from sgoif.integrations.lightning import InfluenceCallback

pytestmark = [pytest.mark.data, pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")]
QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}


class Module(L.LightningModule):
    """As anybody would write it: it knows of no ids."""

    skips = -1

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return None if batch_idx == self.skips else F.cross_entropy(self(x), y)

    def validation_step(self, batch, batch_idx):
        F.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self):
        return sgd(self)


class Handmade(Module):
    automatic_optimization = False


def fit(callback, *, make=Module, wrap=None, epochs=3, carries_ids=True, ckpt_path=None, **settings):
    """Train; gives the trainer and the module. Validation runs before, inside and after every epoch."""
    train_set, holdout = pictures()
    module = fresh(make)
    loader = DataLoader(sgoif.with_ids(train_set, IDS) if carries_ids else train_set, BATCH)
    seen = DataLoader(torch.utils.data.TensorDataset(*holdout), 20)
    callbacks = [callback] if callback is not None else []
    trainer = L.Trainer(
        accelerator="cpu", devices=1, max_epochs=epochs, callbacks=callbacks, val_check_interval=2, **QUIET, **settings
    )
    trainer.fit(module if wrap is None else wrap(module), loader, seen, ckpt_path=ckpt_path)
    return trainer, module


def callback(**settings):
    return InfluenceCallback(pictures()[1], budget=sgoif.Budget(plan=PLAN), **settings)


@pytest.mark.parametrize(
    ("accumulate", "precision", "dtype"),
    [(1, "32-true", None), (2, "32-true", None), (2, "bf16-mixed", torch.bfloat16)],
)
def test_scores_are_those_of_the_plain_loop_and_weights_those_of_lightning_alone(accumulate, precision, dtype):
    settings = {"accumulate_grad_batches": accumulate, "precision": precision, "gradient_clip_val": None}
    _, bare = fit(None, carries_ids=False, **settings)
    watching = callback()
    _, module = fit(watching, **settings)
    assert_same_weights(module.state_dict(), bare.state_dict())
    assert watching.monitor.faults == {}
    expected, weights = plain_run(3, accumulate, dtype)
    assert_same_scores(in_order(watching.run.visits), expected)
    assert_same_weights(module.state_dict(), weights)


def test_a_compiled_module():
    wrap = partial(torch.compile, backend="eager")
    torch._dynamo.reset()
    _, bare = fit(None, wrap=wrap, carries_ids=False)  # leaves a graph that knows of no monitor
    watching = callback()
    _, module = fit(watching, wrap=wrap)
    assert_same_weights(module.state_dict(), bare.state_dict())
    assert watching.monitor.faults == {}
    assert_same_scores(in_order(watching.run.visits), plain_run(3, 1, None)[0])


def test_a_resumed_fit_gives_the_scores_of_an_unbroken_one(tmp_path):
    whole = callback(out=str(tmp_path / "whole"))
    fit(whole, epochs=4)
    first = callback(out=str(tmp_path / "parts"))
    trainer, _ = fit(first, epochs=2)
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    second = callback(out=str(tmp_path / "parts"))
    fit(second, epochs=4, ckpt_path=tmp_path / "half.ckpt")
    assert second.monitor.faults == {}
    visits = in_order(second.run.visits)
    assert len(visits["id"]) == 4 * NUM
    assert_same_scores(visits, in_order(whole.run.visits))


def test_a_skipped_batch_is_not_scored_and_the_next_one_is():
    class Skipping(Module):
        skips = 1

    watching = callback()
    fit(watching, make=Skipping, epochs=2)
    assert watching.monitor.faults == {}
    assert len(watching.run.visits["id"]) == 2 * (NUM - BATCH)


def test_optimising_by_hand_and_batches_without_ids_are_refused():
    with pytest.raises(SgoifError, match="optimises by hand"):
        fit(callback(), make=Handmade)
    with pytest.raises(SgoifError, match="wrap the training set"):
        fit(callback(), carries_ids=False)


def test_switched_off_by_the_environment_it_only_takes_the_ids_out(monkeypatch):
    monkeypatch.setenv("SGOIF_DISABLE", "1")
    watching = callback()
    trainer, _ = fit(watching, epochs=1)
    assert trainer.global_step == NUM // BATCH
    assert len(watching.run.table["id"]) == 0


@pytest.mark.parametrize(("is_sent", "precision"), [(True, "32-true"), (False, "bf16-true")])
def test_a_callback_is_sent_to_processes_and_a_true_precision_to_the_hold_out(is_sent, precision):
    """``ddp_spawn`` pickles the callback."""
    watching = pickle.loads(pickle.dumps(callback())) if is_sent else callback()
    fit(watching, epochs=1, precision=precision)
    assert watching.monitor.faults == {}
    assert len(watching.run.visits["id"]) == NUM


def test_two_processes_write_one_run(tmp_path):
    """The pictures of a step are the same in one process; sums are taken in another order."""
    root = Path(__file__).resolve().parents[2]
    path = os.pathsep.join([str(root / "src"), str(root)])
    done = subprocess.run(
        [sys.executable, "-m", "tests.integrations.test_lightning", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    run = sgoif.load(str(tmp_path / "run"))
    assert set(run.visits["rank"]) == {0, 1}
    found = in_order(run.visits)
    steps = [[torch.tensor([IDS.index(i) for i in found["id"][found["step"] == step]])] for step in range(10)]
    assert [len(part) for (part,) in steps] == [BATCH] * 10  # Lightning shuffles; ten pictures of each process
    expected, weights = run_windows(steps)
    assert_same_scores(found, expected, rtol=1e-4)
    for name, value in torch.load(tmp_path / "weights.pt").items():
        torch.testing.assert_close(value, weights[name], rtol=1e-4, atol=1e-6)


def train_in_two_processes(folder):
    """Train beside another process: a test has threads already, and could not be forked; spawning takes 18 s."""
    module, watching = fresh(Module), callback(out=str(folder / "run"))
    trainer = L.Trainer(accelerator="cpu", devices=2, strategy="ddp_fork", max_epochs=2, callbacks=[watching], **QUIET)
    trainer.fit(module, DataLoader(sgoif.with_ids(pictures()[0], IDS), BATCH // 2))
    torch.save(module.net.state_dict(), folder / "weights.pt")


if __name__ == "__main__":
    train_in_two_processes(Path(sys.argv[1]))
