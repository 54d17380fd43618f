"""Frozen records that cross layers: plain data, no behaviour beyond arithmetic on their own fields.

The one idea behind them: **every scored layer is a grouped affine map applied at positions**,
``out[g, :, t] = W[g] @ a[g, :, t]``, whether it is a Linear (one group), a convolution (positions are pixels, ``a`` the
unfolded patches), a depthwise convolution (one group per channel) or the affine part of a norm (one group per channel,
``a = (x̂, 1)``). A bias is the last column of ``W``. So one *block* of shape ``[G, O, I]`` holds the parameters of
any layer, and a per-example gradient is ``g_i[g] = Σ_t b_i[g, :, t] a_i[g, :, t]ᵀ``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntFlag
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "CLASS_SIGNALS",
    "PLAIN_SIGNALS",
    "SIGNALS",
    "TAG_SIGNALS",
    "BlockShape",
    "GradientRows",
    "ScoreBatch",
    "VisitFlag",
]

# The signals of a visit, in the one order in which they travel from the device to the sink and lie on disk.
SIGNALS = (
    "loss",
    "margin",
    "p_given",
    "runner_up",
    "harm",
    "worst",
    "worst_anchor",
    "own",
    "harm_identity",
    "worst_identity",
    "harm_solved",
    "worst_solved",
    "probe_loss",
    "probe_margin",
    "confidence",
    "confidence_worst",
    "flags",
)

# What is about the given class, and has no meaning without one, by the value that says so.
CLASS_SIGNALS = {
    name: -1.0 if name in ("runner_up", "worst_anchor") else float("nan")
    for name in SIGNALS
    if name not in ("loss", "harm", "harm_identity", "harm_solved", "confidence", "flags")
}
# What the model itself says of an example. Its mean is over all usable visits alike; that of the others, which need
# directions, is weighted by the gate, which knows how far these are to be trusted.
PLAIN_SIGNALS = ("loss", "margin", "p_given")
# Those of one tag of an example, in a multi-label run: influence on the tag as a whole, and on the hold-out examples
# with the other bit.
TAG_SIGNALS = (
    *("loss", "margin", "p_given"),
    *("harm", "worst", "harm_identity"),
    *("probe_loss", "probe_margin"),
)


@dataclass(frozen=True, slots=True)
class BlockShape:
    """The shape ``[groups, outputs, inputs]`` of one layer's parameters seen as a grouped affine map.

    >>> BlockShape(groups=1, outputs=10, inputs=129, has_bias=True).numel
    1290
    """

    groups: int
    outputs: int
    inputs: int  # counts the bias column, which is the last one
    has_bias: bool

    @property
    def numel(self) -> int:
        return self.groups * self.outputs * self.inputs

    @property
    def dims(self) -> tuple[int, int, int]:
        return (self.groups, self.outputs, self.inputs)


@dataclass(frozen=True, slots=True)
class GradientRows:
    """What one step showed of one layer, in matrix form: ``g_i[g] = Σ_t b_i[g, :, t] a_i[g, :, t]ᵀ``.

    ``output_grads`` is already the gradient of the *sum* of the losses: mean reduction, loss scaling and the like are
    undone.
    """

    layer: str
    inputs: Tensor  # a, [B, G, I, T], bias column (ones) last where the layer has a bias
    output_grads: Tensor  # b, [B, G, O, T]

    @property
    def num_examples(self) -> int:
        return self.inputs.shape[0]

    @property
    def num_positions(self) -> int:
        return self.inputs.shape[3]


@dataclass(frozen=True, slots=True)
class ScoreBatch:
    """The visits of one training step, on the host, one row per example: what a sink receives."""

    ids: NDArray[Any]  # the user's own, ints or strings, [B]
    given_labels: NDArray[np.int64]  # [B]
    step: int
    epoch: int
    attempt: int  # how often the run was resumed before
    rank: int
    micro_step: int
    columns: Mapping[str, NDArray[np.floating[Any]]]  # the signals, [B] each


class VisitFlag(IntFlag):
    """Why a visit's scores should be read with care."""

    NONE = 0
    NOT_JUDGED = 1  # the gate was shut, or there was no direction yet: stored, adds nothing
    NOT_FINITE = 2  # a loss or gradient was NaN or infinite
    MIXED = 4  # Mixup or CutMix: the row belongs to several examples, so it is not scored
    SOFT = 8  # a soft target: `harm` has a meaning, per-class columns have none
    REPEATED = 16  # the id came several times in one step; the visit is their mean
    IGNORED = 32  # the label is no class (ignore_index): counted as refused, and not recorded
