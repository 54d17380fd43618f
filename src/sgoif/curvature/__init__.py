"""Running estimates of curvature from what a training step shows: one interface, five backends, the exact product."""

from sgoif.curvature.adam import AdamCurvature
from sgoif.curvature.base import Curvature
from sgoif.curvature.diagonal import DiagonalCurvature, IdentityCurvature
from sgoif.curvature.fisher import FisherCurvature, LowRankCurvature
from sgoif.curvature.gauss_newton import ggn_product
from sgoif.curvature.kfac import KroneckerCurvature
from sgoif.curvature.registry import create, register, registered
from sgoif.curvature.statistic import Statistic, reduce_statistics

__all__ = [
    "AdamCurvature",
    "Curvature",
    "DiagonalCurvature",
    "FisherCurvature",
    "IdentityCurvature",
    "KroneckerCurvature",
    "LowRankCurvature",
    "Statistic",
    "create",
    "ggn_product",
    "reduce_statistics",
    "register",
    "registered",
]

register("identity", IdentityCurvature)
register("diagonal", DiagonalCurvature)
register("fisher", FisherCurvature)
register("kfac", KroneckerCurvature)
register("lowrank", LowRankCurvature)
