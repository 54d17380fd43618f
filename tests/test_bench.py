"""``bench``: the price of watching, measured on copies."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sgoif
from sgoif.errors import SgoifError
from sgoif.overhead import BenchLoop, bench

PLAN = sgoif.Plan(refresh_every=4, examples_per_refresh=16, observe_every=2)


def problem(seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4))
    return model, (torch.randn(12, 3, 4, 4), torch.arange(12) % 4)


def test_a_result_is_a_ratio_with_an_interval_and_leaves_model_and_rng_alone():
    model, batch = problem()
    model.eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    rng = torch.get_rng_state()
    found = bench(model, batch, blocks=4, budget=sgoif.Budget(plan=PLAN))
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert torch.equal(rng, torch.get_rng_state())
    assert not model.training and all(p.grad is None for p in model.parameters())
    assert found.low <= found.ratio <= found.high
    assert found.timings.seconds.shape == (2, 2)
    assert found.ratio == pytest.approx(found.timings.ratio("watched").value)
    assert "times as long watched" in str(found) and "\n" not in str(found)


def test_both_loops_train_alike_and_a_monitor_that_fails_is_not_measured(monkeypatch):
    model, batch = problem()
    loops = []
    for settings in ({"is_watched": False}, {"budget": sgoif.Budget(plan=PLAN)}):
        torch.manual_seed(1)
        loops.append(BenchLoop(model, batch, **settings))
        for _ in range(6):
            loops[-1].step()
    bare, watched = loops
    assert all(torch.equal(value, watched.model.state_dict()[key]) for key, value in bare.model.state_dict().items())
    assert not torch.equal(watched.model.state_dict()["1.weight"], model.state_dict()["1.weight"])
    assert watched.monitor.counters["visits"] == 6 * 12
    monkeypatch.setattr(watched.monitor.engine, "_score_queue", lambda *_, **__: 1 / 0)
    watched.step()
    with pytest.raises(SgoifError, match="ZeroDivisionError"):
        watched.check()


def test_the_users_own_optimiser_loss_forward_and_batches_are_used():
    model, (images, labels) = problem()
    calls = {"batch": 0, "forward": 0}

    def make_batch():
        calls["batch"] += 1
        return {"images": images}, labels

    def forward(copy, inputs):
        calls["forward"] += 1
        return copy(inputs["images"] if isinstance(inputs, dict) else inputs)

    def smoothed(outputs, targets):
        return F.cross_entropy(outputs, targets, label_smoothing=0.1, reduction="none")

    given = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.3)
    settings = {"optimizer": given, "loss": smoothed, "forward": forward, "budget": sgoif.Budget(plan=PLAN)}
    with pytest.raises(SgoifError, match="pass anchors="):
        BenchLoop(model, make_batch, **settings)
    loop = BenchLoop(model, make_batch, anchors=(images, labels), **settings)
    for _ in range(5):
        loop.step()
    loop.check()
    assert isinstance(loop.optimizer, torch.optim.AdamW) and loop.optimizer.defaults["weight_decay"] == 0.3
    assert loop.monitor.counters["visits"] == 60
    assert calls["batch"] >= 5 and calls["forward"] > 5  # the hold-out goes through it too
