"""Structured symmetric operators and the solvers of ``H φ = g``: tensors in, tensors out, no models and no loops."""

from sgoif.linalg.cg import ConjugateGradient, PreparedConjugateGradient
from sgoif.linalg.direct import Direct, Inverse, KroneckerInverse, PreparedDirect, factorise
from sgoif.linalg.factor import CholeskyFactor, SymmetricEigen, WoodburyInverse, cholesky, eigh, eigvalsh
from sgoif.linalg.kronecker import Kronecker, RotatedDiagonal
from sgoif.linalg.neumann import Neumann, PreparedNeumann
from sgoif.linalg.nystrom import NystromPreconditioner, NystromSketch
from sgoif.linalg.operator import LinearOperator
from sgoif.linalg.preconditioner import GivenInverse, Jacobi, Preconditioner, PreparedPreconditioner
from sgoif.linalg.richardson import PreparedRichardson, Richardson
from sgoif.linalg.solver import Prepared, Solution, Solver, SolveStats, SolveStatus
from sgoif.linalg.spectrum import extreme_ritz, lambda_max, power_iteration, random_columns
from sgoif.linalg.structured import BlockDiagonal, Damped, Dense, Diagonal, LowRankPlusDiagonal, split_damping
from sgoif.linalg.twolevel import PreparedTwoLevel, TwoLevel
from sgoif.linalg.vectors import axpy, dot, flatten, norm, scale, unflatten

__all__ = [
    "BlockDiagonal",
    "CholeskyFactor",
    "ConjugateGradient",
    "Damped",
    "Dense",
    "Diagonal",
    "Direct",
    "GivenInverse",
    "Inverse",
    "Jacobi",
    "Kronecker",
    "KroneckerInverse",
    "LinearOperator",
    "LowRankPlusDiagonal",
    "Neumann",
    "NystromPreconditioner",
    "NystromSketch",
    "Preconditioner",
    "Prepared",
    "PreparedConjugateGradient",
    "PreparedDirect",
    "PreparedNeumann",
    "PreparedPreconditioner",
    "PreparedRichardson",
    "PreparedTwoLevel",
    "Richardson",
    "RotatedDiagonal",
    "Solution",
    "SolveStats",
    "SolveStatus",
    "Solver",
    "SymmetricEigen",
    "TwoLevel",
    "WoodburyInverse",
    "axpy",
    "cholesky",
    "dot",
    "eigh",
    "eigvalsh",
    "extreme_ritz",
    "factorise",
    "flatten",
    "lambda_max",
    "norm",
    "power_iteration",
    "random_columns",
    "scale",
    "split_damping",
    "unflatten",
]
