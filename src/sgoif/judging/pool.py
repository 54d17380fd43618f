"""Several classifiers pooled into one: ``P(c) ∝ Π P_k(c)^a_k``, with exponents by likelihood.

The exponents are fitted to labels that none of the classifiers saw, so that a classifier that adds nothing gets 0 and
one that is too timid is sharpened: the pool predicts at least as well as its best member. Predictions are held as log
probabilities, in half precision where they are many, and pooled block by block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sgoif.evidence.counts import recover_true

__all__ = ["Doubt", "Pool", "blocks", "fit_pool", "recover_logs"]

_FITTED = 20_000  # examples that the exponents are fitted on at most
_AT_ONCE = 1 << 24  # numbers in a block
_STEPS = 40
_MOST = 3.5  # log of an exponent


def blocks(count: int, num_classes: int) -> Iterator[slice]:
    """Slices of examples whose predictions are worked on at once."""
    step = max(1, _AT_ONCE // num_classes)
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


@dataclass(frozen=True, slots=True)
class Doubt:
    """Predictions are weaker than they say: so much of what they leave to other classes goes to those they confuse."""

    share: float
    near: Tensor  # where it goes, and from where, [C, C]; rows add up to 0

    def spread(self, p: Tensor) -> Tensor:
        """Weaken predictions, ``[n, C]``."""
        found = (p + self.share * (1 - p.max(1, keepdim=True).values) * (p @ self.near)).clamp_min(0)
        return found / found.sum(1, keepdim=True)


@dataclass(frozen=True, slots=True)
class Pool:
    """Predictions of several classifiers as one."""

    logs: Sequence[Tensor]  # [N, C] each
    exponents: Tensor  # [K]
    doubt: Doubt | None = None

    def __len__(self) -> int:
        return len(self.logs[0])

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return self.logs[0].shape[1]

    def predict(self, rows: slice | Tensor) -> Tensor:
        """Probabilities of some examples, ``[n, C]``."""
        parts = [a * log_p[rows].float() for a, log_p in zip(self.exponents, self.logs, strict=True)]
        found = torch.stack(parts).sum(0).softmax(1)
        return found if self.doubt is None else self.doubt.spread(found)

    def with_logs(self, logs: Sequence[Tensor]) -> Pool:
        """The same of other examples, ``[n, C]`` each."""
        return replace(self, logs=logs)


def fit_pool(
    logs: Sequence[Tensor],
    given: Tensor,
    transition: NDArray[np.floating] | None = None,
    start: Tensor | None = None,
    *,
    is_tied: bool = False,
) -> Pool:
    """Fit the exponents to labels that the classifiers did not see.

    Args:
        logs: log probabilities by each of them, ``[N, C]``.
        given: labels, ``[N]``.
        transition: ``P(given | true)``, where the classifiers predict the true class.
        start: exponents to begin with.
        is_tied: whether they keep their ratios, and one factor is fitted for all: classifiers of which one has seen a
            little of each label would leave that one.
    """
    count, some = len(given), slice(None)
    if count > _FITTED:  # some of every class, wherever they stand
        some = torch.randperm(count, generator=torch.Generator().manual_seed(0))[:_FITTED]  # type: ignore[assignment]
    held = torch.stack([log_p[some].float() for log_p in logs])
    labels = given[some]
    through = None if transition is None else torch.as_tensor(transition, dtype=torch.float32)[:, labels].mT
    # exponents of some 1 around their start: through a transition a few examples would let them grow without end, and
    # probabilities of 1 have no order
    usual = torch.full((len(logs),), 0.5) if start is None else start
    free = torch.zeros(1) if is_tied else usual.clamp_min(1e-3).log()
    free.requires_grad_(True)

    def read() -> Tensor:
        return (usual * free.exp()).clamp_max(math.exp(_MOST)) if is_tied else free.clamp_max(_MOST).exp()

    optimizer = torch.optim.LBFGS([free], max_iter=_STEPS, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        exponents = read()
        log_p = torch.einsum("k,knc->nc", exponents, held).log_softmax(1)
        if through is None:
            loss = -log_p.gather(1, labels[:, None]).mean()
        else:
            loss = -(log_p.exp() * through).sum(1).clamp_min(1e-12).log().mean()
        loss = loss + 0.5 / len(labels) * (exponents - usual).square().sum()
        loss.backward()
        return loss

    with torch.enable_grad():
        optimizer.step(closure)
    return Pool(list(logs), read().detach())


def recover_logs(log_p: Tensor, transition: Tensor) -> Tensor:
    """Log probabilities of the true class from those of the given one, ``[N, C]`` both."""
    found = torch.empty_like(log_p)
    for some in blocks(*log_p.shape):
        true = recover_true(log_p[some].float().exp().numpy(), transition.numpy())
        found[some] = torch.from_numpy(true).clamp_min(1e-6).log().to(log_p.dtype)
    return found
