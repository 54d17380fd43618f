"""Detectors of others: all but SCALE are held against pytorch-ood, where that is installed."""

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.ood import measure as ood
from benchmarks.ood.detectors import DETECTORS, Head, Rows


@pytest.fixture
def case():
    """Features of three classes, a head that tells them apart, and some that are unlike."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(3, 12, generator=generator)
    head = Head(weight, 0.1 * torch.randn(3, generator=generator))

    def rows(count, scale):
        labels = torch.arange(count) % 3
        features = (scale * weight[labels] + torch.randn(count, 12, generator=generator)).relu()
        return Rows(features, head(features), labels)

    return head, rows(300, 1.0), rows(40, 0.2)


def test_detectors_are_those_of_pytorch_ood(case):
    import tests.integrations.torchvision_operators  # noqa: F401

    others = pytest.importorskip("pytorch_ood.detector")
    head, train, new = case
    layer = nn.Linear(12, 3)
    layer.weight.data, layer.bias.data = head.weight, head.bias
    maps = new.features[:, :, None, None]
    flat = nn.Sequential(nn.Flatten(), layer)

    def by_features(detector):
        return detector.fit_features(train.features, train.labels).predict_features(new.features)

    react = others.ReAct(None, flat).fit_feature_maps(train.features[:, :, None, None], train.labels)
    theirs = {
        "MSP": others.MaxSoftmax.score(new.logits),
        "MaxLogit": others.MaxLogit.score(new.logits),
        "Energy": others.EnergyBased.score(new.logits),
        "KNN": by_features(others.KNN(None, k=50)),
        "ViM": by_features(others.ViM(None, 6, head.weight, head.bias)),
        "ReAct": react.predict_feature_maps(maps),
        "KL matching": others.KLMatching(None).fit_logits(train.logits, train.labels).predict_logits(new.logits),
        "DICE": by_features(others.DICE(None, head.weight, head.bias, 0.9)),
        "ASH-S": others.ASH(None, flat).predict_feature_maps(maps),
        "fDBD": others.fDBD(None, layer).fit_features(train.features).predict_features(new.features),
    }
    for name, expected in theirs.items():
        found = DETECTORS[name](head, train, new)
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3, err_msg=name)
    # these two are stated up to a factor
    layer_only = others.GradNorm(layer, param_filter=lambda name: name == "weight")
    for name, expected in {
        "GradNorm": layer_only.to("cpu").predict(new.features),
        "Mahalanobis": by_features(others.Mahalanobis(None)),
    }.items():
        ratio = (DETECTORS[name](head, train, new).double() / expected.double()).numpy()
        np.testing.assert_allclose(ratio, ratio.mean(), rtol=2e-2, err_msg=name)


def test_every_detector_finds_short_features_unlike(case):
    head, train, new = case
    usual = Rows(train.features[:40], train.logits[:40])
    for name, detector in DETECTORS.items():
        scores = [detector(head, train, rows) for rows in (usual, new)]
        assert all(part.isfinite().all() and part.shape == (40,) for part in scores), name
        if name != "Mahalanobis":  # to which short features are usual
            assert scores[1].mean() > scores[0].mean(), name


def test_gradnorm_is_the_gradient(case):
    head, train, new = case
    found = DETECTORS["GradNorm"](head, train, new)
    for i in range(3):
        weight = head.weight.clone().requires_grad_()
        loss = -(new.features[i] @ weight.mT + head.bias).log_softmax(0).mean()
        (gradient,) = torch.autograd.grad(loss, weight)
        torch.testing.assert_close(-gradient.abs().sum(), found[i], rtol=1e-4, atol=1e-5)


def test_sets_are_compared_both_ways():
    found = ood.compare_scores(np.arange(100.0), np.array([94.0, 94.5, 99.5, 120.0]))
    assert found["fpr95"] == 25.0  # 95% of the usual ones lie at or below 94.05
    assert 96 < found["auroc"] < 98 and found["aupr_in"] > 99 > found["aupr_out"]
