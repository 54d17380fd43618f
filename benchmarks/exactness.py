"""Exact influence of a softmax regression, and what is held against it: solvers, retraining, curvature backends.

Influence is ``I(i, v) = -g_vᵀ H⁻¹ g_i``, positive where example i harms test point v; retraining without i changes the
loss of v by ``-I/n`` to first order.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.agreement import pearson, spearman
from benchmarks.convex import Products, SoftmaxProblem
from sgoif.curvature import create
from sgoif.gradients import Capture, ExactSpace, LayerCapture, select_layers
from sgoif.linalg import (
    ConjugateGradient,
    Damped,
    Direct,
    GivenInverse,
    LinearOperator,
    Neumann,
    NystromPreconditioner,
    PreparedDirect,
    Richardson,
)

TOLERANCE = 1e-6  # relative residual asked of every solver
BLOCK = 100  # columns worked on at a time: [5000, 10, 100] float64 is 40 MB

# name, settings, observations of the whole train set: EK-FAC takes its basis from the first, eigenvalues from the next
BACKENDS: tuple[tuple[str, str, dict[str, Any], int], ...] = (
    ("identity", "identity", {}, 1),
    ("diagonal", "diagonal", {}, 1),
    ("fisher, rank 64", "fisher", {"rank": 64}, 1),
    ("fisher, rank 500", "fisher", {"rank": 500}, 1),
    ("kfac", "kfac", {}, 1),
    ("kfac, additive damping", "kfac", {"damping_mode": "additive"}, 1),
    ("kfac, corrected eigenvalues", "kfac", {"eigenvalue_corrected": True}, 2),
    ("lowrank, rank 32", "lowrank", {"rank": 32}, 1),
    ("lowrank, rank 500", "lowrank", {"rank": 500}, 1),
)

Row = dict[str, Any]


@dataclass(frozen=True)
class Truth:
    """The fitted model with its exact directions and scores."""

    train: SoftmaxProblem
    test: SoftmaxProblem

    @cached_property
    def theta(self) -> Tensor:  # [P, 1]
        return self.train.fit(tolerance=1e-11)

    @cached_property
    def operator(self) -> Damped:
        return self.train.hessian(self.theta)

    @cached_property
    def direct(self) -> PreparedDirect:
        return Direct().prepare(self.operator)

    @cached_property
    def gradients(self) -> Tensor:  # g_v of every test point, [P, V]
        return self.test.example_gradients(self.theta)

    @cached_property
    def directions(self) -> Tensor:  # H⁻¹ g_v, [P, V]
        solver = Direct(tolerance=1e-10)
        solved = [solver.solve(self.direct, block) for block in self.gradients.split(BLOCK, dim=1)]
        assert all(part.worst_status == 0 for part in solved), "the exact solve is not exact"
        return torch.cat([part.value for part in solved], dim=1)

    @cached_property
    def scores(self) -> NDArray[np.float64]:  # I(i, v), [n, V]
        return self.score(self.directions)

    def score(self, directions: Tensor) -> NDArray[np.float64]:
        parts = [self.train.influence(self.theta, block) for block in directions.split(BLOCK, dim=1)]
        return torch.cat(parts, dim=1).numpy()

    @cached_property
    def inverse(self) -> GivenInverse:
        return GivenInverse(Products(self.operator, self.direct.inverse.apply))

    def model(self) -> nn.Linear:
        """The fitted model as a layer."""
        block = self.theta.reshape(self.train.num_classes, -1)
        linear = nn.Linear(block.shape[1] - 1, len(block)).double()
        with torch.no_grad():
            linear.weight.copy_(block[:, :-1])
            linear.bias.copy_(block[:, -1])
        return linear

    def retrain(self, weights: Tensor) -> NDArray[np.float64]:
        """Retrain once per column of ``weights [n, K]``, from the full model, and return test losses ``[K, V]``."""
        found = []
        for block in weights.split(BLOCK, dim=1):
            theta = self.train.fit(block, self.theta.expand(-1, block.shape[1]), self.inverse, tolerance=1e-11)
            found.append(self.test.losses(theta).mT)
        return torch.cat(found).numpy()


def solvers(truth: Truth, rank: int) -> dict[str, Callable[[LinearOperator], tuple[Any, Any]]]:
    """Name every solver, and say how to build and prepare it; all aim a little below :data:`TOLERANCE`.

    The direct one uses the factors that the exact scores came from, so its preparation is not counted.
    """
    limits: dict[str, Any] = {"max_iterations": 2000, "tolerance": 0.9 * TOLERANCE, "check_every": 5}
    sketch = NystromPreconditioner(rank)
    richardson = Richardson(preconditioner=sketch, **limits)

    def direct(operator: LinearOperator) -> tuple[Any, Any]:
        return Direct(tolerance=TOLERANCE), PreparedDirect(operator, truth.direct.inverse)

    def neumann(operator: LinearOperator) -> tuple[Any, Any]:
        prepared = richardson.prepare(operator)
        sketched = prepared.preconditioner
        assert sketched is not None
        # ρ P⁻¹ is what makes a Neumann series with that P contract
        scaled = GivenInverse(Products(operator, lambda rhs: prepared.rho * sketched.apply(rhs)))
        solver = Neumann(scaled, max_order=2000, required_fall=0.0, tolerance=0.9 * TOLERANCE, check_every=5)
        return solver, solver.prepare(operator)

    def plain(solver: Any) -> Callable[[LinearOperator], tuple[Any, Any]]:
        return lambda operator: (solver, solver.prepare(operator))

    return {
        "direct": direct,
        f"richardson + nystrom {rank}": plain(richardson),
        f"neumann + scaled nystrom {rank}": neumann,
        "cg": plain(ConjugateGradient(**limits)),
        f"cg + nystrom {rank}": plain(ConjugateGradient(sketch, **limits)),
    }


def solver_rows(truth: Truth, columns: int = 50, rank: int = 500) -> list[Row]:
    """Solve for the first test points by every solver and compare scores with the exact ones, point by point.

    Products are per right-hand side; the sketch's and the power iteration's are spread over the right-hand sides.
    """
    rhs, exact = truth.gradients[:, :columns], truth.scores[:, :columns]
    rows = []
    for name, prepare in solvers(truth, rank).items():
        counted = Products(truth.operator.operator, truth.operator.operator.matmul)
        started = time.process_time()
        solver, prepared = prepare(Damped(counted, truth.operator.damping))
        preparing_s, preparing_columns = time.process_time() - started, counted.columns
        solution = solver.solve(prepared, rhs)
        seconds = time.process_time() - started
        found = pearson(truth.score(solution.value), exact)
        rows.append(
            {
                "solver": name,
                "pearson": float(found.mean()),
                "lowest_pearson": float(found.min()),
                "residual": float(solution.stats.relative_residual.max()),
                "products": (counted.columns - preparing_columns) / rhs.shape[1],
                "preparing_products": preparing_columns / rhs.shape[1],
                "preparing_cpu_s": preparing_s,
                "cpu_s": seconds,
            }
        )
    return rows


@dataclass(frozen=True)
class Removals:
    """Measured changes of the test losses when a share of one example's weight is taken away."""

    examples: NDArray[np.int64]  # [L]
    share: float  # 1 is removal
    changes: NDArray[np.float64]  # [L, V]

    def agreement(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Correlate with the predicted change, ``-share·I/n``, for each test point; ``scores [L, V]``."""
        return pearson(-scores, self.changes)


@dataclass(frozen=True)
class Subsets:
    """Test losses after training on random subsets of one size."""

    members: NDArray[np.bool_]  # [S, n]
    losses: NDArray[np.float64]  # [S, V]

    def lds(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Correlate by rank, for each test point, a subset's loss with the summed influence of its members."""
        return spearman(self.members.astype(np.float64) @ scores, self.losses)


def remove(truth: Truth, count: int, share: float = 1.0, seed: int = 0) -> Removals:
    """Retrain without each of some random examples, or with less of it; the weights still add up to one."""
    n = truth.train.num_examples
    examples = np.sort(np.random.default_rng(seed).choice(n, count, replace=False))
    weights = truth.train.uniform(count)
    weights[torch.from_numpy(examples), torch.arange(count)] *= 1 - share
    losses = truth.retrain(weights / weights.sum(0))
    return Removals(examples, share, losses - truth.test.losses(truth.theta).mT.numpy())


def retrain_subsets(truth: Truth, count: int, share: float, seed: int = 0) -> Subsets:
    """Retrain on random subsets that hold ``share`` of the examples; the mean is over their members."""
    size = round(share * truth.train.num_examples)
    members = draw_members(count, truth.train.num_examples, size, seed)
    return Subsets(members, truth.retrain(torch.from_numpy(members.T / size)))


def draw_members(count: int, examples: int, size: int, seed: int) -> NDArray[np.bool_]:
    """So many random subsets of one size, ``[count, examples]``."""
    rng = np.random.default_rng(seed)
    members = np.zeros((count, examples), dtype=bool)
    for row in members:
        row[rng.choice(examples, size, replace=False)] = True
    return members


def removal_row(truth: Truth, removals: Removals, newton: bool = False) -> Row:
    """Hold the exact influence, or its Newton-step correction, against measured removals."""
    scores = truth.scores[removals.examples]
    if newton:
        positions = torch.from_numpy(removals.examples)
        inverse = truth.inverse.inverse
        scores = truth.train.newton_influence(truth.theta, inverse, truth.directions, positions).numpy()
    predicted = -removals.share * scores / truth.train.num_examples
    centred = predicted - predicted.mean(0)
    slopes = (centred * removals.changes).sum(0) / np.square(centred).sum(0)
    agreement = removals.agreement(scores)
    return {
        "weight_taken": removals.share,
        "predicted_by": "newton step" if newton else "influence",
        "points": len(scores),
        "pearson": float(agreement.mean()),
        "lowest": float(agreement.min()),
        "pooled": float(pearson(predicted.ravel(), removals.changes.ravel())[0]),
        "median_slope": float(np.median(slopes)),  # measured over predicted change: 1 if sign and units are right
    }


def subset_row(truth: Truth, subsets: Subsets) -> Row:
    """Hold the exact influence against retraining on subsets."""
    lds = subsets.lds(truth.scores)
    share = float(subsets.members.mean())
    return {"share": share, "subsets": len(subsets.members), "lds": float(lds.mean()), "lowest": float(lds.min())}


def backend_rows(truth: Truth, removals: Removals, halves: Subsets) -> list[Row]:
    """Score with every backend through the library's own capture, and compare with exact scores and retraining."""
    model = nn.Sequential(truth.model())
    (layer,) = select_layers(model)
    space = ExactSpace(layer)
    train, test = (_capture(model, problem) for problem in (truth.train, truth.test))
    rows_seen, anchors = space.rows(train), {layer.name: space.examples(test)}
    rows = []
    for name, kind, settings, observations in BACKENDS:
        for damping in ("auto",) if kind == "identity" else ("auto", truth.train.l2):
            started = time.process_time()
            curvature = create(kind, {layer.name: layer.shape}, dtype=torch.float64, damping=damping, **settings)
            for _ in range(observations):
                curvature.observe([rows_seen])
            phi = curvature.solve(anchors)[layer.name]
            scores = -torch.cat([space.dots(train, part) for part in phi.split(BLOCK)], dim=1).numpy()
            rows.append(
                {
                    "backend": name,
                    "damping": damping,
                    "pearson": float(pearson(scores, truth.scores).mean()),
                    "spearman": float(spearman(scores, truth.scores).mean()),
                    "loo_pearson": float(removals.agreement(scores[removals.examples]).mean()),
                    "lds": float(halves.lds(scores).mean()),
                    "cpu_s": time.process_time() - started,
                }
            )
    return sorted(rows, key=lambda row: row["pearson"])


def _capture(model: nn.Module, problem: SoftmaxProblem) -> LayerCapture:
    capture = Capture(select_layers(model))
    with capture:
        logits = model(problem.features[:, :-1])
        capture.differentiate(F.cross_entropy(logits, problem.labels, reduction="sum"))
    (call,) = capture.calls
    return call
