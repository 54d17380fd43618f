"""Finite influence: what would the loss of an example be if the head moved to the hold-out's optimum?

``harm`` is the first-order change of an example's loss when the head moves along ``-H⁻¹ g``. Its finite version
re-fits the head on the hold-out, held near the current head by a ridge, and takes the change of loss and the margin
there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sgoif.gradients.contractions import widen
from sgoif.linalg import cholesky

__all__ = ["MOST_REFIT_WORK", "HeadRefit", "refit_every", "refit_head"]

MOST_REFIT_WORK = 2**31  # multiplications of one product; a re-fit then takes a core two seconds. Beyond, fewer rows
_MOST_LOGITS = 2**21  # of a re-fit at once: two tables of 8 MB
_WORK = 2**26  # about 1 ms; beyond it a re-fit is made more rarely
_EARLY_CALLS = 8  # while fits are often, and the model is soon another,
_EARLY_PART = 4  # this part of the rows must do


def refit_head(
    features: Tensor,
    labels: Tensor,
    weight: Tensor,
    *,
    trust: Tensor | None = None,
    ridge: float = 1e-2,
    iterations: int = 15,
    most_rows: int | None = None,
) -> Tensor:
    """Minimise mean cross-entropy on the hold-out plus ``ridge/2 · tr(A)/I · |W - W₀|²``, from ``W₀``.

    Each iteration minimises Böhning's quadratic bound (the Hessian of softmax regression never exceeds ``½ I ⊗ A``),
    so the objective falls at every one of them, without a line search, for one factorisation in all: of ``A``, or of
    the examples' products where these are fewer than the features.

    Args:
        features: hold-out features with the bias column, ``[M, I]``, in any precision.
        labels: ``[M]``.
        weight: the head's current weights with the bias column, ``W₀``, ``[C, I]``.
        trust: weight of each hold-out example, ``[M]``.
        ridge: how strongly the head is held, relative to the features' mean square.
        iterations: products with the features.
        most_rows: examples to fit to, evenly spread over those that count; all by default.
    """
    chosen: Tensor | None = None
    if trust is not None:
        # Examples not seen yet, or of the other fold, cost as much as those that count. Finding them waits for the
        # device: a re-fit belongs to refreshes.
        chosen = (trust > 0).nonzero()[:, 0]
    count = len(features) if chosen is None else len(chosen)
    if most_rows is not None and count > most_rows:
        spread = torch.linspace(0, count - 1, most_rows, device=features.device).long()
        chosen = spread if chosen is None else chosen[spread]
    if chosen is not None:
        features, labels, trust = features[chosen], labels[chosen], None if trust is None else trust[chosen]
    features = widen(features)
    start = weight.to(features.dtype)
    shares = torch.ones_like(features[:, 0]) if trust is None else trust.to(features.dtype)
    shares = shares / shares.sum().clamp_min(1e-12)
    if len(features) < features.shape[1]:
        return start + _shift_by_rows(features, labels, start, shares, ridge, iterations)
    moments = features.mT @ (features * shares[:, None])  # A
    pull = ridge * moments.diagonal().mean()
    eye = torch.eye(len(moments), device=moments.device, dtype=moments.dtype)
    factor = cholesky(0.5 * moments + (pull + 1e-6 * moments.diagonal().mean()) * eye, in_double=False)  # ridge: 1%
    moved, parts = start, [part.split(max(1, _MOST_LOGITS // len(start))) for part in (features, labels, shares)]
    for _ in range(iterations):
        gradient = pull * (moved - start)  # [C, I]
        for a, label, share in zip(*parts):
            error = (a @ moved.mT).softmax(1)
            error[torch.arange(len(a), device=a.device), label] -= 1  # p - t, in place
            gradient = gradient + error.mul_(share[:, None]).mT @ a
        moved = moved - factor.solve(gradient.mT).mT.to(moved.dtype)
    return moved


def _shift_by_rows(
    features: Tensor, labels: Tensor, start: Tensor, shares: Tensor, ridge: float, iterations: int
) -> Tensor:
    """The same iterations for ``W = W₀ + αᵀF``, in the ``M`` examples: ``M³`` for ``I³``, and ``M²C`` each for ``I²C``.

    The gradient is a combination of the rows of ``F``, and so is what the bound's inverse makes of it, by
    ``(FᵀDF + λ)⁻¹Fᵀ = Fᵀ(DFFᵀ + λ)⁻¹``.
    """
    products = features @ features.mT  # F Fᵀ, [M, M]
    mean = (shares * products.diagonal()).sum() / features.shape[1]
    pull, root = ridge * mean, (0.5 * shares).sqrt()[:, None]  # D = diag(shares) / 2
    eye = torch.eye(len(products), device=products.device, dtype=products.dtype)
    factor = cholesky(root * products * root.mT + (pull + 1e-6 * mean) * eye, in_double=False)
    logits, rows = features @ start.mT, torch.arange(len(features), device=features.device)
    moved = torch.zeros_like(logits)  # α, [M, C]
    for _ in range(iterations):
        error = (logits + products @ moved).softmax(1)
        error[rows, labels] -= 1
        gradient = error.mul_(shares[:, None]) + pull * moved
        moved = moved - root * factor.solve(gradient / root).to(moved.dtype)
    return moved.mT @ features


class HeadRefit:
    """A head re-fitted again and again, as often as its price allows: at first often, later every so many calls.

    In between, the last fit's *change* is added to the head as it is now: what the hold-out would move follows the
    head, only the size of the move is that of an earlier call.
    """

    def __init__(self) -> None:
        self.shift: Tensor | None = None  # how far the last fit moved the head
        self._calls = self._next = 0

    def renew(self, features: Tensor, labels: Tensor, weight: Tensor, trust: Tensor) -> Tensor:
        """The re-fitted head; the arguments are those of :func:`refit_head`."""
        if self.shift is None or self._calls >= self._next:
            most = MOST_REFIT_WORK // (_EARLY_PART if self._calls < _EARLY_CALLS else 1)
            rows = max(1, most // weight.numel())
            self.shift = refit_head(features, labels, weight, trust=trust, most_rows=rows) - weight
            self._next = self._calls + min(refit_every(len(features), weight.numel()), 1 + 3 * self._calls)
        self._calls += 1
        return weight + self.shift

    def state_dict(self) -> dict[str, Any]:
        """All that later calls depend on."""
        shift = None if self.shift is None else self.shift.clone()
        return {"shift": shift, "calls": self._calls, "next": self._next}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where another stood."""
        self.shift, self._calls, self._next = state["shift"], int(state["calls"]), int(state["next"])


def refit_every(rows: int, numel: int) -> int:
    """Calls between two fits of a head with so many weights to so many examples.

    >>> refit_every(1000, 5130), refit_every(20_000, 513_000)
    (1, 33)
    """
    return 1 + min(rows * numel, MOST_REFIT_WORK) // _WORK
