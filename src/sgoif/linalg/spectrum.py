"""The ends of a spectrum: the largest eigenvalue for step sizes, both ends for a condition proxy.

Exact where the structure gives it away, otherwise by power iteration or Lanczos. Both estimate ``λ_max`` from below;
neither waits for the device, except for small dense eigendecompositions as :mod:`sgoif.linalg.factor` says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from sgoif.devices import send
from sgoif.errors import LinalgError
from sgoif.linalg.factor import eigvalsh
from sgoif.linalg.kronecker import DiagonalKronecker, Kronecker, RotatedDiagonal
from sgoif.linalg.operator import LinearOperator
from sgoif.linalg.structured import BlockDiagonal, Damped, Dense, Diagonal

__all__ = [
    "exact_lambda_max",
    "extreme_ritz",
    "follow_lambda_max",
    "lambda_max",
    "power_iteration",
    "random_columns",
    "safe_reciprocal",
]

_DENSE_LIMIT = 2048  # an eigendecomposition of this size takes about a second on one core
_POWER_STEPS = 32  # a cold start is then within a few percent; Richardson needs only a factor of two
_WARM_STEPS = 2  # from the last vectors
_FRESH = 0.01  # share of a random vector in a warm start


def random_columns(operator: LinearOperator, count: int = 1, generator: torch.Generator | None = None) -> Tensor:
    """Draw normal columns ``[P, count]`` on the operator's device; without a generator always the same ones.

    The global random state is neither read nor moved.
    """
    if generator is None:
        generator = torch.Generator().manual_seed(0)
    columns = torch.randn(operator.shape[0], count, generator=generator, device=generator.device, dtype=operator.dtype)
    return send(columns, operator.device)


def power_iteration(operator: LinearOperator, start: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Estimate the eigenvalue of largest magnitude, and its vector, by repeated products.

    Each column of ``start`` is iterated on its own. Start from the vector returned last time and few steps suffice. The
    value is the Rayleigh quotient: never above ``λ_max``, with an error that is the square of the vector's.

    Args:
        operator: a symmetric operator.
        start: ``[P, N]``, not orthogonal to the vector sought (a random one will do).
        steps: how many products, at least one.

    Returns:
        The values ``[N]`` and unit vectors ``[P, N]``.

    Raises:
        LinalgError: ``start`` does not fit, or ``steps`` is below one.

    >>> value, _ = power_iteration(Diagonal(torch.tensor([1.0, 3.0])), torch.ones(2, 1), steps=20)
    >>> value
    tensor([3.])
    """
    if steps < 1:
        raise LinalgError(f"power iteration needs at least one step, got {steps}.")
    vector = _unit(operator.check_columns(start))
    value = torch.zeros_like(vector[0])
    for _ in range(steps):
        image = operator.matmul(vector)
        value = (vector * image).sum(dim=0)
        vector = _unit(image)
    return value, vector


def extreme_ritz(operator: LinearOperator, start: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Return the smallest and largest Ritz values after ``steps`` Lanczos steps, as 0-d tensors.

    They lie inside the spectrum, so their ratio bounds the condition number from below. Full reorthogonalisation keeps
    ghost copies away: ``O(P·steps²)`` time and ``O(P·steps)`` memory beside the products.

    Raises:
        LinalgError: ``start`` is not one column.

    >>> smallest, largest = extreme_ritz(Diagonal(torch.tensor([1.0, 2.0, 5.0])), torch.ones(3, 1), steps=3)
    >>> round(float(smallest), 4), round(float(largest), 4)
    (1.0, 5.0)
    """
    start = operator.check_columns(start)
    if start.shape[1] != 1 or steps < 1:
        raise LinalgError(f"Lanczos needs one start column and steps >= 1, got {tuple(start.shape)} and {steps} steps.")
    vector = _unit(start)
    basis: list[Tensor] = [vector]
    diagonal: list[Tensor] = []
    off: list[Tensor] = []
    tiny = torch.finfo(operator.dtype).eps ** 0.75
    for _ in range(min(steps, operator.shape[0])):
        image = operator.matmul(basis[-1])
        known = torch.cat(basis, dim=1)
        alive = (basis[-1] != 0).any()
        alpha = (basis[-1] * image).sum()
        # Once the Krylov space is exhausted the vectors are zero. Padding with the first Rayleigh quotient, which lies
        # between the extremes, keeps the rest of the tridiagonal matrix from inventing eigenvalues at zero.
        diagonal.append(alpha if not diagonal else torch.where(alive, alpha, diagonal[0]))
        scale = torch.linalg.vector_norm(image)
        for _ in range(2):  # twice is enough (Kahan and Parlett)
            image = image - known @ (known.mT @ image)
        beta = torch.linalg.vector_norm(image)
        fresh = beta > tiny * scale
        off.append(torch.where(fresh, beta, torch.zeros_like(beta)))
        basis.append(torch.where(fresh, _unit(image), torch.zeros_like(image)))
    matrix = torch.diag(torch.stack(diagonal))
    if len(off) > 1:
        side = torch.stack(off[:-1])
        matrix = matrix + torch.diag(side, 1) + torch.diag(side, -1)
    values = eigvalsh(matrix)
    return values[0], values[-1]


def lambda_max(operator: LinearOperator, start: Tensor | None = None, steps: int = _POWER_STEPS) -> Tensor:
    """Return the largest eigenvalue as a 0-d tensor: exact where the structure gives it away, else by power iteration.

    >>> lambda_max(Kronecker(2 * torch.eye(2), 3 * torch.eye(2)))
    tensor(6.)
    """
    exact = exact_lambda_max(operator)
    if exact is not None:
        return exact
    return power_iteration(operator, random_columns(operator) if start is None else start, steps)[0].max()


def exact_lambda_max(operator: LinearOperator) -> Tensor | None:
    """Return the largest eigenvalue where the structure gives it away, else ``None``.

    Dense up to 2,048 parameters, diagonal, Kronecker and rotated, and dampings and blocks of these.
    """
    return _from_structure(operator)


def follow_lambda_max(operator: LinearOperator, vectors: Sequence[Tensor] | None = None) -> tuple[Tensor, list[Tensor]]:
    """Return the largest eigenvalue of a slowly moving operator, and vectors to start from next time.

    By power iteration, on the factors of a Kronecker product: ``O(O² + I²)`` a step, a few steps from the last vectors.
    Each start is mixed with a little of a fixed random vector, so that a direction that comes up later is noticed. The
    value lies below the true one: within 1% for factors of a trained head, a few percent where nothing stands out.

    Args:
        operator: positive semidefinite.
        vectors: what this returned for an earlier operator of the same structure; None to start anew.

    >>> value, vectors = follow_lambda_max(Kronecker(2 * torch.eye(2), torch.diag(torch.tensor([1.0, 3.0]))))
    >>> round(value.item(), 3), [vector.shape[1] for vector in vectors]
    (6.0, [2, 2])
    """
    found = _Following(vectors)
    return found.top(operator), found.vectors


class _Following:
    def __init__(self, vectors: Sequence[Tensor] | None) -> None:
        self._steps = _POWER_STEPS if vectors is None else _WARM_STEPS
        self._old = iter(vectors or ())
        self.vectors: list[Tensor] = []

    def top(self, operator: LinearOperator) -> Tensor:
        if isinstance(operator, Damped):
            return self.top(operator.operator) + operator.damping
        if isinstance(operator, BlockDiagonal):
            return torch.stack([self.top(block) for block in operator.blocks]).max()
        if isinstance(operator, Diagonal | RotatedDiagonal):
            return operator.values.max()
        if isinstance(operator, Kronecker):
            return (
                self._iterate(operator.left.matmul, operator.left)
                * self._iterate(operator.right.matmul, operator.right)
            ).max()
        if isinstance(operator, DiagonalKronecker):
            return (operator.left.amax(1) * self._iterate(operator.right.matmul, operator.right)).max()
        return self._iterate(lambda columns: operator.matmul(columns[0])[None], random_columns(operator)[None]).max()

    def _iterate(self, matmul: Callable[[Tensor], Tensor], like: Tensor) -> Tensor:
        """Power iteration on ``[G, n, 1]``; the values, ``[G]``."""
        fresh = torch.randn(like.shape[1], 1, generator=torch.Generator().manual_seed(0), dtype=like.dtype)
        fresh = _unit(send(fresh, like.device)).expand(len(like), -1, -1)
        old = next(self._old, None)
        start = fresh if old is None else old + _FRESH * fresh
        vector = start
        for _ in range(self._steps):
            image = matmul(vector)
            vector = image / torch.linalg.vector_norm(image, dim=1, keepdim=True)
        value = (vector * matmul(vector)).sum((1, 2))
        # a matrix that is zero, or no matrix, leaves the vector as it was
        self.vectors.append(torch.where(value.isfinite()[:, None, None], vector, start))
        return torch.where(value.isfinite(), value, torch.zeros_like(value))


def _from_structure(operator: LinearOperator) -> Tensor | None:
    if isinstance(operator, Damped):
        inner = _from_structure(operator.operator)
        return None if inner is None else inner + operator.damping
    if isinstance(operator, BlockDiagonal):
        found = [_from_structure(block) for block in operator.blocks]
        known = [value for value in found if value is not None]
        return torch.stack(known).max() if len(known) == len(found) else None
    if isinstance(operator, Diagonal | RotatedDiagonal):
        return operator.values.max()
    if isinstance(operator, Kronecker):
        left, right = _exact_ends(operator.left), _exact_ends(operator.right)
        return (left[:, :, None] * right[:, None, :]).max()  # the ends decide, whatever their signs
    if isinstance(operator, Dense) and operator.shape[0] <= _DENSE_LIMIT:
        return eigvalsh(operator.matrix)[-1]
    return None


def _exact_ends(factors: Tensor) -> Tensor:
    """Smallest and largest eigenvalue of ``[G, n, n]``, as ``[G, 2]``."""
    return eigvalsh(factors)[:, [0, -1]]


def safe_reciprocal(value: Tensor) -> Tensor:
    """Return ``1/value``, or 1 where that is no step size (``value`` zero, negative or not finite)."""
    usable = (value > 0) & torch.isfinite(value)
    return torch.where(usable, value, torch.ones_like(value)).reciprocal()


def _unit(columns: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(columns, dim=0, keepdim=True)
    return columns / norms.clamp_min(torch.finfo(columns.dtype).tiny)
