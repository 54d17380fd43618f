"""Per-example gradients of a module's layers, without materialising them.

Read in this order: :mod:`rules` (what a layer is), :mod:`affine`, :mod:`norms`, :mod:`attention` (the layer types),
:mod:`layers` (which of a model's layers can be scored), :mod:`capture` (hooks), :mod:`spaces` (where scores live),
:mod:`head` (the classification head and its gradient's factor).
"""

from sgoif.gradients import affine, attention, norms  # registers the rules
from sgoif.gradients.capture import Capture, capture_calls, collect_parameters
from sgoif.gradients.head import check_factor, find_head, fit_factor, gradient_factor
from sgoif.gradients.layers import Layer, select_layers, survey
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
    "ExactSpace",
    "Layer",
    "LayerCapture",
    "ProjectedSpace",
    "Rule",
    "Space",
    "affine",
    "attention",
    "capture_calls",
    "check_factor",
    "collect_parameters",
    "combine_gradients",
    "dot_directions",
    "find_head",
    "fit_factor",
    "gradient_factor",
    "gradient_norms2",
    "norms",
    "quiet_eval",
    "register",
    "registered_types",
    "rows_by_layer",
    "rule_for",
    "select_layers",
    "survey",
]
