"""The monitor that is switched off by the environment: a whole script runs with it, and finds nothing."""

import logging

from tests.training.loops import PLAN, train_watched


def test_a_script_runs_to_its_end_and_is_told_that_nothing_is_scored(monkeypatch, caplog):
    """Before, a variable left over in a shell was found out by an empty run, at the end."""
    monkeypatch.setenv("SGOIF_DISABLE", "1")
    with caplog.at_level(logging.WARNING):
        monitor = train_watched()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "SGOIF_DISABLE=1" in caplog.text and "nothing is scored" in caplog.text
    monitor.flush()
    monitor.detach()
    assert monitor.plan == PLAN and "plan: scores every step" in str(monitor.plan)
    assert monitor.counters["visits"] == monitor.reading.step == 0
    run = monitor.close()
    assert len(run.worst(20)["id"]) == len(run.table["harm"]) == 0
