"""What visits add up to: standardised scores, sums per example, and canaries that calibrate them. Numpy only."""

from sgoif.evidence.accumulate import Evidence, VisitMeans, WeightedMeans
from sgoif.evidence.calibrate import CanaryCalibration, LabelCalibration, calibrate_counted
from sgoif.evidence.canaries import Canaries, estimate_transition
from sgoif.evidence.clean import CleaningChoice, self_clean, should_clean
from sgoif.evidence.competence import Competence, measure_competence
from sgoif.evidence.crossfit import DENSE_CLASSES, NUM_PROBABLE, SIGNALS, cross_fitted_signals, labels_to_try
from sgoif.evidence.draws import CalibrationDraws, ErrorRates, draw_calibrations, error_rates, interval_limits
from sgoif.evidence.holdout import Holdout, Snapshot
from sgoif.evidence.ids import IdIndex, as_ids, fold_of, hash_ids
from sgoif.evidence.last import LAST_COLUMNS, LastPredictions
from sgoif.evidence.predictions import LargestPredictions, PredictionSums
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
from sgoif.evidence.watched import KeptPredictions, WatchedNoise, measure_memorisation, read_noise

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
    "CleaningChoice",
    "Competence",
    "ErrorRates",
    "Evidence",
    "Holdout",
    "IdIndex",
    "KeptPredictions",
    "LabelCalibration",
    "LargestPredictions",
    "LastPredictions",
    "LatestWords",
    "LikelyClasses",
    "LikelyOthers",
    "PredictionSums",
    "Sketches",
    "Snapshot",
    "Standardiser",
    "VisitMeans",
    "WatchedNoise",
    "WeightedMeans",
    "as_ids",
    "calibrate_counted",
    "cross_fitted_signals",
    "draw_calibrations",
    "error_rates",
    "estimate_transition",
    "fold_of",
    "hash_ids",
    "interval_limits",
    "labels_to_try",
    "measure_competence",
    "measure_memorisation",
    "picture_sketch",
    "read_noise",
    "self_clean",
    "should_clean",
    "sign_sketch",
]
