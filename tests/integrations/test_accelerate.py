"""The documented loop of Accelerate and the plain loop: the same weights, and the same scores to the bit."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

import sgoif
from tests.grouped import grouped
from tests.integrations.small import (
    BATCH,
    IDS,
    NUM,
    PLAN,
    assert_same_scores,
    assert_same_weights,
    fresh,
    in_order,
    pictures,
    plain_run,
    sgd,
)

pytest.importorskip("accelerate")

from accelerate import Accelerator
from accelerate.state import AcceleratorState

pytestmark = pytest.mark.data


def train(epochs=3, accumulate=1, precision="no", first=0, saved=None, out=None):
    """The loop of docs/frameworks.md, from an epoch on; ``saved`` is a folder to go on from, or to leave a state in."""
    AcceleratorState._reset_state(reset_partial_state=True)  # one process, several accelerators
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate, mixed_precision=precision)
    train_set, holdout = pictures()
    model = fresh()
    model, optimizer, loader = accelerator.prepare(model, sgd(model), DataLoader(sgoif.with_ids(train_set, IDS), BATCH))
    settings = {"accumulate": accumulate, "scaler": accelerator.scaler, "plan": PLAN, "out": out}
    monitor = sgoif.watch(model, optimizer, anchors=holdout, train_size=NUM, **grouped(settings))
    accelerator.register_for_checkpointing(monitor)
    if first:
        accelerator.load_state(saved)
    for _ in range(first, epochs):
        for inputs, labels, ids in loader:
            with accelerator.accumulate(model):
                with monitor.step(ids, labels, is_last=accelerator.sync_gradients):
                    accelerator.backward(F.cross_entropy(model(inputs), labels))
                optimizer.step()
                optimizer.zero_grad()
    if saved and not first:
        accelerator.save_state(saved)
    assert monitor.faults == {}
    return in_order(monitor.close().visits), accelerator.unwrap_model(model).state_dict()


@pytest.mark.parametrize(
    ("accumulate", "precision", "dtype"), [(1, "no", None), (2, "no", None), (2, "bf16", torch.bfloat16)]
)
def test_scores_and_weights_are_those_of_the_plain_loop(accumulate, precision, dtype):
    scores, weights = train(accumulate=accumulate, precision=precision)
    expected, plain_weights = plain_run(3, accumulate, dtype)
    assert_same_weights(weights, plain_weights)
    assert_same_scores(scores, expected)


def test_a_loaded_state_gives_the_scores_of_an_unbroken_run(tmp_path):
    whole, _ = train(epochs=4, out=str(tmp_path / "whole"))
    train(epochs=2, saved=str(tmp_path / "state"), out=str(tmp_path / "parts"))
    scores, _ = train(epochs=4, first=2, saved=str(tmp_path / "state"), out=str(tmp_path / "parts"))
    assert len(scores["id"]) == 4 * NUM
    assert_same_scores(scores, whole)
