"""Are the scores what they claim to be? ``python -m benchmarks.faithfulness [--part convex|mlp]``.

*convex*: MNIST softmax regression, where influence is known exactly. Every solver against the exact scores, every
curvature backend against them, the exact scores against retraining without an example and on random halves, and the
confidence of unfinished solves against their true error. *mlp*: a small network, where retraining on random halves is
the only truth; see :mod:`benchmarks.subsets`.

Influence is ``I(i, v) = -g_vᵀ H⁻¹ g_i``, positive where example i harms test point v.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks import data
from benchmarks.agreement import pearson, reliability, spearman
from benchmarks.convex import FactorisedInverse, SoftmaxProblem
from benchmarks.records import append_result
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
    PreparedRichardson,
    Richardson,
)

L2 = 1e-3
TOLERANCE = 1e-6  # relative residual asked of every solver
SOLVER_BAR, LOO_BAR, LDS_BAR = 0.999, 0.99, 0.93
KAPPA = 0.4  # the gate's tolerance: c = clip(1 - e/κ, 0, 1)
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
RUNGS = {"richardson": (1, 2, 5, 10, 20, 50, 100, 200), "cg": (1, 2, 5, 10, 20, 50, 100)}

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
        return GivenInverse(FactorisedInverse(self.direct))

    def retrained_losses(self, weights: Tensor) -> NDArray[np.float64]:
        """Retrain once per column of ``weights [n, K]``, from the full model, and return test losses ``[K, V]``."""
        found = []
        for block in weights.split(BLOCK, dim=1):
            theta = self.train.fit(block, self.theta.expand(-1, block.shape[1]), self.inverse, tolerance=1e-10)
            found.append(self.test.losses(theta).mT)
        return torch.cat(found).numpy()


# --- the data ---


def mnist_problem(split: str, count: int, l2: float = L2) -> SoftmaxProblem:
    """Take the first images, pixels over 255 with a constant 1 for the bias."""
    images = data.mnist(split, count)
    pixels = torch.from_numpy(images.pixels.reshape(count, -1)).double() / 255
    features = torch.cat([pixels, pixels.new_ones(count, 1)], dim=1)
    return SoftmaxProblem(features, torch.from_numpy(images.labels[:count]), images.num_classes, l2)


# --- solvers against the exact scores ---


@dataclass(eq=False)
class Counted(LinearOperator):
    """An operator that counts the columns it multiplies."""

    operator: LinearOperator
    columns: int = 0

    @property
    def shape(self) -> tuple[int, int]:
        return self.operator.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.operator.dtype

    @property
    def device(self) -> torch.device:
        return self.operator.device

    def matmul(self, rhs: Tensor) -> Tensor:
        self.columns += rhs.shape[1]
        return self.operator.matmul(rhs)

    def to_dense(self) -> Tensor:
        return self.operator.to_dense()


@dataclass(frozen=True, eq=False)
class ScaledInverse(LinearOperator):
    """``ρ P⁻¹`` of a prepared Richardson: what makes a Neumann series with that ``P`` contract."""

    prepared: PreparedRichardson

    @property
    def shape(self) -> tuple[int, int]:
        return self.prepared.operator.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.prepared.operator.dtype

    @property
    def device(self) -> torch.device:
        return self.prepared.operator.device

    def matmul(self, rhs: Tensor) -> Tensor:
        assert self.prepared.preconditioner is not None
        return self.prepared.rho * self.prepared.preconditioner.apply(rhs)


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
        scaled = GivenInverse(ScaledInverse(richardson.prepare(operator)))
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
        counted = Counted(truth.operator.operator)
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


# --- retraining ---


@dataclass(frozen=True)
class Retraining:
    """What retraining showed: without one example at a time, and on random halves."""

    removed: NDArray[np.int64]  # [L]
    changes: NDArray[np.float64]  # of the test losses, [L, V]
    members: NDArray[np.bool_]  # [S, n]
    half_losses: NDArray[np.float64]  # [S, V]

    def loo(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Correlate predicted and measured change on removal for each test point; removal of i predicts ``-I/n``."""
        return pearson(-scores[self.removed], self.changes)

    def lds(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Correlate by rank, for each test point, a half's loss with the summed influence of its members."""
        return spearman(self.members.astype(np.float64) @ scores, self.half_losses)


def retrain(truth: Truth, *, num_removed: int = 200, num_halves: int = 100, seed: int = 0) -> Retraining:
    """Retrain without each of some random examples, and on random halves; the mean is over those that are left."""
    n = truth.train.num_examples
    rng = np.random.default_rng(seed)
    removed = np.sort(rng.choice(n, num_removed, replace=False))
    left = torch.full((n, num_removed), 1 / (n - 1), dtype=torch.float64)
    left[torch.from_numpy(removed), torch.arange(num_removed)] = 0.0
    members = np.zeros((num_halves, n), dtype=bool)
    for row in members:
        row[rng.choice(n, n // 2, replace=False)] = True
    halves = torch.from_numpy(members.T / (n // 2))
    changes = truth.retrained_losses(left) - truth.test.losses(truth.theta).mT.numpy()
    return Retraining(removed, changes, members, truth.retrained_losses(halves))


def retraining_rows(truth: Truth, retraining: Retraining) -> Row:
    """Hold the exact influence against retraining."""
    predicted = -truth.scores[retraining.removed] / truth.train.num_examples
    loo, lds = retraining.loo(truth.scores), retraining.lds(truth.scores)
    centred = predicted - predicted.mean(0)
    slopes = (centred * retraining.changes).sum(0) / np.square(centred).sum(0)
    pooled = pearson(predicted.ravel(), retraining.changes.ravel())
    return {
        "loo_pearson": float(loo.mean()),
        "loo_lowest": float(loo.min()),
        "loo_pooled": float(pooled[0]),
        "loo_median_slope": float(np.median(slopes)),  # measured over predicted change: 1 if units and sign are right
        "lds": float(lds.mean()),
        "lds_lowest": float(lds.min()),
    }


# --- curvature backends ---


def backend_rows(truth: Truth, retraining: Retraining) -> list[Row]:
    """Score with every backend through the library's own capture, and compare with exact scores and retraining."""
    linear = nn.Linear(truth.train.features.shape[1] - 1, truth.train.num_classes).double()
    model = nn.Sequential(linear)
    block = truth.theta.reshape(truth.train.num_classes, -1)
    with torch.no_grad():
        linear.weight.copy_(block[:, :-1])
        linear.bias.copy_(block[:, -1])
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
                    "loo_pearson": float(retraining.loo(scores).mean()),
                    "lds": float(retraining.lds(scores).mean()),
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


# --- does the confidence predict the error? ---


def ladder(truth: Truth, points: int = 10, rungs: Mapping[str, tuple[int, ...]] = RUNGS) -> list[Row]:
    """Stop plain Richardson and CG early and record residual, confidence and true error of every anchor.

    Anchors are the mean of each class's test points, and single test points.
    """
    labels = F.one_hot(truth.test.labels, truth.test.num_classes).double()
    means = labels / labels.sum(0).clamp_min(1)
    rhs, exact = (
        torch.cat([columns @ means, columns[:, :points]], dim=1) for columns in (truth.gradients, truth.directions)
    )
    scores = truth.score(exact)
    rows: list[Row] = []
    for name, solver in (("richardson", Richardson()), ("cg", ConjugateGradient())):
        prepared: Any = solver.prepare(truth.operator)
        for products in rungs[name]:
            stopped: Any = replace(solver, max_iterations=products, tolerance=1e-12)
            solution = stopped.solve(prepared, rhs)
            rows += _readings(truth, name, products, rhs, exact, scores, solution.value)
    return rows


def _readings(
    truth: Truth,
    solver: str,
    products: int,
    rhs: Tensor,
    exact: Tensor,
    exact_scores: NDArray[np.float64],
    value: Tensor,
) -> list[Row]:
    sizes = torch.linalg.vector_norm(rhs, dim=0)
    residual = torch.linalg.vector_norm(rhs - truth.operator.matmul(value), dim=0) / sizes
    error = torch.linalg.vector_norm(value - exact, dim=0)
    relative = error / torch.linalg.vector_norm(exact, dim=0)
    scores = truth.score(value)
    score_error = np.linalg.norm(scores - exact_scores, axis=0) / np.linalg.norm(exact_scores, axis=0)
    agreement = pearson(scores, exact_scores)
    bound = residual * sizes / truth.train.l2  # |φ - H⁻¹g| <= |r| / λ_min, and λ_min >= l2
    return [
        {
            "solver": solver,
            "products": products,
            "anchor": v,
            "residual": float(residual[v]),
            "confidence": float((1 - residual[v] / KAPPA).clamp(0, 1)),
            "error": float(relative[v]),
            "score_error": float(score_error[v]),
            "pearson": float(agreement[v]),
            "bound_over_error": float(bound[v] / error[v].clamp_min(1e-300)),
        }
        for v in range(rhs.shape[1])
    ]


def ladder_summary(rows: list[Row]) -> Row:
    """Say how well residuals rank true errors: over everything, by solver, and between anchors of one rung."""
    table = {key: np.array([row[key] for row in rows]) for key in rows[0]}
    summary: Row = {"readings": len(rows), "bound_holds": float((table["bound_over_error"] >= 1).mean())}
    summary["median_bound_over_error"] = float(np.median(table["bound_over_error"]))
    for target in ("error", "score_error"):
        groups = {"all": np.ones(len(rows), dtype=bool)}
        groups |= {name: table["solver"] == name for name in RUNGS}
        found = {
            name: float(spearman(table["residual"][g], table[target][g])[0]) for name, g in groups.items() if g.any()
        }
        within = [
            spearman(table["residual"][g], table[target][g])[0]
            for name in RUNGS
            for rung in np.unique(table["products"])
            if (g := (table["solver"] == name) & (table["products"] == rung)).sum() > 2
        ]
        summary[f"residual_vs_{target}"] = found | {"between anchors, same products": float(np.mean(within))}
    measured = {key: table[key] for key in ("residual", "error", "score_error", "pearson")}
    summary["reliability"] = [found.as_record() for found in reliability(table["confidence"], measured)]
    return summary


# --- the whole part ---


def run_convex(train: SoftmaxProblem, test: SoftmaxProblem) -> Row:
    """Measure everything about the convex problem, printing as it goes."""
    started, started_cpu = time.perf_counter(), time.process_time()
    truth = Truth(train, test)
    accuracy = (test.probabilities(truth.theta)[:, :, 0].argmax(1) == test.labels).double().mean()
    gradient = torch.linalg.vector_norm(train.gradient(truth.theta, train.uniform()))
    problem: Row = {
        "parameters": train.num_parameters,
        "gradient_norm": float(gradient),
        "test_accuracy": float(accuracy),
        "exact_scores": " x ".join(str(size) for size in truth.scores.shape),
    }
    problem["cpu_s"] = time.process_time() - started_cpu
    show("the problem", [problem])
    found: Row = {"problem": problem, "solvers": solver_rows(truth)}
    show("solvers", found["solvers"])
    retraining = retrain(truth)
    found["retraining"] = retraining_rows(truth, retraining)
    show("exact influence against retraining", [found["retraining"]])
    found["backends"] = backend_rows(truth, retraining)
    show("curvature backends, worst first", found["backends"])
    found["ladder"] = ladder(truth)
    found["confidence"] = ladder_summary(found["ladder"])
    show_confidence(found["confidence"])
    found["seconds"], found["cpu_s"] = time.perf_counter() - started, time.process_time() - started_cpu
    found["peak_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    found["bars"] = convex_bars(found)
    show_bars(found["bars"])
    print(
        f"{found['cpu_s']:.0f} CPU seconds in {found['seconds']:.0f} s, peak memory {found['peak_gb']:.1f} GiB",
        flush=True,
    )
    return found


def convex_bars(found: Row) -> list[Row]:
    """Compare with the bars; a solver that did not reach the residual misses its bar whatever its correlation."""
    rows = [
        bar(f"{row['solver']}: Pearson to exact", row["pearson"] if row["residual"] < TOLERANCE else 0.0, SOLVER_BAR)
        for row in found["solvers"]
    ]
    rows.append(bar("leave-one-out: Pearson per test point, mean", found["retraining"]["loo_pearson"], LOO_BAR))
    rows.append(bar("random halves: Spearman per test point, mean (LDS)", found["retraining"]["lds"], LDS_BAR))
    return rows


def bar(name: str, value: float, least: float) -> Row:
    return {"bar": name, "value": value, "least": least, "met": bool(value >= least)}


def show(title: str, rows: list[Row]) -> None:
    """Print rows under their keys, numbers in four digits."""
    print(f"\n{title}")
    keys = list(rows[0])
    cells = [keys] + [[_cell(row[key]) for key in keys] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(keys))]
    for line in cells:
        print("  " + "  ".join(text.ljust(width) for text, width in zip(line, widths)))
    sys.stdout.flush()


def _cell(value: object) -> str:
    if not isinstance(value, float):
        return "-" if value is None else str(value)
    if math.isfinite(value) and (value == 0 or 1e-3 <= abs(value) < 1e4):
        return f"{value:.5f}" if 0.99 <= value < 1 else f"{value:.4g}"
    return f"{value:.1e}"


def show_confidence(summary: Row) -> None:
    rows = [
        {"spearman of residual with": target.removeprefix("residual_vs_").replace("_", " "), **summary[target]}
        for target in ("residual_vs_error", "residual_vs_score_error")
    ]
    show(f"unfinished solves: {summary['readings']} readings of (solver, products, anchor)", rows)
    flat = [
        {"c above": r["low"], "up to": r["high"], "readings": r["count"], **r["means"]} for r in summary["reliability"]
    ]
    flat[0]["c above"], flat[0]["up to"] = "c = 0", 0
    show("means by confidence", flat)
    holds, slack = summary["bound_holds"], summary["median_bound_over_error"]
    print(f"  |error| <= |residual|/l2 holds in {100 * holds:.0f}% of readings, median slack {slack:.0f}x", flush=True)


def show_bars(rows: list[Row]) -> None:
    print("\nbars")
    for row in rows:
        verdict = "met" if row["met"] else "MISSED"
        print(f"  {row['bar']:52s} {row['value']:.5f}  bar {row['least']:.3f}  {verdict}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=["convex", "mlp"], default="convex")
    parser.add_argument("--json", action="store_true", help="print the results as one JSON line at the end")
    parser.add_argument("--save", metavar="FILE", help="append to a JSONL file under benchmarks/results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    settings: Row = {"part": options.part, "train": 5000, "test": 500}
    if options.part == "convex":
        settings |= {"l2": L2, "tolerance": TOLERANCE, "solver_columns": 50, "kappa": KAPPA}
        report = run_convex(mnist_problem("train", 5000), mnist_problem("test", 500))
    else:
        from benchmarks import subsets

        settings |= subsets.SETTINGS
        report = subsets.run_mlp()
    result = {"benchmark": "faithfulness", "settings": settings, "seed": 0, "report": report}
    if options.save:
        result = append_result(options.save, result)
    if options.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
