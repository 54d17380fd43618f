"""Forgetting training examples: what would change without them, at the head, and a head without them."""

from sgoif.unlearning.newton import Certificate
from sgoif.unlearning.plan import Predictions, UnlearningPlan, unlearning_plan

__all__ = ["Certificate", "Predictions", "UnlearningPlan", "unlearning_plan"]
