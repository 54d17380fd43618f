"""A linear head on features of a network, fitted to verified held-out labels: it has not seen any training label.

What a trained network says of labels that it was trained on is coloured by having learnt them; a head that was fitted
to held-out examples alone says it as if of new ones. Over 20 noisy short trainings (``python -m benchmarks run judge
--judge judge``) AP is 6.4 above the best free signal with verified hold-outs, and 3.4 with hold-outs as given. On clean
development sets up to 17% of CIFAR-10's labels were claimed where the head is right on less than 60% of the held-out
labels, and next to none elsewhere: so 65% are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sgoif.judging.folds import make_folds
from sgoif.judging.linear import LinearHead
from sgoif.types import Ints

__all__ = ["LEAST_RIGHT", "Probe", "fit_probe", "last_word"]

LEAST_RIGHT = 0.65  # of the held-out labels, out of fold
_MOST = 10.0  # standard deviations of a feature


@dataclass(frozen=True, slots=True)
class Probe:
    """Weights of standardised features."""

    centre: Tensor  # [D]
    scale: Tensor  # [D]
    weights: Tensor  # [D + 1, C], the bias last
    held_logs: Tensor  # of the held-out rows, each by weights that were not fitted to it, [m, C]

    def logs(self, features: Tensor) -> Tensor:
        """Log probabilities, ``[B, C]``, of features ``[B, D]``."""
        z = ((features.float().to(self.centre.device) - self.centre) / self.scale).clamp(-_MOST, _MOST)
        return torch.addmm(self.weights[-1], z, self.weights[:-1]).log_softmax(1)


def fit_probe(features: Tensor, labels: Ints, num_classes: int) -> Probe | None:
    """Fit a probe to held-out rows, ``[m, D]``; None where fewer than two classes have one."""
    if len(np.unique(labels)) < 2:
        return None
    features = features.float().cpu()
    centre, scale = features.mean(0), features.std(0).clamp_min(1e-6)
    inputs = ((features - centre) / scale).clamp(-_MOST, _MOST)
    head = LinearHead(inputs, num_classes, make_folds(np.arange(len(labels)), labels))
    held_logs = head.fit(torch.from_numpy(labels))
    # the mean of log probabilities over the folds, but for their normalisation
    weights = torch.stack([weights for weights in head.weights if weights is not None]).mean(0)
    return Probe(centre, scale, weights, held_logs.log_softmax(1))


def last_word(log_p: Tensor, given: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Probability of the given class, its margin and the most probable other class, ``[B]`` each."""
    own = log_p.gather(1, given[:, None])
    others, runner_up = log_p.scatter(1, given[:, None], -torch.inf).max(1)
    return own[:, 0].exp(), own[:, 0] - others, runner_up
