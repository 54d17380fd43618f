"""Does the confidence of an unfinished solve predict its true error? Asked where the truth is known.

Solves are stopped early. Each anchor then has a relative residual ``e`` and the gate's confidence
``c = clip(1 - e/0.4, 0, 1)``, and beside them the true errors of its direction and of its scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.agreement import pearson, reliability, spearman
from benchmarks.exactness import Row, Truth
from sgoif.linalg import ConjugateGradient, Richardson

__all__ = ["KAPPA", "RUNGS", "ladder", "ladder_summary"]

KAPPA = 0.4  # the gate's tolerance, as in its default mode
RUNGS = {"richardson": (1, 2, 5, 10, 20, 50, 100, 200), "cg": (1, 2, 5, 10, 20, 50, 100)}


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
