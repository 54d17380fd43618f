"""Out-of-distribution inputs: a scorer made of a model and some in-distribution images, its alarms, its file."""

from sgoif.ood.scorer import OodScorer

__all__ = ["OodScorer"]
