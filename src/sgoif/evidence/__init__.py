"""What visits add up to: standardised scores, sums per example, and canaries that calibrate them. Numpy only."""

from sgoif.evidence.accumulate import Evidence
from sgoif.evidence.calibrate import (
    CanaryCalibration,
    LabelCalibration,
    calibrate_counted,
)
from sgoif.evidence.canaries import Canaries, make_canaries
from sgoif.evidence.clean import CleaningChoice, SelfCleaning, self_clean, should_clean
from sgoif.evidence.competence import Competence, measure_competence
from sgoif.evidence.crossfit import SIGNALS, cross_fitted_signals, labels_to_try
from sgoif.evidence.draws import (
    CalibrationDraws,
    ErrorRates,
    draw_calibrations,
    error_rates,
    interval_limits,
)
from sgoif.evidence.holdout import Holdout, Snapshot, class_directions, influence_under_any_label
from sgoif.evidence.ids import IdIndex, as_ids, fold_of, hash_ids
from sgoif.evidence.kept import KeptPredictions
from sgoif.evidence.likely import LikelyClasses, LikelyOthers
from sgoif.evidence.means import WeightedMeans
from sgoif.evidence.prior import shift_prior
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
from sgoif.evidence.transition import estimate_transition
from sgoif.evidence.votes import SuggestedLabels, VoteCounts
from sgoif.evidence.watched import WatchedNoise, raised_by_training, read_noise

__all__ = [
    "EMBEDDINGS_NEARLY_SAME",
    "LIKENESS_COLUMNS",
    "LIKENESS_NEARLY_SAME",
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
    "LatestWords",
    "LikelyClasses",
    "LikelyOthers",
    "SelfCleaning",
    "Sketches",
    "Snapshot",
    "Standardiser",
    "SuggestedLabels",
    "VoteCounts",
    "WatchedNoise",
    "WeightedMeans",
    "as_ids",
    "calibrate_counted",
    "class_directions",
    "cross_fitted_signals",
    "draw_calibrations",
    "error_rates",
    "estimate_transition",
    "fold_of",
    "hash_ids",
    "influence_under_any_label",
    "interval_limits",
    "labels_to_try",
    "make_canaries",
    "measure_competence",
    "picture_sketch",
    "raised_by_training",
    "read_noise",
    "self_clean",
    "shift_prior",
    "should_clean",
    "sign_sketch",
]
