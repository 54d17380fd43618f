"""Losses: each is scored with a defined meaning, or refused on the first step with the way out."""

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from sgoif.errors import HeadError
from tests.training.loops import GroupNormNet, batches, data, fresh, make_loop, run_twins, take_step, train, watch

WEIGHTS = torch.tensor([1.0, 3.0, 0.5, 2.0], dtype=torch.float64)


def test_class_weights_need_their_factor_and_then_score():
    """Scored so, they change no weights of the model."""
    train_set, holdout = data()
    settings = {"loss": lambda z, y: F.cross_entropy(z, y, weight=WEIGHTS.to(z.dtype), reduction="none")}
    weighted = partial(F.cross_entropy, weight=WEIGHTS)
    monitor = watch(fresh(), holdout, **settings)
    with pytest.raises(HeadError, match="times what the declared"):
        take_step(monitor, torch.arange(48), *train_set, loss=weighted)
    loop = make_loop(batches(train_set), loss=weighted, settings=lambda y: {"grad_factor": WEIGHTS[y].sum()})
    monitor, run = run_twins(GroupNormNet, loop, holdout, **settings)
    assert monitor.counters["visits"] == len(run.visits["id"]) == 12 * 12


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

    parts = [(ids, x, F.one_hot(y, 4).double()) for ids, x, y in batches(train_set)]
    loop = make_loop(parts, loss=F.binary_cross_entropy_with_logits)
    monitor, run = run_twins(GroupNormNet, loop, holdout, loss=bce)
    assert monitor.counters["visits_mixed"] == 0
    assert (run.table["given_label"] == train_set[1].numpy()[run.table["id"]]).all()


def zero(z, y):
    return 0 * F.cross_entropy(z, y)


def quarter(z, y):
    return F.cross_entropy(z, y) / 4


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
    "divided": (quarter, {}, r"Loss\(accumulate=4\)"),
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
    train_set, holdout = data()
    model = fresh()
    with torch.no_grad():
        model.fc.weight.mul_(0.01 if start == "knows nothing" else 3.0)
    with pytest.raises(HeadError, match=text):
        take_step(watch(model, holdout, **settings), torch.arange(48), *train_set, loss=loss)


@pytest.mark.parametrize("kind", ["weight of 0", "saturated", "nearly saturated"])
def test_a_gradient_of_nothing_is_checked_at_the_next_step(kind):
    """Before, each of these raised out of the first step of a sound training."""
    (pixels, labels), holdout = data(dtype=torch.float32)
    model, ids = fresh(dtype=torch.float32), torch.arange(48)
    kept = copy.deepcopy(model.fc.state_dict())
    if kind == "weight of 0":
        targets, loss = labels, zero
    else:  # sure of class 3
        targets, loss = torch.full_like(labels, 3), F.cross_entropy
        bias = torch.tensor([0.0, 0.0, 0.0, 200.0 if kind == "saturated" else 15.0])
        model.fc.load_state_dict({"weight": torch.zeros_like(model.fc.weight), "bias": bias})
    monitor = watch(model, holdout)
    for _ in range(2):
        take_step(monitor, ids, pixels, targets, loss=loss)
    model.fc.load_state_dict(kept)
    if kind == "nearly saturated":  # there is a little, which was checked
        take_step(monitor, ids, pixels, labels)
        assert monitor.faults == {} and monitor.counters["visits"] == 3 * 48
        return
    with pytest.raises(HeadError, match="accumulate=2"):
        take_step(monitor, ids, pixels, labels, loss=lambda z, y: F.cross_entropy(z, y) / 2)


def test_a_wrong_loss_that_shows_late_switches_the_monitor_off_and_never_raises():
    train_set, holdout = data()
    monitor = watch(fresh(), holdout)
    for step in range(40):
        take_step(monitor, torch.arange(48), *train_set, loss=zero if step < 30 else quarter)
    assert not monitor.is_on
    run = monitor.close()
    assert "accumulate=4" in run.info["switched_off"]["reason"]
    counters = run.info["counters"]
    assert counters["visits_offered"] == counters["visits"] + counters["visits_refused"] + counters["visits_lost"]


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (F.cross_entropy, "reduction='none'"),
        (lambda z, y: z[y, y, y], r"loss= failed for outputs \(48, 4\).*IndexError"),
    ],
)
def test_a_declared_loss_that_is_no_loss_per_example_is_named_on_the_first_step(loss, words):
    train_set, holdout = data()
    with pytest.raises(HeadError, match=words):
        take_step(watch(fresh(), holdout, loss=loss), torch.arange(48), *train_set)
