"""What a plan says that it will cost, before it is measured."""

import logging

import torch

from tests.training.loops import PLAN, data, fresh, train_watched, watch


def test_a_plan_tells_its_price_once_it_is_known_and_is_the_same_plan(caplog):
    _, holdout = data()
    model = fresh()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    unknown = watch(model, holdout)
    assert "cost: unknown until the first step; pass budget=sgoif.Budget(batch_size=...)" in str(unknown.plan)
    asked = watch(model, holdout, batch_size=1000, keep_visits="none")
    assert "batches of 1000" in str(asked.plan) and "MB of visits" not in str(asked.plan) and asked.plan == PLAN
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    with caplog.at_level(logging.INFO, logger="sgoif"):
        monitor = train_watched(batch_size=1000)
    (line,) = [text for text in caplog.messages if text.startswith("plan:")]
    text = str(monitor.plan)
    assert line.splitlines()[:2] == text.splitlines()[:2]
    for word in ("batches of 12,", "scoring", "curvature", "refreshes", "memory", "MB of visits", "of the bare step"):
        assert word in text
    assert monitor.plan == PLAN and hash(monitor.plan) == hash(PLAN)
    assert "forecast" not in str(monitor.governor.state_dict()["plan"])
