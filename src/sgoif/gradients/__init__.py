"""Per-example gradients of a module's layers, without materialising them.

Read in this order: :mod:`rules` (what a layer is), :mod:`affine`, :mod:`norms`, :mod:`attention` (the layer types),
:mod:`layers` (which of a model's layers can be scored), :mod:`capture` (hooks), :mod:`spaces` (where scores live),
:mod:`head` (the classification head and its gradient's factor).
"""

from sgoif.gradients import affine, attention, norms  # registers the rules
from sgoif.gradients.capture import Capture, capture_calls, seen_parameters
from sgoif.gradients.head import FactorFit, check_factor, find_head, fit_factor, gradient_factor
from sgoif.gradients.layers import Coverage, Layer, Uncovered, call_order, last_block, select_layers, survey
from sgoif.gradients.quiet import quiet_eval
from sgoif.gradients.rules import AffineRule, CompositeRule, LayerCapture, Rule, register, registered_types, rule_for
from sgoif.gradients.spaces import (
    ExactSpace,
    ProjectedSpace,
    Space,
    combine_gradients,
    dot_directions,
    gradient_norms2,
    rows_by_layer,
)

__all__ = [
    "AffineRule",
    "Capture",
    "CompositeRule",
    "Coverage",
    "ExactSpace",
    "FactorFit",
    "Layer",
    "LayerCapture",
    "ProjectedSpace",
    "Rule",
    "Space",
    "Uncovered",
    "affine",
    "attention",
    "call_order",
    "capture_calls",
    "check_factor",
    "combine_gradients",
    "dot_directions",
    "find_head",
    "fit_factor",
    "gradient_factor",
    "gradient_norms2",
    "last_block",
    "norms",
    "quiet_eval",
    "register",
    "registered_types",
    "rows_by_layer",
    "rule_for",
    "seen_parameters",
    "select_layers",
    "survey",
]
