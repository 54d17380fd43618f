"""What visits add up to: standardised scores, sums and means per example, counts of noise, canaries of tags. Numpy."""

from sgoif.evidence.accumulate import Evidence, VisitMeans, WeightedMeans
from sgoif.evidence.calibrate import CanaryCalibration, LabelCalibration
from sgoif.evidence.canaries import Canaries
from sgoif.evidence.competence import Competence, measure_competence
from sgoif.evidence.crossfit import DENSE_CLASSES, NUM_PROBABLE, SIGNALS, cross_fitted_signals
from sgoif.evidence.draws import CalibrationDraws, ErrorRates, draw_calibrations, error_rates, error_share
from sgoif.evidence.holdout import Holdout, Snapshot
from sgoif.evidence.ids import IdIndex, as_ids, fold_of, hash_ids
from sgoif.evidence.last import LAST_COLUMNS, LastPredictions
from sgoif.evidence.sketch import (
    EMBEDDINGS_NEARLY_SAME,
    LIKENESS_COLUMNS,
    LIKENESS_NEARLY_SAME,
    PICTURES_NEARLY_SAME,
    SKETCH_BITS,
    SKETCH_COLUMNS,
    LatestWords,
    Sketches,
    picture_sketch,
    sign_sketch,
)
from sgoif.evidence.standardise import Standardiser
from sgoif.evidence.votes import LikelyClasses, LikelyOthers

__all__ = [
    "DENSE_CLASSES",
    "EMBEDDINGS_NEARLY_SAME",
    "LAST_COLUMNS",
    "LIKENESS_COLUMNS",
    "LIKENESS_NEARLY_SAME",
    "NUM_PROBABLE",
    "PICTURES_NEARLY_SAME",
    "SIGNALS",
    "SKETCH_BITS",
    "SKETCH_COLUMNS",
    "CalibrationDraws",
    "Canaries",
    "CanaryCalibration",
    "Competence",
    "ErrorRates",
    "Evidence",
    "Holdout",
    "IdIndex",
    "LabelCalibration",
    "LastPredictions",
    "LatestWords",
    "LikelyClasses",
    "LikelyOthers",
    "Sketches",
    "Snapshot",
    "Standardiser",
    "VisitMeans",
    "WeightedMeans",
    "as_ids",
    "cross_fitted_signals",
    "draw_calibrations",
    "error_rates",
    "error_share",
    "fold_of",
    "hash_ids",
    "measure_competence",
    "picture_sketch",
    "sign_sketch",
]
