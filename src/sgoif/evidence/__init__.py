"""What visits add up to: standardised scores, sums per example, and canaries that calibrate them. Numpy only."""

from sgoif.evidence.accumulate import Evidence
from sgoif.evidence.ids import IdIndex
from sgoif.evidence.standardise import Standardiser
from sgoif.evidence.votes import SuggestedLabels, VoteCounts

__all__ = ["Evidence", "IdIndex", "Standardiser", "SuggestedLabels", "VoteCounts"]
