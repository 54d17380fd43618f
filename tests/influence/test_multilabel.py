"""Influence of tags against dense float64: the gradient of every pair, the whole matrix, the exact solve."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from sgoif.influence.multilabel import MultilabelJudge, group_gradients, notice, refit_multilabel, solve_multilabel
from sgoif.records import TAG_SIGNALS
from sgoif.tasks.multilabel import bits_of

DAMPING = 0.1


def world(seed=0, examples=12, tags=3, columns=4):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(examples, columns, generator=generator, dtype=torch.float64)
    weight = torch.randn(tags, columns, generator=generator, dtype=torch.float64)
    targets = (torch.rand(examples, tags, generator=generator) < 0.4).double()
    targets[0], targets[1] = 1.0, 0.0  # every tag has both
    return features, weight, targets


def pair_gradient(feature, weight, tag, bit):
    """Of one pair's loss, by autograd, flat over the whole head."""
    w = weight.clone().requires_grad_()
    loss = F.binary_cross_entropy_with_logits(w[tag] @ feature, torch.tensor(float(bit), dtype=w.dtype))
    return torch.autograd.grad(loss, w)[0].flatten()


def dense_curvature(features, weight):
    """``diag(v) ⊗ A``, damped by factor, as one matrix."""
    p = (features @ weight.mT).sigmoid()
    spread, inputs = (p * (1 - p)).mean(0), features.mT @ features / len(features)
    left = spread.diag() + DAMPING * spread.mean() * torch.eye(len(spread), dtype=spread.dtype)
    right = inputs + DAMPING * inputs.diagonal().mean() * torch.eye(len(inputs), dtype=inputs.dtype)
    return torch.kron(left, right), inputs, spread


@pytest.mark.parametrize("seed", range(3))
def test_signals_are_those_of_dense_gradients_and_an_exact_solve(seed):
    features, weight, targets = world(seed)
    matrix, inputs, spread = dense_curvature(features, weight)
    gradients, counts = group_gradients(features, features @ weight.mT, targets)
    assert counts.sum() == targets.numel()
    judge = MultilabelJudge(solve_multilabel(gradients, inputs, spread, DAMPING), gradients, weight)
    who = torch.randn(5, features.shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    for bit in (0, 1):
        bits = torch.full((5, 3), bool(bit))
        found = MultilabelJudge.signals(who @ weight.mT, judge.products(who), bits)
        for i in range(5):
            for tag in range(3):
                mine = pair_gradient(who[i], weight, tag, bit)
                influence = []
                for side in (0, 1):
                    group = [j for j in range(len(features)) if targets[j, tag] == side]
                    mean = sum(pair_gradient(features[j], weight, tag, side) for j in group) / len(group)
                    influence.append((-mine @ torch.linalg.solve(matrix, mean), -mine @ mean))
                signals = dict(zip(TAG_SIGNALS, found[i, tag], strict=True))
                torch.testing.assert_close(signals["worst"], influence[1 - bit][0])
                for kind, tail in enumerate(("", "_identity")):
                    torch.testing.assert_close(signals[f"harm{tail}"], (influence[0][kind] + influence[1][kind]) / 2)
                p = (who[i] @ weight[tag]).sigmoid()
                right = p if bit else 1 - p
                torch.testing.assert_close(signals["p_given"], right)
                torch.testing.assert_close(signals["loss"], -right.log())
                torch.testing.assert_close(signals["margin"], right.log() - (1 - right).log())
                assert abs(signals["probe_loss"]) < 1e-12  # the probe is the head itself here


def test_unknown_tags_make_no_anchor():
    features, weight, targets = world()
    hidden = targets.clone()
    hidden[2:, 1] = torch.tensor([math.nan, -1.0] * 5, dtype=torch.float64)
    gradients, counts = group_gradients(features, features @ weight.mT, hidden)
    whole, all_counts = group_gradients(features, features @ weight.mT, targets)
    assert counts[:, 1].tolist() == [1, 1]
    few, _ = group_gradients(features[:2], features[:2] @ weight.mT, targets[:2])
    torch.testing.assert_close(gradients[:, 1], few[:, 1])
    torch.testing.assert_close(gradients[:, 0], whole[:, 0])
    assert torch.isfinite(gradients).all() and all_counts.sum() == targets.numel()


def test_a_refitted_head_is_the_optimum_near_the_old_one():
    features, weight, targets = world(examples=40)
    targets[5, 0] = math.nan
    trust = torch.ones(40, dtype=torch.float64)
    trust[30:] = 0
    found = refit_multilabel(features, targets, weight, trust, ridge=0.05, iterations=400)
    w = found.clone().requires_grad_()
    present, absent = bits_of(targets[:30])
    losses = F.binary_cross_entropy_with_logits(features[:30] @ w.mT, present.double(), reduction="none")
    pull = 0.05 * features[:30].square().mean()
    objective = (losses * (present | absent)).sum() / 30 + pull / 2 * (w - weight).square().sum()
    (gradient,) = torch.autograd.grad(objective, w)
    assert gradient.abs().max() < 1e-6  # a missing tag or an untrusted example in the fit: above 1e-3
    assert (found - weight).abs().max() > 0.01


@given(seed=st.integers(0, 2**31), tags=st.integers(1, 12), most=st.integers(1, 4))
def test_given_tags_and_the_most_believed_absent_ones_are_noticed(seed, tags, most):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(4, tags, generator=generator)
    targets = torch.randint(-1, 2, (4, tags), generator=generator).float()
    targets[0, 0] = math.nan
    found = notice(logits, targets, most)
    for row in range(4):
        chosen = {(int(t), bool(b)) for t, b in zip(found.tags[row], found.present[row]) if t >= 0}
        absent = [t for t in range(tags) if targets[row, t] == 0]
        believed = sorted(absent, key=lambda t: -float(logits[row, t]))[:most]
        expected = {(t, True) for t in range(tags) if targets[row, t] == 1} | {(t, False) for t in believed}
        assert chosen == expected
