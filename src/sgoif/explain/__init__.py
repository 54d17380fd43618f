"""From a prediction to the training examples behind it."""

from sgoif.explain.examples import DIRECTIONS, attribute, examples_behind

__all__ = ["DIRECTIONS", "attribute", "examples_behind"]
