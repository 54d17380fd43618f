"""Two monitors around one step: neither sees the other's passes, and each scores what it would score alone."""

from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sgoif
from sgoif.gradients.models import plain_model
from tests.training.loops import PLAN, batches, data, fresh, make_loop, watch

SCORES = ("id", "step", "loss", "harm", "worst", "confidence")


def train(model, train_set, monitors):
    """Train with the steps of all monitors nested, and give each one's run."""

    @contextmanager
    def step(ids, targets):
        with ExitStack() as steps:
            for monitor in monitors:
                steps.enter_context(monitor.step(ids, targets))
            yield

    make_loop(batches(train_set))(model, step)
    assert [monitor.faults for monitor in monitors] == [{} for _ in monitors]
    return [monitor.close() for monitor in monitors]


def assert_same_visits(one, two):
    assert len(one.visits["id"]) == 3 * 48
    assert np.abs(one.visits["harm"]).max() > 0
    for name in SCORES:
        np.testing.assert_array_equal(one.visits[name], two.visits[name], err_msg=name)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_each_scores_what_it_scores_alone_and_the_weights_are_those_of_the_bare_training(is_compiled):
    """Refreshes of both come at different steps, so that each one's passes meet the open hooks of the other."""
    train_set, holdout = data()
    often = sgoif.Plan(refresh_every=3, examples_per_refresh=8, observe_every=1)
    settings = [{"plan": PLAN, "layers": ["conv"]}, {"plan": often, "layers": ["conv"], "seed": 1}]

    def run(*chosen):
        model = fresh()
        model = torch.compile(model, backend="eager", fullgraph=True) if is_compiled else model
        torch.manual_seed(7)
        monitors = [watch(model, holdout, **settings[i]) for i in chosen]
        return train(model, train_set, monitors), plain_model(model).state_dict()

    _, bare = run()
    (outer, inner), weights = run(0, 1)
    for key, value in bare.items():
        assert torch.equal(value, weights[key]), key
    assert_same_visits(outer, run(0)[0][0])
    assert_same_visits(inner, run(1)[0][0])


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4), nn.Linear(16, 3)

    def forward(self, x):
        hidden = torch.tanh(self.body(x))
        return self.first(hidden), self.second(hidden)


def test_a_model_with_two_heads_has_a_monitor_for_each():
    torch.manual_seed(0)
    model, inputs = TwoHeads(), torch.randn(72, 8)
    targets = torch.stack([torch.arange(72) % 4, torch.arange(72) % 3], 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    monitors = [watch(model, (inputs[48:], targets[48:, i]), forward=lambda x, i=i: model(x)[i]) for i in range(2)]
    for _ in range(3):
        for part in torch.arange(48).split(12):
            first, second = targets[part].unbind(1)
            with monitors[0].step(part, first), monitors[1].step(part, second):
                outputs = model(inputs[part])
                (F.cross_entropy(outputs[0], first) + F.cross_entropy(outputs[1], second)).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert [monitor.faults for monitor in monitors] == [{}, {}]
    runs = [monitor.close() for monitor in monitors]
    assert [run.num_classes for run in runs] == [4, 3]
    assert [len(run.visits["id"]) for run in runs] == [144, 144]
