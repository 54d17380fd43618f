"""What a score is: anchors, the directions tracked for them, the gate, and the formula that joins them."""

from sgoif.influence.anchors import HORIZON, AnchorDraw, Anchors
from sgoif.influence.class_anchors import ClassAnchors
from sgoif.influence.gaussnewton import GaussNewton
from sgoif.influence.holdout import MIN_HELD_OUT, HoldOut, why_not_judged
from sgoif.influence.judge import HeadJudge
from sgoif.influence.likeness import MOST_PROJECTED, Likeness, packed_signs
from sgoif.influence.pooled_tracker import PooledPoint, PooledTracker
from sgoif.influence.probe import MOST_REFIT_WORK, HeadRefit, refit_every, refit_head
from sgoif.influence.scoring import Weighting, score
from sgoif.influence.stability import Gate, GateReading, GateSettings
from sgoif.influence.tracker import Tracker

__all__ = [
    "HORIZON",
    "MIN_HELD_OUT",
    "MOST_PROJECTED",
    "MOST_REFIT_WORK",
    "AnchorDraw",
    "Anchors",
    "ClassAnchors",
    "Gate",
    "GateReading",
    "GateSettings",
    "GaussNewton",
    "HeadJudge",
    "HeadRefit",
    "HoldOut",
    "Likeness",
    "PooledPoint",
    "PooledTracker",
    "Tracker",
    "Weighting",
    "packed_signs",
    "refit_every",
    "refit_head",
    "score",
    "why_not_judged",
]
