"""Truths and conformance checks that a plug-in's author can run."""

from sgoif.testing.conformance import check_curvature, check_rule, check_solver
from sgoif.testing.references import reference_gradients

__all__ = ["check_curvature", "check_rule", "check_solver", "reference_gradients"]
