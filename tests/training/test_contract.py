"""What every task of the monitor keeps to: one suite, run over all of them.

A new task adds a :class:`World` here and inherits the whole of it.
"""

import copy
import inspect
import io
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sgoif
from sgoif.errors import HeadError, SgoifError
from sgoif.training.base import BaseMonitor
from sgoif.training.disabled import NoMonitor
from tests.training.multilabel import worlds

# Parts behind a monitor, which are public for those who look inside and have no counterpart where it is switched off.
INSIDE = {
    *("model", "optimizer", "engine", "loss", "governor", "recorder", "ledger", "peers", "fault_log", "sink"),
    *("holdout_scores", "closing_dataset"),
}
SIZE, BATCH = 120, 20


@dataclass(frozen=True)
class World:
    """A task's data, its usual loss, and the table that its findings are in."""

    task: str
    inputs: torch.Tensor
    targets: torch.Tensor
    holdout: tuple[torch.Tensor, torch.Tensor]
    loss: Any
    table: str
    scoring: str  # the engine's method that scores

    def fresh(self) -> nn.Module:
        return worlds.fresh()

    def watch(self, model: nn.Module, **settings: Any) -> Any:
        plan = sgoif.Plan(refresh_every=3, examples_per_refresh=40, observe_every=2)
        settings = {"budget": sgoif.Budget(plan=plan), **settings}
        return sgoif.watch(model, anchors=self.holdout, train_size=SIZE, task=self.task, **settings)

    def step(self, model: nn.Module, monitor: Any, rows: torch.Tensor, ids: Any = None) -> None:
        with monitor.step(rows if ids is None else ids, self.targets[rows]):
            self.loss(model(self.inputs[rows]), self.targets[rows]).backward()

    def train(self, model: nn.Module, monitor: Any = None, epochs: int = 2, name: Any = lambda rows: rows) -> nn.Module:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for _ in range(epochs):
            for rows in torch.arange(SIZE).split(BATCH):
                if monitor is None:
                    self.loss(model(self.inputs[rows]), self.targets[rows]).backward()
                else:
                    self.step(model, monitor, rows, name(rows))
                optimizer.step()
                optimizer.zero_grad()
        return model

    def rows(self, run: sgoif.Run) -> dict[str, list[Any]]:
        """All findings of a run, in a fixed order."""
        found: dict[str, list[Any]] = run.sql(f"select * from {self.table} order by all").to_pydict()
        return found


def make_world(task: str) -> World:
    inputs, given, _, (held, held_tags) = worlds.data(examples=SIZE, held=60)
    if task == "multilabel":
        return World(task, inputs, given, (held, held_tags), F.binary_cross_entropy_with_logits, "tags", "score")
    as_class = worlds.fresh().requires_grad_(False).eval()
    labels, held_labels = (as_class(part).argmax(1) for part in (inputs, held))
    return World(task, inputs, labels, (held, held_labels), F.cross_entropy, "examples", "_score_queue")


@pytest.fixture(params=["classification", "multilabel"])
def world(request):
    return make_world(request.param)


def same(one: nn.Module, two: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), two.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_weights_and_random_numbers_are_those_of_a_bare_training(world):
    ends = []
    for is_watched in (False, True):
        model = world.fresh()
        torch.manual_seed(7)
        monitor = world.watch(model) if is_watched else None
        world.train(model, monitor)
        ends.append((model, torch.get_rng_state()))
    assert same(ends[0][0], ends[1][0]) and torch.equal(ends[0][1], ends[1][1])
    assert monitor.faults == {} and monitor.refreshes > 0
    assert all(not module._forward_hooks and not module._backward_hooks for module in model.modules())


def test_a_resumed_run_ends_as_the_unbroken_one_to_the_bit(world):
    model = world.fresh()
    monitor = world.watch(model)
    world.train(model, monitor, epochs=1)
    monitor.fault_log.note(ValueError("odd"), "a fault that is remembered.")
    torch.save(monitor.state_dict(), file := io.BytesIO())
    weights = copy.deepcopy(model.state_dict())
    runs = []
    for is_resumed in (False, True):
        if is_resumed:
            file.seek(0)
            model = world.fresh()
            model.load_state_dict(weights)
            monitor = world.watch(model)
            monitor.load_state_dict(torch.load(file, weights_only=True))
            assert monitor.faults == {"ValueError: odd": 1}
        torch.manual_seed(11)
        world.train(model, monitor)
        runs.append(monitor.close())
    whole, resumed = (world.rows(run) for run in runs)
    for name, column in whole.items():
        assert str(column) == str(resumed[name]), name  # as text, where NaN is NaN
    counters = [run.info["counters"] for run in runs]
    assert counters[0] == counters[1]


def test_switched_off_it_offers_the_same_says_so_and_finds_nothing(world, monkeypatch, caplog):
    """Before, a variable left over in a shell was found out by an empty run, at the end."""
    monitor = world.watch(world.fresh())
    monkeypatch.setenv("SGOIF_DISABLE", "1")
    caplog.clear()
    disabled = world.watch(world.fresh())
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "SGOIF_DISABLE=1" in caplog.text and "nothing is scored" in caplog.text
    assert isinstance(monitor, BaseMonitor) and isinstance(disabled, NoMonitor)
    names = {name for name in dir(monitor) if not name.startswith("_")} - INSIDE
    assert names == {name for name in dir(disabled) if not name.startswith("_")}
    for name in names:
        ours = inspect.getattr_static(type(monitor), name, None)
        if inspect.isfunction(ours):
            theirs = inspect.getattr_static(disabled, name)
            assert inspect.signature(ours).parameters == inspect.signature(theirs).parameters, name
    bare, model = world.train(world.fresh()), world.train(world.fresh(), disabled)
    disabled.load_state_dict(disabled.state_dict())
    disabled.flush()
    disabled.detach()
    assert disabled.plan == monitor.plan and "plan: scores every step" in str(disabled.plan)
    assert disabled.counters["visits"] == disabled.reading.step == 0
    run = disabled.close()
    assert same(bare, model) and run.info["disabled"] and len(run.table["id"]) == 0
    assert all(not column for column in world.rows(run).values())
    assert world.task == "multilabel" or len(run.worst(20)["id"]) == 0


def test_trouble_of_our_own_leaves_the_training_alone_and_is_told(world, monkeypatch):
    model = world.fresh()
    monitor = world.watch(model)

    def broken(*_, **__):
        raise ValueError("odd")

    monkeypatch.setattr(monitor.engine, world.scoring, broken)
    torch.manual_seed(7)
    world.train(model, monitor, epochs=4)
    bare = world.fresh()
    torch.manual_seed(7)
    assert same(world.train(bare, epochs=4), model)
    assert not monitor.is_on and monitor.faults["ValueError: odd"] > 1
    run = monitor.close()
    assert run.info["switched_off"]["reason"] == "ValueError: odd"
    counters = run.info["counters"]
    assert counters["visits"] == 0
    assert counters["visits_offered"] == counters["visits_lost"] + counters["visits_refused"]


def test_the_users_exceptions_pass_through_and_the_step_was_none(world):
    model = world.fresh()
    monitor = world.watch(model)
    with pytest.raises(KeyError), monitor.step(torch.arange(BATCH), world.targets[:BATCH]):
        raise KeyError("mine")
    assert monitor.step_count == 0 and monitor.faults == {}
    world.train(model, monitor, epochs=1)
    assert monitor.faults == {} and monitor.counters["visits_offered"] == SIZE


def test_ids_come_back_as_given(world):
    model = world.fresh()
    monitor = world.watch(model)
    world.train(model, monitor, name=lambda rows: [f"row-{i}" for i in rows.tolist()])
    run = monitor.close()
    assert sorted(run.table["id"]) == sorted(f"row-{i}" for i in range(SIZE))


def test_a_bad_batch_costs_its_own_rows_and_every_row_is_counted(world):
    model = world.fresh()
    with pytest.raises(SgoifError):  # at first it is a mistake of the set-up
        world.step(model, world.watch(model), torch.arange(BATCH), list(range(BATCH - 1)))
    monitor = world.watch(model)
    world.train(model, monitor, epochs=1)
    before = monitor.counters["visits"]
    rows = torch.arange(BATCH)
    for ids in (rows.float(), [str(i) for i in range(BATCH)], list(range(BATCH - 1)), [None] * BATCH):
        world.step(model, monitor, rows, ids)
    for targets in (world.targets[rows], world.targets.flatten()[0]):  # twice backward, and a single number
        with monitor.step(rows, targets):
            loss = world.loss(model(world.inputs[rows]), world.targets[rows])
            loss.backward(retain_graph=True)
            if targets.dim():
                loss.backward()
    world.step(model, monitor, rows)
    run = monitor.close()
    counters, refused = run.info["counters"], run.info["visits_refused"]
    assert counters["visits"] == before + BATCH and len(monitor.faults) == 6 and counters["visits_waiting"] == 0
    assert sum(refused.values()) == counters["visits_refused"] and any("float32" in cause for cause in refused)
    assert counters["visits_offered"] == sum(counters[name] for name in ("visits", "visits_refused", "visits_lost"))


def test_a_wrong_loss_is_refused_at_the_first_step(world):
    model, rows = world.fresh(), torch.arange(BATCH)
    step = world.watch(model).step(rows, world.targets[rows])
    with pytest.raises(HeadError, match="times what the declared settings say"), step:
        (3 * world.loss(model(world.inputs[rows]), world.targets[rows])).backward()


def test_a_run_on_disk_is_the_one_in_memory_and_is_not_overwritten(world, tmp_path):
    runs = []
    for out in (None, str(tmp_path / "run")):
        model = world.fresh()
        torch.manual_seed(7)
        monitor = world.watch(model, out=out)
        world.train(model, monitor)
        runs.append(monitor.close())
        assert monitor.close() is runs[-1]
    stored = world.rows(sgoif.load(tmp_path / "run"))
    for name, column in world.rows(runs[0]).items():
        if all(isinstance(value, float) for value in column):
            np.testing.assert_allclose(stored[name], column, rtol=1e-6, err_msg=name)
        else:
            assert str(stored[name]) == str(column), name
    model = world.fresh()
    with pytest.raises(SgoifError, match="holds a finished run"):
        world.step(model, world.watch(model, out=str(tmp_path / "run")), torch.arange(BATCH))
