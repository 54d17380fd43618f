"""The score against its formula written out, and alarms against the rate they promise."""

import numpy as np
import pytest
import torch

from sgoif.errors import SgoifError
from sgoif.features.extraction import HeadFeatures
from sgoif.features.rule import OodRule
from sgoif.ood.conformal import Conformal


def seen_of(count, seed, shift=0.0, dims=(5, 3, 50), classes=4):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(count, 6, generator=generator).abs() + shift  # no ties
    weights = torch.randn(6, classes, generator=torch.Generator().manual_seed(99))
    # the last layer has more columns than there are rows to fit it
    pooled = {f"layer{i}": torch.randn(count, d, generator=generator) + shift for i, d in enumerate(dims)}
    return HeadFeatures(features, features @ weights, pooled)


def dense(fitted, new, base, beta):
    """The formula with plain inverses, every left-out fit made anew."""

    def leverage(rows, x, share, is_centred, count):
        mean = rows.mean(0) if is_centred else np.zeros(rows.shape[1])
        moment = (rows - mean).T @ (rows - mean) / count
        return (x - mean) @ np.linalg.inv(moment + share * np.eye(len(mean))) @ (x - mean)

    def damping(rows, relative, is_centred):
        return relative * ((rows - is_centred * rows.mean(0)) ** 2).mean(0).mean()

    def levels(rows, x_new, relative, is_centred):
        n, lam = len(rows), damping(rows, relative, is_centred)
        own = [leverage(np.delete(rows, i, 0), rows[i], lam, is_centred, n) for i in range(n)]
        return np.array(own), np.array([leverage(rows, x, lam, is_centred, n) for x in x_new])

    def based(logits, lev):
        if base == "energy":
            return -np.log(np.exp(logits).sum(1))
        return -np.log((logits - logits.mean(1, keepdims=True)).max(1) / np.sqrt(lev))

    def arrays(seen):
        h, f = seen.features.double().numpy(), seen.logits.double().numpy()
        return np.column_stack([h, np.ones(len(h))]), f, [p.double().numpy() for p in seen.pooled.values()]

    (h, f, pooled), (h_new, f_new, pooled_new) = arrays(fitted), arrays(new)
    lev, lev_new = levels(h, h_new, 1e-3, False)
    own, other = based(f, lev), based(f_new, lev_new)
    total = (other - own.mean()) / own.std(ddof=1)
    u, u_new = [], []
    for rows, x_new in zip(pooled, pooled_new, strict=True):
        a, b = map(np.log, levels(rows, x_new, 1e-2, True))
        u.append((a - a.mean()) / a.std(ddof=1))
        u_new.append((b - a.mean()) / a.std(ddof=1))
    mean, mean_new = np.mean(u, 0), np.mean(u_new, 0)
    return total + beta * np.maximum(mean_new - np.quantile(mean, 0.95), 0) / mean.std(ddof=1)


@pytest.mark.parametrize(("base", "beta"), [("margin", 1.0), ("energy", 1.0), ("margin", 0.0), ("margin", 2.5)])
def test_scores_are_the_formula(base, beta):
    fitted, new = seen_of(40, 0), seen_of(12, 1, shift=0.7)
    found = OodRule.fit(fitted, base=base, gate_weight=beta).scores(new).numpy()
    # left-out moments of a dense fit are divided by n, as ours: the two agree to rounding
    np.testing.assert_allclose(found, dense(fitted, new, base, beta), rtol=1e-6, atol=1e-6)


def test_a_network_without_hidden_layers_is_judged_by_its_head():
    fitted = HeadFeatures(seen_of(50, 0).features, seen_of(50, 0).logits, {})
    assert OodRule.fit(fitted).scores(fitted).isfinite().all()


def test_numbers_that_are_not_finite_are_unlike_anything_and_no_calibration():
    rule, broken = OodRule.fit(seen_of(50, 0)), seen_of(4, 1)
    broken.logits[2] = torch.nan
    assert rule.scores(broken).isinf().tolist() == [False, False, True, False]
    with pytest.raises(SgoifError, match="1 of 4 calibration images"):
        OodRule.fit(broken)
    with pytest.raises(SgoifError, match="base must be"):
        OodRule.fit(seen_of(50, 0), base="msp")


def test_alarms_on_usual_inputs_come_at_the_promised_rate():
    """Over many calibrations the share of alarms is floor(rate (n+1)) / (n+1), for the whole score with its fit."""
    rates, shares, n = np.array([0.01, 0.05, 0.2]), [], 199
    for seed in range(60):
        rule = OodRule.fit(seen_of(60, 10 * seed))
        kept = Conformal(np.sort(rule.scores(seen_of(n, 10 * seed + 1)).numpy()))
        fresh = rule.scores(seen_of(2000, 10 * seed + 2)).numpy()
        shares.append([(fresh > kept.threshold(rate)).mean() for rate in rates])
    spread = (rates * (1 - rates) / n / 60) ** 0.5
    assert (np.abs(np.mean(shares, 0) - rates) < 4 * spread).all()


def test_p_values_flags_and_confidence_agree_and_confidence_is_the_beta_distribution():
    scipy = pytest.importorskip("scipy.stats")
    kept = Conformal(np.arange(200.0))
    scores = np.array([100.0, 185.0, 189.5, 191.0, 300.0])
    above = (kept.scores[:, None] >= scores).sum(0)
    rarer = scipy.beta.cdf(0.05, above + 1, 200 - above + 1)
    expected = np.where(scores > kept.threshold(0.05), rarer, 1 - rarer)
    np.testing.assert_allclose(kept.confidence(scores, 0.05), expected, atol=1e-9)
    np.testing.assert_array_equal(scores > kept.threshold(0.05), kept.p_values(scores) <= 0.05 + 1e-12)


def test_a_rate_that_so_few_images_cannot_promise_is_refused():
    with pytest.raises(SgoifError, match="calibrate with 1998 images"):
        Conformal(np.arange(100.0)).threshold(0.001)
    with pytest.raises(SgoifError, match="between 0 and 1"):
        Conformal(np.arange(100.0)).threshold(1.5)
