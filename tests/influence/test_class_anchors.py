"""Anchors of single classes: a few rows of each class's gradient give what the whole of it gives."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sgoif.influence import ClassAnchors, score
from sgoif.influence.scoring import KnownAnchors, near_classes, score_near
from sgoif.linalg import DiagonalKronecker, Kronecker, factorise

INPUTS = 5


def normal(generator, *shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def rows_of(labels, classes, generator, sharpness=3.0):
    """Features, and the gradients at the logits of a model that takes each class for a few others."""
    features = normal(generator, len(labels), INPUTS)
    alike = 0.6 * normal(generator, classes, classes) + 3 * torch.eye(classes, dtype=torch.float64)
    logits = sharpness * (alike[labels] + 0.3 * normal(generator, len(labels), classes))
    return features, logits.softmax(1) - torch.nn.functional.one_hot(labels, classes)


def curvature(classes, generator):
    root = normal(generator, INPUTS, INPUTS)
    right = root @ root.mT / INPUTS + 0.1 * torch.eye(INPUTS, dtype=torch.float64)
    return torch.rand(classes, generator=generator, dtype=torch.float64) + 0.5, right


def all_pairs(a, b, held, labels, classes, trust, left=None, right=None):
    """The truth, pair by pair, ``[B, K]``."""
    ha, hb = held
    totals = torch.zeros(classes, dtype=torch.float64).index_add(0, labels, trust)
    a = a if right is None else torch.linalg.solve(right, a.mT).mT
    b = b if left is None else b / left
    pairs = (a @ ha.mT) * (b @ hb.mT) * (trust / totals[labels])
    return torch.zeros(len(a), classes, dtype=torch.float64).index_add(1, labels, pairs)


def made(classes, examples=500, seen=350, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (examples,), generator=generator)
    anchors = ClassAnchors(labels, classes, INPUTS, dtype=torch.float64)
    features, grads = rows_of(labels, classes, generator)
    trust = torch.rand(examples, generator=generator, dtype=torch.float64)
    who = torch.randperm(examples, generator=generator)[:seen]
    for part in who.split(100):
        anchors.update(part, grads[part], features, trust)
    left, right = curvature(classes, generator)
    anchors.use_inverse(factorise(DiagonalKronecker(left[None], right[None])))
    # of a class that has more, the latest sixteen are held
    held = anchors._examples[anchors._examples >= 0]
    truth = ((features[held], grads[held]), labels[held], classes, trust[held])
    return anchors, truth, (left, right), generator


@pytest.mark.parametrize(("above", "chunk"), [(256, 0), (0, 2**26), (0, 4_000)])  # one product; gathered, in parts
def test_up_to_eight_classes_they_are_exact(above, chunk, monkeypatch):
    monkeypatch.setattr("sgoif.influence.class_anchors.GATHER_ABOVE", above)
    monkeypatch.setattr("sgoif.influence.class_anchors._CHUNK_BYTES", chunk)
    anchors, truth, factors, generator = made(8)
    assert anchors.known.all()
    a, b = normal(generator, 20, INPUTS), normal(generator, 20, 8)
    classes = torch.randint(0, 8, (20, 6), generator=generator)
    solved, plain = anchors.dots_of(a, b, classes)
    torch.testing.assert_close(solved, all_pairs(a, b, *truth, *factors).gather(1, classes))
    torch.testing.assert_close(plain, all_pairs(a, b, *truth).gather(1, classes))


@pytest.mark.parametrize("classes", [100, 400])
def test_of_many_classes_a_few_rows_say_what_all_of_them_say(classes):
    anchors, truth, factors, generator = made(classes, examples=4 * classes, seen=4 * classes)
    labels = torch.randint(0, classes, (200,), generator=generator)
    a, b = rows_of(labels, classes, generator)
    near = torch.cat([(b + torch.nn.functional.one_hot(labels, classes)).topk(5, 1).indices, labels[:, None]], 1)
    solved, plain = anchors.dots_of(a, b, near)
    for found, whole in ((solved, all_pairs(a, b, *truth, *factors)), (plain, all_pairs(a, b, *truth))):
        wanted = whole.gather(1, near)
        assert (found - wanted).norm() < 0.05 * wanted.norm()


def test_a_saved_state_and_a_file_give_the_same_scores():
    anchors, _, _, generator = made(100)
    again = ClassAnchors(anchors._labels, 100, INPUTS, dtype=torch.float64)
    again.load_state_dict(anchors.state_dict())
    filed = ClassAnchors.from_tensors(anchors.tensors())
    a, b, classes = normal(generator, 4, INPUTS), normal(generator, 4, 100), torch.arange(8).view(4, 2)
    for other in (again, filed):
        for one, two in zip(anchors.dots_of(a, b, classes), other.dots_of(a, b, classes), strict=True):
            assert torch.equal(one, two)
        assert torch.equal(anchors.known, other.known)


def test_a_large_class_holds_its_latest_sixteen():
    generator = torch.Generator().manual_seed(2)
    labels = torch.cat([torch.zeros(40, dtype=torch.int64), torch.arange(1, 8)])
    anchors = ClassAnchors(labels, 8, INPUTS, dtype=torch.float64)
    trust = torch.ones(len(labels), dtype=torch.float64)
    early, late = (rows_of(labels, 8, generator) for _ in range(2))
    anchors.update(torch.arange(40), early[1][:40], early[0], trust)
    anchors.update(torch.arange(16), late[1][:16], late[0], trust)
    a, b = normal(generator, 3, INPUTS), normal(generator, 3, 8)
    expected = ((a @ late[0][:16].mT) * (b @ late[1][:16].mT)).mean(1)
    found, _ = anchors.dots_of(a, b, torch.zeros(3, 1, dtype=torch.int64))
    torch.testing.assert_close(found[:, 0], expected)
    assert anchors.known.tolist() == [True] + 7 * [False]


def test_a_diagonal_kronecker_product_is_the_whole_one():
    generator = torch.Generator().manual_seed(4)
    left, right = curvature(6, generator)
    whole, diagonal = Kronecker(torch.diag(left), right), DiagonalKronecker(left[None], right[None])
    vector = normal(generator, 6 * INPUTS, 3)
    torch.testing.assert_close(diagonal.matmul(vector), whole.matmul(vector))
    torch.testing.assert_close(diagonal.diagonal(), whole.diagonal())
    torch.testing.assert_close(factorise(diagonal).apply(vector), factorise(whole).apply(vector))


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
