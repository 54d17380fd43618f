"""Detectors that others published and that need no training of their own, over what enters and leaves the head.

Pure functions ``(head, train, new) -> scores``, high is unlike. Settings are those of the papers for CIFAR-10, none is
tuned here; tests hold all but SCALE against pytorch-ood. Feature shaping (ReAct, ASH, SCALE) works on pooled features,
as OpenOOD has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Head:
    """The last layer, ``logits = features @ weight.T + bias``."""

    weight: Tensor  # [C, d]
    bias: Tensor  # [C]

    def __call__(self, features: Tensor) -> Tensor:
        return features @ self.weight.mT + self.bias


@dataclass(frozen=True, slots=True)
class Rows:
    """What some pictures give: float32."""

    features: Tensor  # [N, d]
    logits: Tensor  # [N, C]
    labels: Tensor | None = None  # [N], of training pictures


Detector = Callable[[Head, Rows, Rows], Tensor]


def msp(_head: Head, _train: Rows, new: Rows) -> Tensor:
    """Maximum softmax probability (Hendrycks and Gimpel 2017)."""
    return -new.logits.softmax(1).amax(1)


def max_logit(_head: Head, _train: Rows, new: Rows) -> Tensor:
    """Hendrycks et al. 2022."""
    return -new.logits.amax(1)


def energy(_head: Head, _train: Rows, new: Rows) -> Tensor:
    """Liu et al. 2020."""
    return -new.logits.logsumexp(1)


def knn(_head: Head, train: Rows, new: Rows, k: int = 50) -> Tensor:
    """Distance to the 50th neighbour among all training features, at unit length (Sun et al. 2022)."""
    bank = _unit(train.features)
    parts = [torch.cdist(_unit(part), bank).kthvalue(k, 1).values for part in new.features.split(500)]
    return torch.cat(parts)


def mahalanobis(_head: Head, train: Rows, new: Rows) -> Tensor:
    """Least squared distance to a class mean under the shared covariance (Lee et al. 2018, features of the head)."""
    assert train.labels is not None
    wide, x = train.features.double(), new.features.double()
    means = torch.stack([wide[train.labels == c].mean(0) for c in range(int(train.labels.max()) + 1)])
    within = wide - means[train.labels]
    covariance = within.mT @ within / len(wide) + 1e-6 * torch.eye(wide.shape[1], dtype=wide.dtype)
    whitener = torch.linalg.inv(torch.linalg.cholesky(covariance)).mT
    return torch.stack([((x - mean) @ whitener).square().sum(1) for mean in means]).amin(0)


def vim(head: Head, train: Rows, new: Rows) -> Tensor:
    """Energy plus a virtual logit of what lies outside the principal half of the features (Wang et al. 2022)."""
    origin = -torch.linalg.pinv(head.weight.double()) @ head.bias.double()
    seen, x = train.features.double() - origin, new.features.double() - origin
    outside = torch.linalg.eigh(seen.mT @ seen / len(seen)).eigenvectors[:, : seen.shape[1] - seen.shape[1] // 2]
    alpha = train.logits.double().amax(1).mean() / (seen @ outside).norm(dim=1).mean()
    return alpha * (x @ outside).norm(dim=1) - new.logits.double().logsumexp(1)


def react(head: Head, train: Rows, new: Rows, percentile: float = 0.9) -> Tensor:
    """Energy of features cut off at the 90th percentile (Sun et al. 2021)."""
    flat = train.features.flatten()
    limit = flat.kthvalue(max(1, round(percentile * len(flat)))).values
    return -head(new.features.clamp_max(limit)).logsumexp(1)


def gradnorm(_head: Head, _train: Rows, new: Rows) -> Tensor:
    """L1 norm of the head's gradient towards a uniform prediction (Huang et al. 2021): it factorises."""
    classes = new.logits.shape[1]
    return -(new.logits.softmax(1) - 1 / classes).abs().sum(1) * new.features.abs().sum(1)


def klm(_head: Head, train: Rows, new: Rows) -> Tensor:
    """Least divergence from the typical prediction of a class (Hendrycks et al. 2022)."""
    seen, p = train.logits.softmax(1), new.logits.softmax(1)
    predicted = seen.argmax(1)
    typical = torch.stack([seen[predicted == c].mean(0) for c in predicted.unique()]).clamp_min(1e-30)
    return (torch.special.xlogy(p, p).sum(1, keepdim=True) - p @ typical.log().mT).amin(1)


def dice(head: Head, train: Rows, new: Rows, dropped: float = 0.9) -> Tensor:
    """Energy by the tenth of the weights that contribute most (Sun and Li 2022)."""
    contribution = train.features.mean(0) * head.weight
    kept = torch.where(contribution > contribution.quantile(dropped), head.weight, 0.0)
    return -Head(kept, head.bias)(new.features).logsumexp(1)


def ash(head: Head, _train: Rows, new: Rows, percentile: float = 0.65) -> Tensor:
    """Energy of features pruned and sharpened, ASH-S (Djurisic et al. 2023)."""
    kept, factor = _pruned(new.features, percentile)
    return -head(kept * factor).logsumexp(1)


def scale(head: Head, _train: Rows, new: Rows, percentile: float = 0.65) -> Tensor:
    """Energy of features sharpened but not pruned (Xu et al. 2024)."""
    _, factor = _pruned(new.features, percentile)
    return -head(new.features * factor).logsumexp(1)


def fdbd(head: Head, train: Rows, new: Rows) -> Tensor:
    """Mean distance to the decision boundaries, by that to the mean feature (Liu and Qin 2024)."""
    apart = torch.cdist(head.weight, head.weight)
    apart.fill_diagonal_(1.0)
    top, predicted = new.logits.max(1)
    distance = ((top[:, None] - new.logits) / apart[predicted]).sum(1) / (new.logits.shape[1] - 1)
    return -distance / (new.features - train.features.mean(0)).norm(dim=1).clamp_min(1e-8)


DETECTORS: Mapping[str, Detector] = {
    "MSP": msp,
    "MaxLogit": max_logit,
    "Energy": energy,
    "KNN": knn,
    "ViM": vim,
    "Mahalanobis": mahalanobis,
    "ReAct": react,
    "GradNorm": gradnorm,
    "KL matching": klm,
    "DICE": dice,
    "ASH-S": ash,
    "SCALE": scale,
    "fDBD": fdbd,
}


def _unit(features: Tensor) -> Tensor:
    return features / features.norm(dim=1, keepdim=True).clamp_min(1e-12)


def _pruned(features: Tensor, percentile: float) -> tuple[Tensor, Tensor]:
    """Features without the smallest, and the factor by which those left are raised."""
    count = features.shape[1] - round(features.shape[1] * percentile)
    values, places = features.topk(count, dim=1)
    kept = torch.zeros_like(features).scatter(1, places, values)
    # a picture that activates nothing at all is left as it is
    ratio = features.sum(1) / kept.sum(1).clamp_min(1e-12)
    return kept, ratio.exp()[:, None]
