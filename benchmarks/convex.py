"""A problem whose influence is known exactly: softmax regression with an L2 term, in float64.

The objective is ``Σ_i w_i loss_i(θ) + (l2/2)|θ|²`` with ``w_i = 1/n`` unless said otherwise; ``l2`` acts on all
parameters, the bias included, so that every eigenvalue of the Hessian is at least ``l2``. Parameters are columns
``[P, K]`` with ``P = C·d`` in the library's block layout ``[C, d]``, bias last: ``K`` models are fitted, moved and
differentiated side by side, at the speed of one large matrix product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from sgoif.linalg import ConjugateGradient, Damped, GivenInverse, LinearOperator
from sgoif.linalg.operator import StoredOperator

_HALVINGS = 20  # of a Newton step; far from the minimum the whole one may overshoot


@dataclass(frozen=True, slots=True, eq=False)
class SoftmaxHessian(StoredOperator):
    """``Σ_i w_i (diag(p_i) - p_i p_iᵀ) ⊗ x_i x_iᵀ`` by its products: ``O(n C d)`` per column.

    With ``K`` columns of probabilities it stands for ``K`` Hessians at once, the k-th of which multiplies column k; a
    solver that treats columns apart then solves ``K`` different systems in one go.
    """

    features: Tensor  # x, [n, d]
    probabilities: Tensor  # p, [n, C, K], or [n, C, 1] for one Hessian
    weights: Tensor  # w, [n, K] or [n, 1]

    @property
    def shape(self) -> tuple[int, int]:
        size = self.features.shape[1] * self.probabilities.shape[1]
        return (size, size)

    def matmul(self, rhs: Tensor) -> Tensor:
        moved = push(self.features, self.check_columns(rhs))  # [n, C, N]
        curved = self.probabilities * (moved - (self.probabilities * moved).sum(1, keepdim=True))
        return pull(self.features, curved * self.weights[:, None])

    def to_dense(self) -> Tensor:
        """Return the matrix of one Hessian, class block by class block: ``C(C+1)/2`` products of size ``d``."""
        assert self.probabilities.shape[2] == 1, "K Hessians have no single matrix"
        p, size = self.probabilities[:, :, 0], self.features.shape[1]
        dense = torch.zeros(*self.shape, dtype=self.dtype, device=self.device)
        for a in range(p.shape[1]):
            for b in range(a + 1):
                entry = p[:, a] * ((1.0 if a == b else 0.0) - p[:, b]) * self.weights[:, 0]
                block = self.features.mT @ (entry[:, None] * self.features)
                dense[a * size : (a + 1) * size, b * size : (b + 1) * size] = block
                dense[b * size : (b + 1) * size, a * size : (a + 1) * size] = block.mT
        return dense


@dataclass(eq=False)
class Products(StoredOperator):
    """Products with columns, of the size of another operator; the columns are counted."""

    like: LinearOperator
    multiply: Callable[[Tensor], Tensor]
    columns: int = 0

    def matmul(self, rhs: Tensor) -> Tensor:
        self.columns += rhs.shape[1]
        return self.multiply(self.check_columns(rhs))


@dataclass(frozen=True, slots=True, eq=False)
class SoftmaxProblem:
    """Examples of a softmax regression and its L2 term."""

    features: Tensor  # x with a constant 1 last, [n, d], float64
    labels: Tensor  # [n]
    num_classes: int
    l2: float

    @classmethod
    def of_pictures(cls, pixels: NDArray[np.uint8], labels: NDArray[np.int64], l2: float) -> SoftmaxProblem:
        """Ten classes of pictures: pixels over 255, with a constant 1 for the bias."""
        flat = torch.from_numpy(pixels.reshape(len(pixels), -1)).double() / 255
        return cls(torch.cat([flat, flat.new_ones(len(flat), 1)], dim=1), torch.from_numpy(labels), 10, l2)

    @property
    def num_examples(self) -> int:
        return len(self.labels)

    @property
    def num_parameters(self) -> int:
        return self.num_classes * self.features.shape[1]

    def uniform(self, columns: int = 1) -> Tensor:
        """Give every example the weight ``1/n``, ``[n, columns]``."""
        return self.features.new_full((self.num_examples, columns), 1 / self.num_examples)

    def probabilities(self, theta: Tensor) -> Tensor:
        """Predict with ``K`` models, ``[P, K] -> [n, C, K]``."""
        return torch.softmax(push(self.features, theta), dim=1)

    def losses(self, theta: Tensor) -> Tensor:
        """Return the cross-entropy of every example under every model, ``[n, K]``."""
        labels = self.labels[:, None].expand(-1, theta.shape[1])
        return F.cross_entropy(push(self.features, theta), labels, reduction="none")

    def objective(self, theta: Tensor, weights: Tensor) -> Tensor:
        """Return what each model minimises, ``[K]``."""
        return (weights * self.losses(theta)).sum(0) + self.l2 / 2 * theta.square().sum(0)

    def output_gradients(self, theta: Tensor) -> Tensor:
        """Return ``p - onehot``, the gradient of each loss at its logits, ``[n, C, K]``."""
        onehot = F.one_hot(self.labels, self.num_classes)[:, :, None]
        return self.probabilities(theta) - onehot

    def gradient(self, theta: Tensor, weights: Tensor) -> Tensor:
        """Return the gradient of each model's objective, ``[P, K]``."""
        return pull(self.features, self.output_gradients(theta) * weights[:, None]) + self.l2 * theta

    def example_gradients(self, theta: Tensor) -> Tensor:
        """Write out the gradient of every example's loss under one model, without the L2 term: ``[P, n]``."""
        grads = self.output_gradients(theta)[:, :, 0]
        return torch.einsum("nc,nd->cdn", grads, self.features).reshape(self.num_parameters, -1)

    def hessian(self, theta: Tensor, weights: Tensor | None = None) -> Damped:
        """Return the Hessian of the objective at each model; one Hessian for ``theta [P, 1]``."""
        weights = self.uniform() if weights is None else weights
        return Damped(SoftmaxHessian(self.features, self.probabilities(theta), weights), self.l2)

    def influence(self, theta: Tensor, phi: Tensor) -> Tensor:
        """Score every example against directions ``φ [P, K]``: ``I(i, v) = -φ_v · g_i``, ``[n, K]``."""
        return -torch.einsum("nck,nc->nk", push(self.features, phi), self.output_gradients(theta)[:, :, 0])

    def newton_influence(self, theta: Tensor, inverse: LinearOperator, phi: Tensor, examples: Tensor) -> Tensor:
        """Score examples as :meth:`influence` does, with the Hessian that is left when each is removed: ``[L, K]``.

        ``(H - U S Uᵀ/n)⁻¹ U b = H⁻¹ U (I - S K/n)⁻¹ b`` with ``U = I ⊗ x_i``, ``S = diag(p_i) - p_i p_iᵀ`` and
        ``K = Uᵀ H⁻¹ U``: one Newton step of the retraining without example i. It costs ``C`` solves per example.
        """
        classes, eye = self.num_classes, torch.eye(self.num_classes, dtype=theta.dtype)
        probabilities, output_grads = self.probabilities(theta)[:, :, 0], self.output_gradients(theta)[:, :, 0]
        scores = []
        for some in examples.split(20):  # 20·C columns in one solve
            x, p = self.features[some], probabilities[some]
            units = torch.einsum("ab,md->admb", eye, x).reshape(self.num_parameters, -1)  # U of each, [P, m·C]
            leverage = torch.einsum("mamb->mab", push(x, inverse.matmul(units)).unflatten(2, (-1, classes)))  # K
            curvature = torch.diag_embed(p) - p[:, :, None] * p[:, None]
            grads = torch.linalg.solve(eye - curvature @ leverage / self.num_examples, output_grads[some][:, :, None])
            scores.append(-torch.einsum("mck,mc->mk", push(x, phi), grads[:, :, 0]))
        return torch.cat(scores)

    def fit(
        self,
        weights: Tensor | None = None,
        start: Tensor | None = None,
        preconditioner: GivenInverse | None = None,
        *,
        tolerance: float = 1e-10,
        max_steps: int = 40,
    ) -> Tensor:
        """Minimise by Newton steps until every model's gradient norm is below ``tolerance``: ``[P, K]``.

        Args:
            weights: one column per model, ``[n, K]``; by default one model with equal weights.
            start: where to start, ``[P, K]``; by default zeros.
            preconditioner: of the conjugate gradients that find each Newton step.
            tolerance: of the gradient norm.
            max_steps: Newton steps before giving up.

        Raises:
            RuntimeError: some model did not get there.
        """
        weights = self.uniform() if weights is None else weights
        theta = weights.new_zeros(self.num_parameters, weights.shape[1]) if start is None else start
        # Each step asks for a hundredth: from there on the gradient falls a hundredfold per step or faster.
        solver = ConjugateGradient(preconditioner, max_iterations=1000, tolerance=1e-2, check_every=1)
        for _ in range(max_steps):
            gradient = self.gradient(theta, weights)
            norms = torch.linalg.vector_norm(gradient, dim=0)
            if norms.max() < tolerance:
                return theta
            step = solver.solve(solver.prepare(self.hessian(theta, weights)), gradient).value
            theta = self._descend(theta, step, weights)
        raise RuntimeError(f"gradient norm {norms.max():.1e} after {max_steps} Newton steps, {tolerance:.0e} was asked")

    def _descend(self, theta: Tensor, step: Tensor, weights: Tensor) -> Tensor:
        """Take each model's whole step, halved while it raises the objective by more than rounding."""
        before, length = self.objective(theta, weights), torch.ones_like(theta[:1])
        allowed = 1e-14 * before.abs()  # close to the minimum the objective no longer tells steps apart
        for _ in range(_HALVINGS):
            worse = self.objective(theta - length * step, weights) > before + allowed
            if not worse.any():
                break
            length = torch.where(worse, length / 2, length)
        return theta - length * step


def push(features: Tensor, columns: Tensor) -> Tensor:
    """Apply ``K`` parameter columns ``[P, K]`` to every example: ``[n, C, K]``."""
    size, count = features.shape[1], columns.shape[1]
    side_by_side = columns.reshape(-1, size, count).transpose(0, 1).reshape(size, -1)  # [d, C·K]
    return (features @ side_by_side).reshape(len(features), -1, count)


def pull(features: Tensor, output_grads: Tensor) -> Tensor:
    """Sum ``b_i ⊗ x_i`` over examples for ``output_grads [n, C, K]``: ``[P, K]``, the transpose of :func:`push`."""
    _, classes, count = output_grads.shape
    summed = (features.mT @ output_grads.reshape(len(features), -1)).reshape(-1, classes, count)
    return summed.transpose(0, 1).reshape(-1, count)
