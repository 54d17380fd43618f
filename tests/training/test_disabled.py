"""The monitor that is switched off by the environment: a whole script runs with it, and finds nothing."""

import inspect
import logging

import pytest
import torch.nn.functional as F

from sgoif.training.disabled import NoMonitor
from sgoif.training.monitor import Monitor
from tests.training.loops import PLAN, data, fresh, train, watch

# The machinery behind a monitor, which is public for those who look inside and has no counterpart here.
INSIDE = {"model", "optimizer", "engine", "loss", "governor", "recorder", "ledger", "peers", "fault_log"}


def public(thing):
    return {name for name in dir(thing) if not name.startswith("_")}


@pytest.fixture
def disabled(monkeypatch):
    monkeypatch.setenv("SGOIF_DISABLE", "1")
    return watch(fresh(), data()[1])


def test_it_offers_all_that_a_monitor_offers(disabled):
    assert isinstance(disabled, NoMonitor)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SGOIF_DISABLE")
        monitor = watch(fresh(), data()[1])
    assert isinstance(monitor, Monitor)
    assert public(monitor) - INSIDE == public(disabled)
    for name in public(Monitor):
        ours, theirs = getattr(Monitor, name), inspect.getattr_static(disabled, name)
        if inspect.isfunction(ours):
            assert inspect.signature(ours).parameters == inspect.signature(theirs).parameters, name


def test_a_script_runs_to_its_end(disabled):
    train_set, _ = data()
    model = fresh()
    train(model, train_set, disabled)
    disabled.load_state_dict(disabled.state_dict())
    disabled.flush()
    disabled.detach()
    assert disabled.plan == PLAN
    assert "plan: scores every step" in str(disabled.plan)
    assert disabled.forecast is None
    assert disabled.counters["visits"] == disabled.reading.step == 0
    run = disabled.close()
    assert run.info["disabled"]
    assert len(run.worst(20)["id"]) == 0
    assert len(run.table["harm"]) == 0


def test_the_users_exceptions_pass_through(disabled):
    train_set, _ = data()
    with pytest.raises(KeyError), disabled.step([0], train_set[1][:1], grad_factor=2.0):
        F.cross_entropy(fresh()(train_set[0][:1]), train_set[1][:1])
        raise KeyError("mine")


def test_it_says_that_nothing_is_scored(monkeypatch, caplog):
    """Before, a variable left over in a shell was found out by an empty run, at the end."""
    monkeypatch.setenv("SGOIF_DISABLE", "1")
    with caplog.at_level(logging.WARNING):
        watch(fresh(), data()[1])
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "SGOIF_DISABLE=1" in caplog.text and "nothing is scored" in caplog.text
