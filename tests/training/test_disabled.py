"""The monitor that is switched off by the environment: a whole script runs with it, and finds nothing."""

import logging

import pytest

from tests.training.loops import PLAN, data, fresh, train, watch


@pytest.fixture
def disabled(monkeypatch):
    monkeypatch.setenv("SGOIF_DISABLE", "1")
    return watch(fresh(), data()[1])


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


def test_it_says_that_nothing_is_scored(monkeypatch, caplog):
    """Before, a variable left over in a shell was found out by an empty run, at the end."""
    monkeypatch.setenv("SGOIF_DISABLE", "1")
    with caplog.at_level(logging.WARNING):
        watch(fresh(), data()[1])
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "SGOIF_DISABLE=1" in caplog.text and "nothing is scored" in caplog.text
