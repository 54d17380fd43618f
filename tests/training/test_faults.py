"""Trouble: ours never reaches the training, and the user's own passes through."""

import logging

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.training.loops import data, fresh, train, watch


def test_numerical_trouble_never_stops_the_training(caplog):
    train_set, holdout = data()
    pixels, labels = train_set
    model = fresh()
    monitor = watch(model, holdout)
    for step in range(12):
        x = pixels * (float("nan") if step in (4, 5, 8) else 1.0)
        with monitor.step(torch.arange(48), labels):
            F.cross_entropy(model(x), labels).backward()
        model.zero_grad()
    run = monitor.close()
    assert monitor.counters["visits_not_finite"] == 3 * 48
    assert np.isfinite(run.table["harm"]).all()
    assert torch.isfinite(monitor.engine.tracker.columns).all()


def test_an_error_of_our_own_is_counted_logged_once_and_kept_from_the_user(monkeypatch, caplog):
    train_set, holdout = data()
    model = fresh()
    monitor = watch(model, holdout)
    train(model, train_set, monitor, epochs=1)

    def broken(*_):
        raise RuntimeError("a bug in the monitor")

    monkeypatch.setattr(monitor.engine, "score", broken)
    with caplog.at_level(logging.WARNING):
        train(model, train_set, monitor, epochs=6)
    assert monitor.faults == {"RuntimeError: a bug in the monitor": 20}
    assert not monitor.is_on
    assert sum("could not be scored; the training goes on" in message for message in caplog.messages) == 1


def test_the_users_own_exception_passes_through():
    train_set, holdout = data()
    model = fresh()
    monitor = watch(model, holdout)
    with pytest.raises(KeyError), monitor.step([1], train_set[1][:1]):
        raise KeyError("mine")
    train(model, train_set, monitor)
    assert monitor.counters["faults"] == 0
