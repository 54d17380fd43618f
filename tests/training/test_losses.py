"""Losses: each is scored with a defined meaning, or refused on the first step with the way out."""

import pytest
import torch
import torch.nn.functional as F

from sgoif.errors import HeadError
from tests.training.loops import GroupNormNet, batches, data, fresh, run_twins, train, watch


def test_a_wrong_reduction_is_refused_on_the_first_step_with_the_value_found():
    train_set, holdout = data()
    model = fresh()
    monitor = watch(model, holdout, loss_reduction="sum")
    with pytest.raises(HeadError, match=r"times what the declared settings say"):
        train(model, train_set, monitor)


def test_class_weights_need_their_factor_and_then_score():
    train_set, holdout = data()
    pixels, labels = train_set
    weights = torch.tensor([1.0, 3.0, 0.5, 2.0], dtype=torch.float64)

    def per_example(outputs, targets):
        return F.cross_entropy(outputs, targets, weight=weights.to(outputs.dtype), reduction="none")

    model = fresh()
    monitor = watch(model, holdout, loss=per_example)
    with pytest.raises(HeadError, match="times what the declared"), monitor.step(torch.arange(48), labels):
        F.cross_entropy(model(pixels), labels, weight=weights).backward()
    monitor = watch(model, holdout, loss=per_example)
    for _ in range(6):
        with monitor.step(torch.arange(48), labels, grad_factor=weights[labels].sum()):
            F.cross_entropy(model(pixels), labels, weight=weights).backward()
    assert monitor.counters["faults"] == 0
    assert monitor.counters["visits"] >= 48


def focal(outputs, targets):
    log_p = outputs.log_softmax(1).gather(1, targets[:, None])[:, 0]
    return -((1 - log_p.exp()) ** 2) * log_p


def one_versus_all(outputs, targets):
    return F.binary_cross_entropy_with_logits(
        outputs, F.one_hot(targets, outputs.shape[1]).to(outputs.dtype), reduction="none"
    ).sum(1)


@pytest.mark.parametrize("per_example", [focal, one_versus_all])
def test_other_losses_are_scored_when_declared_and_refused_when_not(per_example):
    train_set, holdout = data()
    model = fresh()
    monitor = watch(model, holdout, loss=per_example)
    train(model, train_set, monitor, loss=lambda z, y: per_example(z, y).mean())
    assert monitor.counters["faults"] == 0
    monitor = watch(fresh(), holdout)
    with pytest.raises(HeadError, match=r"do not look like cross-entropy|times what the declared"):
        train(monitor.model, train_set, monitor, loss=lambda z, y: per_example(z, y).mean())


def test_binary_cross_entropy_on_one_hot_targets():
    """One sigmoid per class; such a loss takes no class numbers, so the hold-out comes in the targets' form."""
    train_set, holdout = data()

    def bce(outputs, targets):
        return F.binary_cross_entropy_with_logits(outputs, targets, reduction="none").mean(1)

    def loop(model, step):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for ids, x, y in batches(train_set):
            hot = F.one_hot(y, 4).double()
            with step(ids, hot):
                F.binary_cross_entropy_with_logits(model(x), hot).backward()
            optimizer.step()
            optimizer.zero_grad()

    monitor, run = run_twins(GroupNormNet, loop, holdout, loss=bce)
    assert monitor.counters["visits_mixed"] == 0
    assert (run.table["given_label"] == train_set[1].numpy()[run.table["id"]]).all()


def test_a_weighted_loss_changes_no_weights_of_the_model():
    train_set, holdout = data()
    weights = torch.tensor([1.0, 3.0, 0.5, 2.0], dtype=torch.float64)

    def per_example(outputs, targets):
        return F.cross_entropy(outputs, targets, weight=weights, reduction="none")

    def loop(model, step):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for ids, x, y in batches(train_set):
            with step(ids, y, grad_factor=weights[y].sum()):
                F.cross_entropy(model(x), y, weight=weights).backward()
            optimizer.step()
            optimizer.zero_grad()

    run_twins(GroupNormNet, loop, holdout, loss=per_example)


def test_a_loss_that_is_reduced_already_is_refused_with_the_way_out():
    train_set, holdout = data()
    model = fresh()
    monitor = watch(model, holdout, loss=F.cross_entropy)
    with pytest.raises(HeadError, match="reduction='none'"):
        train(model, train_set, monitor)
