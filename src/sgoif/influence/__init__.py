"""What a score is: anchors, the directions tracked for them, and the formula that joins both."""

from sgoif.influence.anchors import ClassAnchors
from sgoif.influence.refine import Tracker
from sgoif.influence.scoring import Scores, score

__all__ = ["ClassAnchors", "Scores", "Tracker", "score"]
