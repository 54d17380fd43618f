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
    said = f"class_names= has {len(names)} names, but the model has 3 classes"
    with pytest.raises(SgoifError, match=said):
        sgoif.watch(network(), anchors=HELD, train_size=40, class_names=names)
    with pytest.raises(SgoifError, match=said):
        sgoif.audit(network(), TRAIN, anchors=HELD, class_names=names)
    tags = F.one_hot(Y, 3).float()
    with pytest.raises(SgoifError, match=said):
        sgoif.audit(network(), (X[:40], tags[:40]), anchors=(X[40:], tags[40:]), task="multilabel", class_names=names)


def test_one_query_without_a_batch_axis_is_told_the_cure():
    with pytest.raises(SgoifError, match=r"x\[None\]"):
        sgoif.attribute(network(), TRAIN, X[0])
    assert len(sgoif.attribute(network(), TRAIN, X[0][None], top=3)) == 3


@pytest.mark.parametrize("shape", [(8,), (2, 4)])
def test_a_list_of_two_queries_is_told_the_cure(shape):
    model = nn.Sequential(nn.Flatten(), *network())
    with pytest.raises(SgoifError, match=r"torch\.stack"):
        sgoif.attribute(model, TRAIN, [X[0].reshape(shape), X[1].reshape(shape)])
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
