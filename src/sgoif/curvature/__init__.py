"""Running estimates of curvature from what a training step shows: one interface, five backends, and an audit."""

from sgoif.curvature.audit import audit_residual, ggn_product, hessian_product
from sgoif.curvature.base import Curvature, CurvatureCounters, LayerDamping
from sgoif.curvature.diagonal import DiagonalCurvature
from sgoif.curvature.fisher import FisherCurvature
from sgoif.curvature.identity import IdentityCurvature
from sgoif.curvature.kfac import KroneckerCurvature
from sgoif.curvature.lowrank import LowRankCurvature
from sgoif.curvature.registry import create, register, registered
from sgoif.curvature.statistic import Reduction, Statistic, reduce_statistics

__all__ = [
    "Curvature",
    "CurvatureCounters",
    "DiagonalCurvature",
    "FisherCurvature",
    "IdentityCurvature",
    "KroneckerCurvature",
    "LayerDamping",
    "LowRankCurvature",
    "Reduction",
    "Statistic",
    "audit_residual",
    "create",
    "ggn_product",
    "hessian_product",
    "reduce_statistics",
    "register",
    "registered",
]

register("identity", IdentityCurvature)
register("diagonal", DiagonalCurvature)
register("fisher", FisherCurvature)
register("kfac", KroneckerCurvature)
register("lowrank", LowRankCurvature)
