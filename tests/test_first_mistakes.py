"""Mistakes that are easily made at first: each is met by a sentence with its cause and its cure."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sgoif
from sgoif.errors import SgoifError

X = torch.randn(60, 8, generator=torch.Generator().manual_seed(0))
Y = torch.arange(60) % 3
TRAIN, HELD = (X[:40], Y[:40]), (X[40:], Y[40:])


def network(*more):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3), *more)


@pytest.mark.parametrize("names", [["a", "b"], ["a", "b", "c", "d"]])
def test_names_that_do_not_fit_the_classes_are_refused(names):
    tags = F.one_hot(Y, 3).float()
    for start in (
        lambda model: sgoif.watch(model, anchors=HELD, train_size=40, class_names=names),
        lambda model: sgoif.audit(model, TRAIN, anchors=HELD, class_names=names),
        lambda model: sgoif.audit(
            model, (X[:40], tags[:40]), anchors=(X[40:], tags[40:]), task="multilabel", class_names=names
        ),
    ):
        with pytest.raises(SgoifError, match=f"class_names= has {len(names)} names, but the model has 3 classes"):
            start(network())


def test_queries_without_a_batch_axis_are_told_the_cure():
    model = nn.Sequential(nn.Flatten(), *network())
    with pytest.raises(SgoifError, match=r"x\[None\]"):
        sgoif.attribute(network(), TRAIN, X[0])
    for shape in ((8,), (2, 4)):
        with pytest.raises(SgoifError, match=r"torch\.stack"):
            sgoif.attribute(model, TRAIN, [X[0].reshape(shape), X[1].reshape(shape)])
    assert len(sgoif.attribute(network(), TRAIN, X[0][None], top=3)) == 3
    assert len(sgoif.attribute(model, TRAIN, [X[:2], Y[:2]], top=3)) == 6  # inputs and labels, as ever


def test_explain_takes_one_input_with_or_without_a_batch_axis():
    model = network()
    run = sgoif.audit(model, TRAIN, anchors=HELD)
    plain = run.explain(X[0], 1, model=model, dataset=TRAIN)
    assert run.explain(X[0][None], 1, model=model, dataset=TRAIN).equals(plain)


@pytest.mark.parametrize("head", [None, "2"])
def test_a_softmax_before_cross_entropy_is_named(head):
    for start in (
        lambda model: sgoif.watch(model, anchors=HELD, train_size=40, method=sgoif.Method(head=head)),
        lambda model: sgoif.audit(model, TRAIN, anchors=HELD, method=sgoif.Method(head=head)),
    ):
        with pytest.raises(SgoifError, match=r"softmax of layer '2'.*Return the logits"):
            start(network(nn.Softmax(1)))


def test_a_log_softmax_is_named_and_works_with_nll_loss():
    model = network(nn.LogSoftmax(1))
    with pytest.raises(SgoifError, match=r"log_softmax of layer '2'.*nll_loss.*head='2'"):
        sgoif.watch(model, anchors=HELD, train_size=40)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = sgoif.watch(model, optimizer, anchors=HELD, train_size=40, method=sgoif.Method(head="2"))
    for _ in range(3):
        with monitor.step(torch.arange(40), TRAIN[1]):
            F.nll_loss(model(TRAIN[0]), TRAIN[1]).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert monitor.counters["visits"] > 0 and not monitor.faults
    monitor.close()


def test_ids_and_targets_in_the_wrong_order_are_told_the_order():
    ids, tags, said = torch.arange(1000, 1040), F.one_hot(Y, 3).float(), r"step\(ids, targets\) takes the ids first"
    classes = {"anchors": HELD, "train_size": 40}
    multilabel = {"anchors": (X[40:], tags[40:]), "train_size": 40, "task": "multilabel"}
    for settings, loss, targets, given in (
        (classes, F.cross_entropy, TRAIN[1], (TRAIN[1], ids)),
        (classes, F.cross_entropy, TRAIN[1], (TRAIN[1].tolist(), ids - 1000)),  # some ids could be classes
        (multilabel, F.binary_cross_entropy_with_logits, tags[:40], (tags[:40], ids - 1000)),
    ):
        model = network()
        step = sgoif.watch(model, **settings).step(*given)
        step.__enter__()
        loss(model(TRAIN[0]), targets).backward()
        with pytest.raises(SgoifError, match=said):
            step.__exit__(None, None, None)
    with pytest.raises(SgoifError, match=r"pass them first: step\(ids, targets\)"):
        sgoif.watch(network(), **classes).step(TRAIN[1], [f"{i}.png" for i in range(40)]).__enter__()


def test_ids_that_are_below_the_number_of_classes_are_not_taken_for_targets():
    model = network()
    monitor = sgoif.watch(model, anchors=HELD, train_size=40)
    targets = TRAIN[1].clone()
    targets[:5] = -100
    with monitor.step(torch.arange(40) % 3, targets):
        F.cross_entropy(model(TRAIN[0]), targets).backward()
    assert monitor.counters["visits"] and not monitor.faults
