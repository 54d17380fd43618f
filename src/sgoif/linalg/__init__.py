"""Structured symmetric operators and the solvers of ``H φ = g``: tensors in, tensors out, no models and no loops."""

from sgoif.linalg.cg import ConjugateGradient
from sgoif.linalg.direct import Direct, KroneckerInverse, PreparedDirect, factorise
from sgoif.linalg.factor import cholesky, eigh
from sgoif.linalg.kronecker import DiagonalKronecker, Kronecker, RotatedDiagonal
from sgoif.linalg.neumann import Neumann
from sgoif.linalg.operator import LinearOperator
from sgoif.linalg.preconditioner import GivenInverse, NystromPreconditioner
from sgoif.linalg.richardson import PreparedRichardson, Richardson
from sgoif.linalg.solver import Solution, Solver, SolveStatus
from sgoif.linalg.structured import BlockDiagonal, Damped, Dense, Diagonal, LowRankPlusDiagonal
from sgoif.linalg.subspace import TopEigenpairs, follow_top_eigenpairs, follow_top_subspace
from sgoif.linalg.twolevel import TwoLevel
from sgoif.linalg.vectors import flatten, norm, unflatten

__all__ = [
    "BlockDiagonal",
    "ConjugateGradient",
    "Damped",
    "Dense",
    "Diagonal",
    "DiagonalKronecker",
    "Direct",
    "GivenInverse",
    "Kronecker",
    "KroneckerInverse",
    "LinearOperator",
    "LowRankPlusDiagonal",
    "Neumann",
    "NystromPreconditioner",
    "PreparedDirect",
    "PreparedRichardson",
    "Richardson",
    "RotatedDiagonal",
    "Solution",
    "SolveStatus",
    "Solver",
    "TopEigenpairs",
    "TwoLevel",
    "cholesky",
    "eigh",
    "factorise",
    "flatten",
    "follow_top_eigenpairs",
    "follow_top_subspace",
    "norm",
    "unflatten",
]
