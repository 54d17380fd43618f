"""What a head would be without some of its training examples: one Newton step, its certificate, and who matters most.

The head minimises ``F(θ) = mean of loss_i + (λ/2)|θ|²`` over ``n`` examples; training anew without ``r`` of them
minimises ``F_R``, the same over the ``n - r`` that are left. At any ``θ``, with mean gradients ``ḡ`` of those that go
and those that stay,

    ∇F(θ) - ∇F_R(θ) = d = (r/n)(ḡ_gone - ḡ_left),

and the step is ``θ' = θ + H_R⁻¹ d`` with the Hessian of those that stay. At an optimum of ``F`` it is Newton's step for
``F_R``, more exact than the influence function, which has the Hessian of all. A head that is not at an optimum is moved
by the part of those that go only, and keeps what it has left to learn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sgoif.findings.label import class_name
from sgoif.linalg import ConjugateGradient, Damped
from sgoif.unlearning.softmax import HeadRows, SoftmaxHessian

__all__ = ["Certificate", "Removal", "Request", "anchor_table", "priority_table", "remove"]

MOST = 0.9  # of the effect of a request: the fewest examples that make it up are those that matter


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A head, the examples that go, those that stay or a sample of them, and what is measured on."""

    theta: Tensor  # [C, D], float64
    gone: HeadRows
    left: HeadRows
    anchors: HeadRows
    num_left: int  # n - r; more than len(left) where that is a sample
    weight_decay: float = 0.0  # λ
    damping: float = 0.0  # added to the Hessian only

    @property
    def num_examples(self) -> int:
        """``n``."""
        return self.num_left + len(self.gone)


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """How far the step got, by norms of gradients; all are measured, none is assumed.

    ``relative`` is 0 where the step undid all that the removed examples did to the objective, and 1 where it did
    nothing. It is a statement about an optimisation, **not about privacy**.
    """

    before: float  # |∇F_R(θ) - ∇F(θ)|: what the removed examples' leaving does to the gradient
    after: float  # |∇F_R(θ') - ∇F(θ)|: what of it the step has left
    unfinished: float  # |∇F(θ)|: what training had left before; 0 at an optimum
    remaining: float  # |∇F_R(θ')|: of the objective without the removed examples, at the new weights
    weight_decay: float
    is_whole: bool  # all examples that stay were looked at, not a sample

    @property
    def relative(self) -> float:
        """``after / before``."""
        return self.after / self.before if self.before > 0 else 0.0

    @property
    def is_at_optimum(self) -> bool:
        """Whether what training had left is small beside what the removal changes."""
        return self.unfinished <= 0.1 * self.before

    @property
    def distance_bound(self) -> float | None:
        """The head retrained to its optimum, features kept, lies within this distance of the new weights.

        ``|∇F_R(θ')|/λ``, for ``F_R`` is λ-strongly convex. None without weight decay, and from a sample.
        """
        return self.remaining / self.weight_decay if self.weight_decay > 0 and self.is_whole else None

    @property
    def confidence(self) -> float:
        """``1 - relative``, at least 0."""
        return float(np.clip(1 - np.nan_to_num(self.relative, nan=1.0), 0.0, 1.0))


@dataclass(frozen=True, slots=True, eq=False)
class Removal:
    """The new head, and what each of those that go has to do with the anchors' loss.

    Changes are of the mean loss of all anchors, positive where it rises without the example: ``-I/n``.
    """

    theta: Tensor  # θ', [C, D]
    parts: Tensor  # of the change when all go, to first order in the loss; they add up, [r]
    alone: Tensor  # the change when this one goes and the others stay, to first order, [r]
    certificate: Certificate


def remove(request: Request, *, iterations: int = 500, tolerance: float = 1e-6) -> Removal:
    """Take the step, and attribute its effect.

    Three systems in one run of conjugate gradients, ``O(m C D)`` per iteration for the ``m`` examples looked at.

    Args:
        request: what to remove, from what.
        iterations: of the solver, at most. A solve that ends early shows in the certificate.
        tolerance: relative residual at which it ends.
    """
    theta, gone, left = request.theta, request.gone, request.left
    of_gone, of_left = gone.gradient(theta), left.gradient(theta)
    d = (of_gone - of_left) * (len(gone) / request.num_examples)
    anchors = request.anchors.gradient(theta)
    rhs = torch.stack([d, anchors, anchors], -1).reshape(-1, 3)
    solver = ConjugateGradient(max_iterations=iterations, tolerance=tolerance, check_every=5)
    solved = solver.solve(solver.prepare(_hessians(request)), rhs).value
    step, in_group, by_itself = solved.mT.reshape(3, *theta.shape)
    mean = of_left + d  # of all examples
    return Removal(
        theta + step,
        (gone.dots(theta, in_group) - (of_left * in_group).sum()) / request.num_examples,
        (gone.dots(theta, by_itself) - (mean * by_itself).sum()) / max(request.num_examples - 1, 1),
        _certificate(request, theta + step, d, mean),
    )


def _hessians(request: Request) -> Damped:
    """That of those that stay, twice; and that of all."""
    gone, left, n = request.gone, request.left, request.num_examples
    weights = request.theta.new_zeros(len(left) + len(gone), 3)
    weights[: len(left), :2] = 1 / len(left)
    weights[: len(left), 2] = request.num_left / n / len(left)
    weights[len(left) :, 2] = 1 / n
    hessian = SoftmaxHessian(request.theta, left.join(gone), weights)
    return Damped(hessian, request.weight_decay + request.damping)


def _certificate(request: Request, theta: Tensor, d: Tensor, mean: Tensor) -> Certificate:
    decay = request.weight_decay
    at_start = mean + decay * request.theta
    at_end = request.left.gradient(theta) + decay * theta
    return Certificate(
        before=float(d.norm()),
        after=float((at_end - at_start).norm()),
        unfinished=float(at_start.norm()),
        remaining=float(at_end.norm()),
        weight_decay=decay,
        is_whole=len(request.left) == request.num_left,
    )


def priority_table(
    ids: NDArray[Any], labels: NDArray[Any], parts: NDArray[Any], alone: NDArray[Any], confidence: float
) -> dict[str, NDArray[Any]]:
    """Order examples by how much their leaving does to the anchors' loss, whichever way.

    >>> ids, labels, nothing = np.arange(3), np.zeros(3), np.zeros(3)
    >>> table = priority_table(ids, labels, np.array([0.0, -3.0, 1.0]), nothing, 0.9)
    >>> table["id"].tolist(), table["score"].tolist(), table["matters"].tolist()
    ([1, 2, 0], [0.75, 0.25, 0.0], [True, True, False])

    Returns:
        ``score`` is an example's share of all effects, ``matters`` marks the fewest that make up 90% of them,
        ``change`` is its part of the change when all go, ``change_alone`` the change when it goes alone.
    """
    order = np.argsort(-np.abs(parts), kind="stable")
    sizes = np.abs(parts[order])
    total = sizes.sum()
    score = sizes / total if total > 0 else np.zeros(len(sizes))
    matters = (np.cumsum(score) - score < MOST) & (score > 0)
    return {
        "id": ids[order],
        "score": score,
        "matters": matters,
        "given_label": labels[order],
        "change": parts[order],
        "change_alone": alone[order],
        "confidence": np.full(len(order), confidence),
        "what_to_do": np.where(matters, np.where(parts[order] > 0, _RISES, _FALLS), _LATER),
    }


_RISES = "first: the held-out loss rises without it"
_FALLS = "first: the held-out loss falls without it"
_LATER = "later: little changes without it"


def anchor_table(
    labels: NDArray[Any], before: NDArray[Any], after: NDArray[Any], class_names: Sequence[str] = ()
) -> dict[str, NDArray[Any]]:
    """Mean losses of the anchors before and after: all of them first, then class by class.

    >>> table = anchor_table(np.array([0, 0, 2]), np.array([1.0, 2.0, 3.0]), np.array([2.0, 3.0, 3.0]))
    >>> table["anchor"].tolist(), table["change"].round(2).tolist()
    (['all', '0', '2'], [0.67, 1.0, 0.0])
    """
    counts = np.bincount(labels)
    known = np.flatnonzero(counts)

    def means(values: NDArray[Any]) -> NDArray[np.float64]:
        return np.concatenate([[values.mean()], np.bincount(labels, values)[known] / counts[known]])

    return {
        "anchor": np.array(["all", *(class_name(int(c), class_names) for c in known)]),
        "num_examples": np.r_[len(labels), counts[known]],
        "loss": means(before),
        "change": means(after) - means(before),
    }
