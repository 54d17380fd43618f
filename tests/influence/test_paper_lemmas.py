"""The paper's lemmas, each against dense float64 numbers; Lemma 4 is in tests/linalg/test_neumann_cg.py."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sgoif.influence import Gate, GateSettings, Tracker
from sgoif.linalg import Dense, Richardson
from sgoif.records import BlockShape
from sgoif.training.anchor_health import coverage, gram_health

F64 = {"dtype": torch.float64}


def spd(seed, size=6):
    root = torch.randn(size, size, generator=torch.Generator().manual_seed(seed), **F64)
    return root @ root.mT + 0.5 * torch.eye(size, **F64)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 40))
def test_lemma_1_the_error_of_a_score_is_at_most_the_sum_of_its_parts(seed, steps):
    """``E_solver + E_curv + E_conf`` (Eq. 11) for a tracked direction, its gate and a surrogate of the curvature.

    The other two parts are zero here: nothing is projected, and the loss is its own quadratic model.
    """
    generator = torch.Generator().manual_seed(seed)
    true, surrogate = spd(seed), spd(seed) + 0.1 * spd(seed + 1)
    goal, example = torch.randn(6, 1, generator=generator, **F64), torch.randn(6, generator=generator, **F64)
    tracker = Tracker({"fc": BlockShape(1, 1, 6, False)}, 1, solver=Richardson(), **F64)
    tracker.use_operator(Dense(surrogate))
    tracker.retarget({"fc": goal.mT.reshape(1, 1, 1, 6)})
    tracker.advance(steps)
    phi = tracker.directions["fc"].flatten()
    residual = goal[:, 0] - surrogate @ phi
    reading = Gate(GateSettings(mode="linear"), train_size=10, planned_steps=None).read(
        residual.norm()[None] / goal.norm(), torch.zeros(1, **F64), goal.norm()[None]
    )
    confidence = float(reading.confidence[0])
    score, exact = -confidence * phi @ example, -torch.linalg.solve(true, goal[:, 0]) @ example
    of_solver = residual.norm() / torch.linalg.eigvalsh(surrogate)[0] * example.norm()
    gap = torch.linalg.solve(surrogate, goal[:, 0]) - torch.linalg.solve(true, goal[:, 0])
    of_confidence = (1 - confidence) * (phi @ example).abs()
    assert (score - exact).abs() <= (of_solver + gap.norm() * example.norm() + of_confidence) * (1 + 1e-9)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 19), st.floats(0.01, 0.99))
def test_lemma_2_the_first_k_stay_if_no_score_errs_by_half_their_margin(seed, k, share):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(20, generator=generator, **F64)
    ranked = scores.sort(descending=True).values
    margin = ranked[k - 1] - ranked[k]
    errors = share * margin / 2 * (2 * torch.rand(20, generator=generator, **F64) - 1)
    first, found = (set(values.topk(k).indices.tolist()) for values in (scores, scores + errors))
    assert first == found


@pytest.mark.parametrize("opens", [0.01, 0.5, 1.0])
def test_lemma_3_needs_the_largest_confidence_and_not_its_mean_square(opens):
    """Printed with ``E[c²] σ²``, the bound on a wrong order is broken by a gate that is open now and then.

    With one probe, noise ``N(0, σ²)`` and ``c`` 1 with probability p and else 0, two examples apart by ``σ`` change
    places with probability ``p Φ(-1)``. The bound holds with ``sup c² σ²``.
    """
    wrong = opens * 0.5 * math.erfc(1 / math.sqrt(2))
    printed, mended = (math.exp(-1 / (2 * square)) for square in (opens, 1.0))
    assert wrong <= mended
    assert (wrong > printed) == (opens < 0.1)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 4))
def test_lemma_5_what_anchors_do_not_span_is_bounded_by_any_combination_of_them(seed, anchors):
    """The left side is the smallest of its kind, so the factor ``1/λ_min(G)`` is not needed; coverage measures it."""
    generator = torch.Generator().manual_seed(seed)
    directions = torch.randn(7, anchors, generator=generator, **F64)
    gradients = torch.randn(5, 7, generator=generator, **F64)
    unit = directions / directions.norm(dim=0)
    projected = gradients @ unit @ torch.linalg.pinv(unit)
    left = (gradients - projected).square().sum(1)
    smallest, _ = gram_health(directions)
    for _ in range(5):
        other = torch.randn(5, anchors, generator=generator, **F64) @ unit.mT
        assert (left <= (gradients - other).square().sum(1) / smallest.clamp_max(1) * (1 + 1e-9)).all()
    seen = coverage(gradients @ directions, gradients.square().sum(1), directions)
    torch.testing.assert_close(seen, (1 - left / gradients.square().sum(1)).mean())


@pytest.mark.parametrize("anchors", [1, 7])
def test_lemma_6_a_step_takes_one_product_for_all_anchors(anchors):
    products = []

    class Counted(Dense):
        def matmul(self, columns):
            products.append(columns.shape[1])
            return super().matmul(columns)

    tracker = Tracker({"fc": BlockShape(1, 1, 6, False)}, anchors, solver=Richardson(leak_horizon=800), **F64)
    tracker.use_operator(Counted(spd(0)))
    tracker.retarget({"fc": torch.randn(anchors, 1, 1, 6, **F64)})
    products.clear()
    tracker.advance(steps=9)
    assert products == [anchors] * 9
