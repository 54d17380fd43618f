"""Our own solvers and backends pass the checks that strangers run, and broken ones do not."""

from dataclasses import dataclass, replace

import pytest
import torch

from sgoif.curvature import DiagonalCurvature, create, registered
from sgoif.linalg import ConjugateGradient, Direct, Neumann, NystromPreconditioner, Richardson
from sgoif.linalg.direct import PreparedDirect
from sgoif.linalg.solver import Solution
from sgoif.testing import check_curvature, check_solver

SOLVERS = {
    "direct": Direct(),
    "richardson": Richardson(max_iterations=1000, tolerance=1e-9),
    "cg": ConjugateGradient(max_iterations=50, tolerance=1e-9),
    "cg, Nystrom sketch": ConjugateGradient(
        max_iterations=50, tolerance=1e-9, preconditioner=NystromPreconditioner(rank=3)
    ),
}


@pytest.mark.parametrize("name", SOLVERS)
def test_our_solvers_conform(name):
    check_solver(SOLVERS[name])


def test_the_neumann_series_conforms_where_its_terms_fall_fast_enough():
    # Its order stops growing once a term removes less than a tenth: the condition number must stay below about ten.
    check_solver(Neumann(max_order=400, tolerance=1e-9), condition=5.0)


@pytest.mark.parametrize("name", registered())
def test_our_backends_conform(name):
    check_curvature(lambda shapes: create(name, shapes, dtype=torch.float64))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("kfac", {"damping_mode": "additive"}),
        ("kfac", {"eigenvalue_corrected": True}),
        ("fisher", {"dense_limit": 0}),
    ],
)
def test_variants_of_our_backends_conform(name, settings):
    check_curvature(lambda shapes: create(name, shapes, dtype=torch.float64, **settings))


@dataclass(frozen=True, slots=True, eq=False)
class OffByALittle(Direct):
    def solve(self, prepared: PreparedDirect, rhs: torch.Tensor, initial: torch.Tensor | None = None) -> Solution:
        right = Direct.solve(self, prepared, rhs, initial)
        return replace(right, value=right.value * 1.001)


def test_a_wrong_solver_is_caught():
    with pytest.raises(AssertionError, match="solve: relative error"):
        check_solver(OffByALittle())


class Forgetful(DiagonalCurvature):
    def state_dict(self):
        state = super().state_dict()
        return {**state, "tensors": {k: torch.zeros_like(v) for k, v in state["tensors"].items()}}


def test_a_backend_that_loses_its_state_is_caught():
    with pytest.raises(AssertionError, match="continue exactly"):
        check_curvature(lambda shapes: Forgetful(shapes, dtype=torch.float64))
