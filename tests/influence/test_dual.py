"""Per-class scores by pairs: gathered rows equal all pairs, and a class holds its latest rows."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sgoif.influence import DualAnchors, score
from sgoif.influence.scoring import KnownAnchors, near_classes, score_near
from sgoif.linalg import Kronecker
from sgoif.records import GradientRows

CLASSES, INPUTS = 300, 5  # enough to gather


def rows(count, generator):
    a = torch.randn(count, 1, INPUTS, 1, generator=generator, dtype=torch.float64)
    return GradientRows("fc", a, torch.randn(count, 1, CLASSES, 1, generator=generator, dtype=torch.float64))


def factor(size, generator):
    root = torch.randn(size, size, generator=generator, dtype=torch.float64)
    return root @ root.mT / size + 0.1 * torch.eye(size, dtype=torch.float64)


def test_gathered_rows_give_what_all_pairs_give(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, CLASSES, (500,), generator=generator)  # none to six of a class
    dual = DualAnchors(500, CLASSES, INPUTS, labels, CLASSES, dtype=torch.float64)
    assert dual.gathers
    seen = torch.randperm(500, generator=generator)[:350]
    held, trust = rows(350, generator), torch.rand(500, generator=generator, dtype=torch.float64)
    dual.update(seen, held, trust)
    left, right = factor(CLASSES, generator), factor(INPUTS, generator)
    dual.factorise(Kronecker(left, right))
    batch, classes = rows(20, generator), torch.randint(0, CLASSES, (20, 6), generator=generator)
    a, b = batch.inputs[:, 0, :, 0], batch.output_grads[:, 0, :, 0]
    # the truth, pair by pair
    weights = (
        trust[seen] / torch.zeros(CLASSES, dtype=torch.float64).index_add(0, labels[seen], trust[seen])[labels[seen]]
    )
    ha, hb = held.inputs[:, 0, :, 0], held.output_grads[:, 0, :, 0]
    pairs = (a @ torch.linalg.solve(right, ha.mT)) * (b @ torch.linalg.solve(left, hb.mT)) * weights
    truth = torch.zeros(20, CLASSES, dtype=torch.float64).index_add(1, labels[seen], pairs)
    plain = torch.zeros(20, CLASSES, dtype=torch.float64).index_add(
        1, labels[seen], (a @ ha.mT) * (b @ hb.mT) * weights
    )
    for chunk in (2**26, 40_000):  # all at once, and two examples at a time
        monkeypatch.setattr("sgoif.influence.dual.CHUNK_BYTES", chunk)
        solved, identity = dual.dots_of(a, b, classes)
        torch.testing.assert_close(solved, truth.gather(1, classes))
        torch.testing.assert_close(identity, plain.gather(1, classes))
    torch.testing.assert_close(dual.dots(batch), truth)
    assert dual.known.sum() == len(labels[seen].unique())


@pytest.mark.parametrize("classes", [CLASSES, 100])
def test_a_saved_state_gives_the_same_scores(classes):
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(2 * classes) % classes
    duals = [DualAnchors(2 * classes, CLASSES, INPUTS, labels, classes, dtype=torch.float64) for _ in range(2)]
    duals[0].update(torch.arange(2 * classes), rows(2 * classes, generator), torch.ones(2 * classes).double())
    duals[0].factorise(Kronecker(factor(CLASSES, generator), factor(INPUTS, generator)))
    duals[1].load_state_dict(duals[0].state_dict())
    batch, wanted = rows(4, generator), torch.tensor([[0, 1], [2, 3], [4, 5], [6, 6]])
    a, b = batch.inputs[:, 0, :, 0], batch.output_grads[:, 0, :, 0]
    for one, two in zip(*(dual.dots_of(a, b, wanted) for dual in duals), strict=True):
        assert torch.equal(one, two)
    assert torch.equal(duals[0].known, duals[1].known)


def test_a_large_class_holds_its_latest_sixteen():
    generator = torch.Generator().manual_seed(2)
    labels = torch.cat([torch.zeros(40, dtype=torch.int64), torch.arange(1, CLASSES)])
    dual = DualAnchors(len(labels), CLASSES, INPUTS, labels, CLASSES, dtype=torch.float64)
    assert len(dual.a) == 16 * CLASSES
    early, late = rows(40, generator), rows(16, generator)
    dual.update(torch.arange(40), early, torch.ones(len(labels)).double())
    dual.update(torch.arange(16), late, torch.ones(len(labels)).double())
    batch = rows(3, generator)
    a, b = batch.inputs[:, 0, :, 0], batch.output_grads[:, 0, :, 0]
    expected = ((a @ late.inputs[:, 0, :, 0].mT) * (b @ late.output_grads[:, 0, :, 0].mT)).mean(1)
    found, _ = dual.dots_of(a, b, torch.zeros(3, 1, dtype=torch.int64))
    torch.testing.assert_close(found[:, 0], expected)


@settings(max_examples=25)
@given(st.integers(2, 6), st.integers(1, 8), st.integers(0, 2**31))
def test_kinds_scored_side_by_side_are_those_scored_alone(anchors, batch, seed):
    generator = torch.Generator().manual_seed(seed)
    dots = torch.randn(batch, 3, anchors, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, anchors, (batch,), generator=generator)
    confidence = torch.rand(anchors, generator=generator, dtype=torch.float64)
    mask = torch.rand(anchors, generator=generator) < 0.7
    together = score(dots, labels, confidence, known=KnownAnchors.of(mask, torch.float64))
    for kind in range(3):
        alone = score(dots[:, kind], labels, confidence, known=mask)
        for name in ("harm", "worst", "worst_anchor", "own", "confidence_worst"):
            torch.testing.assert_close(getattr(together, name)[:, kind], getattr(alone, name))
        torch.testing.assert_close(together.confidence, alone.confidence)


@settings(max_examples=25)
@given(st.integers(2, 12), st.integers(1, 8), st.integers(0, 2**31))
def test_near_classes_are_scored_like_all_of_them_with_the_rest_left_out(classes, batch, seed):
    generator = torch.Generator().manual_seed(seed)
    outputs = torch.randn(batch, classes, generator=generator, dtype=torch.float64)
    dots = torch.randn(batch, 1, classes, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, classes, (batch,), generator=generator)
    known = torch.rand(classes, generator=generator) < 0.7
    near = near_classes(outputs, labels, count=3)
    worst, anchor, own = score_near(dots.gather(2, near[:, None]), near, known)
    for i in range(batch):
        top = [c for c in outputs[i].argsort(descending=True)[:3].tolist() if known[c] and c != labels[i]]
        assert own[i, 0] == -dots[i, 0, labels[i]]
        assert worst[i, 0] == max((-dots[i, 0, c] for c in top), default=0)
        assert not top or anchor[i, 0] == max(top, key=lambda c, i=i: -dots[i, 0, c].item())
