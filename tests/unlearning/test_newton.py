"""One Newton step away from some examples: dense Newton in float64, retraining to the optimum, honest certificates."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from sgoif.unlearning.newton import Request, anchor_table, priority_table, remove
from sgoif.unlearning.softmax import HeadRows

DECAY = 0.05
SIZE = 60
GONE = torch.arange(SIZE) % 7 == 0


def objective(theta, rows, decay=DECAY):
    return F.cross_entropy(rows.features @ theta.mT, rows.labels) + decay / 2 * theta.square().sum()


gradient_of = torch.func.grad(objective)


def hessian_of(theta, *given):
    return torch.func.hessian(objective)(theta, *given).reshape(theta.numel(), theta.numel())


def optimum(rows, start):
    """Newton steps by dense matrices, until the gradient is rounding."""
    theta = start
    for _ in range(30):
        gradient = gradient_of(theta, rows).flatten()
        if gradient.norm() < 1e-13:
            return theta
        theta = theta - torch.linalg.solve(hessian_of(theta, rows), gradient).reshape(theta.shape)
    raise AssertionError(f"gradient norm {gradient.norm():.1e}")


@pytest.fixture(scope="module")
def rows():
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 3, (SIZE,), generator=generator)
    features = torch.randn(SIZE, 4, generator=generator, dtype=torch.float64)
    features[:, :3] += F.one_hot(labels, 3)
    return HeadRows(features, labels)


def part(rows, which):
    return HeadRows(rows.features[which], rows.labels[which])


def request_at(theta, rows, gone=GONE, **settings):
    parts = {"gone": part(rows, gone), "left": part(rows, ~gone), "anchors": part(rows, slice(0, 20))}
    return Request(theta=theta, **{**parts, "num_left": int((~gone).sum()), "weight_decay": DECAY, **settings})


@pytest.fixture(scope="module")
def trained(rows):
    return optimum(rows, torch.zeros(3, 4, dtype=torch.float64))


def test_at_an_optimum_the_step_is_newtons_on_what_is_left(rows, trained):
    left = part(rows, ~GONE)
    step = torch.linalg.solve(hessian_of(trained, left), gradient_of(trained, left).flatten())
    expected = trained - step.reshape(3, 4)
    found = remove(request_at(trained, rows), tolerance=1e-12)
    torch.testing.assert_close(found.theta, expected, rtol=1e-9, atol=1e-10)
    assert found.certificate.is_at_optimum and found.certificate.is_whole


def test_the_step_is_near_the_retrained_head_and_within_the_bound(rows, trained):
    retrained = optimum(part(rows, ~GONE), trained)
    found = remove(request_at(trained, rows), tolerance=1e-12)
    off, moved = (found.theta - retrained).norm(), (trained - retrained).norm()
    assert off < 0.1 * moved  # 0.03 is seen; the Hessian of all examples gives 0.2
    assert off <= found.certificate.distance_bound
    remaining = gradient_of(found.theta, part(rows, ~GONE)).norm()
    np.testing.assert_allclose(found.certificate.remaining, remaining, rtol=1e-6)
    np.testing.assert_allclose(found.certificate.after, remaining, rtol=1e-6)  # nothing was there before


def test_an_unfinished_head_is_moved_by_what_leaves_only(rows, trained):
    unfinished = trained + 0.3
    found = remove(request_at(unfinished, rows), tolerance=1e-12)
    at_start = gradient_of(unfinished, rows)
    at_end = gradient_of(found.theta, part(rows, ~GONE))
    before = gradient_of(unfinished, part(rows, ~GONE)) - at_start
    seen = found.certificate
    assert not seen.is_at_optimum
    np.testing.assert_allclose(
        [seen.unfinished, seen.before, seen.after, seen.remaining],
        [float(part.norm()) for part in (at_start, before, at_end - at_start, at_end)],
    )
    assert seen.relative < 0.2 and seen.remaining > 0.8 * seen.unfinished
    retrained = optimum(part(rows, ~GONE), trained)
    assert (found.theta - retrained).norm() <= seen.distance_bound


def test_parts_add_up_and_one_alone_is_what_retraining_says(rows, trained):
    request = request_at(trained, rows)
    found = remove(request, tolerance=1e-12)
    slope = (request.anchors.gradient(trained) * (found.theta - trained)).sum()
    torch.testing.assert_close(found.parts.sum(), slope)
    changes = []
    for i in torch.nonzero(GONE).flatten():
        alone = torch.arange(SIZE) == i
        retrained = optimum(part(rows, ~alone), trained)
        changes.append(request.anchors.losses(retrained).mean() - request.anchors.losses(trained).mean())
    expected = torch.stack(changes)
    # first order: 0.21 is seen at one of 60 examples; a wrong sign would give 2
    assert (found.alone - expected).norm() < 0.3 * expected.norm()


def test_a_sample_and_an_unfinished_solve_are_told(rows, trained):
    sampled = remove(request_at(trained, rows, num_left=10 * SIZE)).certificate
    assert not sampled.is_whole and sampled.distance_bound is None
    assert remove(request_at(trained, rows, weight_decay=0.0, damping=0.1)).certificate.distance_bound is None
    short, whole = (remove(request_at(trained, rows), iterations=count).certificate for count in (1, 100))
    assert short.relative > 2 * whole.relative and short.confidence < whole.confidence


def test_a_head_without_any_regularisation_is_answered_for(rows, trained):
    wide = HeadRows(F.pad(rows.features, (0, 3)), rows.labels)  # features that nobody has: the Hessian is singular
    found = remove(request_at(F.pad(trained, (0, 3)), wide, weight_decay=0.0, damping=0.0), tolerance=1e-10)
    left = part(rows, ~GONE)
    change = gradient_of(trained, left, 0.0) - gradient_of(trained, rows, 0.0)
    step = -torch.linalg.pinv(hessian_of(trained, left, 0.0), rtol=1e-10) @ change.flatten()
    torch.testing.assert_close(found.theta, F.pad(trained + step.reshape(3, 4), (0, 3)), rtol=1e-6, atol=1e-8)


def test_priorities_are_shares_of_the_effect():
    parts = np.array([0.01, -2.0, 0.0, 1.0])
    table = priority_table(np.array(["a", "b", "c", "d"]), np.arange(4), parts, parts / 2, 0.7)
    assert table["id"].tolist() == ["b", "d", "a", "c"] and table["matters"].tolist() == [True, True, False, False]
    np.testing.assert_allclose(table["score"].sum(), 1)
    assert [word.split(":")[0] for word in table["what_to_do"]] == ["first", "first", "later", "later"]
    assert "falls" in table["what_to_do"][0] and "rises" in table["what_to_do"][1]
    nothing = priority_table(np.arange(2), np.arange(2), np.zeros(2), np.zeros(2), 0.0)
    assert nothing["score"].tolist() == [0, 0] and not nothing["matters"].any()


def test_anchors_are_named_and_empty_classes_left_out():
    table = anchor_table(np.array([2, 0, 2]), np.array([1.0, 2.0, 3.0]), np.array([2.0, 2.0, 3.0]), ["x", "y", "z"])
    assert table["anchor"].tolist() == ["all", "x", "z"] and table["num_examples"].tolist() == [3, 1, 2]
    np.testing.assert_allclose(table["loss"], [2, 2, 2])
    np.testing.assert_allclose(table["change"], [1 / 3, 0, 0.5])
