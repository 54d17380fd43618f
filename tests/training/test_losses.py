"""Losses: each is scored with a defined meaning, or refused on the first step with the way out."""

import pytest
import torch
import torch.nn.functional as F

from sgoif.errors import HeadError
from tests.training.loops import GroupNormNet, batches, data, fresh, run_twins, train, watch


def test_a_wrong_reduction_is_refused_on_the_first_step_with_the_value_found():
    train_set, holdout = data()
    model = fresh()
    monitor = watch(model, holdout, reduction="sum")
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


WEIGHTS = torch.tensor([1.0, 3.0, 0.5, 2.0], dtype=torch.float64)


def mixed(z, y):
    return 0.7 * F.cross_entropy(z, y) + 0.3 * F.cross_entropy(z, y.flip(0))


def each_its_own(z, y):
    w = torch.linspace(0.2, 1.8, len(y), dtype=z.dtype)
    return (w * F.cross_entropy(z, y, reduction="none")).sum() / w.sum()


CAUSES = {
    "smoothed": (lambda z, y: F.cross_entropy(z, y, label_smoothing=0.1), {}, r"Loss\(label_smoothing=0.1\)"),
    "smoothed more": (lambda z, y: F.cross_entropy(z, y, label_smoothing=0.25), {}, r"Loss\(label_smoothing=0.25\)"),
    "smoothed otherwise": (
        lambda z, y: F.cross_entropy(z, y, label_smoothing=0.2),
        {"label_smoothing": 0.1},
        r"Loss\(label_smoothing=0.2\)",
    ),
    "not smoothed": (F.cross_entropy, {"label_smoothing": 0.1}, "leave label_smoothing=0.1 out"),
    "divided": (lambda z, y: F.cross_entropy(z, y) / 4, {}, r"Loss\(accumulate=4\)"),
    "not divided": (F.cross_entropy, {"accumulate": 4}, "not divided by accumulate=4"),
    "sum": (lambda z, y: F.cross_entropy(z, y, reduction="sum"), {}, r"pass loss=sgoif.Loss\(reduction='sum'\)"),
    "mean": (F.cross_entropy, {"reduction": "sum"}, r"pass loss=sgoif.Loss\(reduction='mean'\)"),
    "scaled": (lambda z, y: 65536 * F.cross_entropy(z, y), {}, r"scaled by 65536.*Loss\(scaler="),
    "class weights": (lambda z, y: F.cross_entropy(z, y, weight=WEIGHTS), {}, "class weights w: pass loss="),
    "mixup": (mixed, {}, r"Mixup, CutMix, soft labels\): pass those probabilities"),
    "other order": (lambda z, y: F.cross_entropy(z, y.roll(1)), {}, "another class entered the loss"),
    "weights": (each_its_own, {}, "pass them to step.. as weights="),
}


@pytest.mark.parametrize("name", CAUSES)
@pytest.mark.parametrize("start", ["knows nothing", "has opinions"])
def test_a_wrong_loss_is_named_with_what_to_pass(name, start):
    loss, settings, text = CAUSES[name]
    (pixels, labels), holdout = data()
    model = fresh()
    with torch.no_grad():
        model.fc.weight.mul_(0.01 if start == "knows nothing" else 3.0)
    monitor = watch(model, holdout, **settings)
    with pytest.raises(HeadError, match=text), monitor.step(torch.arange(48), labels):
        loss(model(pixels), labels).backward()


@pytest.mark.parametrize("kind", ["weight of 0", "saturated", "nearly saturated"])
def test_a_gradient_of_nothing_is_checked_at_the_next_step(kind):
    """Before, each of these raised out of the first step of a sound training."""
    (pixels, labels), holdout = data()
    model = fresh(dtype=torch.float32)
    pixels, holdout = pixels.float(), (holdout[0].float(), holdout[1])
    monitor = watch(model, holdout)
    kept = [p.detach().clone() for p in model.fc.parameters()]
    if kind != "weight of 0":
        with torch.no_grad():
            model.fc.weight.zero_()
            model.fc.bias.copy_(torch.tensor([0.0, 0.0, 0.0, 200.0 if kind == "saturated" else 15.0]))
        sure = torch.full_like(labels, 3)
    for step in range(3):
        y = sure if kind != "weight of 0" and step < 2 else labels
        with monitor.step(torch.arange(48), y):
            (F.cross_entropy(model(pixels), y) * (0.0 if kind == "weight of 0" and step < 2 else 1.0)).backward()
        if step == 1 and kind != "weight of 0":
            assert not monitor._seen.is_checked or kind == "nearly saturated"
            with torch.no_grad():
                for p, value in zip(model.fc.parameters(), kept, strict=True):
                    p.copy_(value)
    assert monitor._seen.is_checked and monitor.faults == {}
    monitor = watch(model, holdout)
    with monitor.step(torch.arange(48), labels):
        (0 * F.cross_entropy(model(pixels), labels)).backward()
    with pytest.raises(HeadError, match="accumulate=2"), monitor.step(torch.arange(48), labels):
        (F.cross_entropy(model(pixels), labels) / 2).backward()


def test_a_wrong_loss_that_shows_late_switches_the_monitor_off_and_never_raises():
    (pixels, labels), holdout = data()
    model = fresh()
    monitor = watch(model, holdout)
    for step in range(40):
        with monitor.step(torch.arange(48), labels):
            (F.cross_entropy(model(pixels), labels) * (0.0 if step < 30 else 0.25)).backward()
    assert not monitor.is_on
    run = monitor.close()
    assert "accumulate=4" in run.info["switched_off"]["reason"]
    counters = run.info["counters"]
    assert counters["visits_offered"] == counters["visits"] + counters["visits_refused"] + counters["visits_lost"]


def test_a_loss_that_fails_is_named_on_the_first_step():
    (pixels, labels), holdout = data()
    model = fresh()
    monitor = watch(model, holdout, loss=lambda z, y: z[y, y, y])
    step = monitor.step(torch.arange(48), labels)
    with pytest.raises(HeadError, match=r"loss= failed for outputs \(48, 4\).*IndexError"), step:
        F.cross_entropy(model(pixels), labels).backward()
