"""What the targets of a step say: the class that each example was given, or that it was given none.

Class numbers ``[B]`` are read as they stand. Probabilities ``[B, C]`` may be one class in another form, smoothed or
not. Otherwise they are *mixed* (Mixup and CutMix: the picture and its target belong to several examples, and to others
the next time) or *soft* (a teacher's or several annotators' opinion: the example's own, every time). A mixed row is
skipped and counted. A soft row has a gradient of its own, so ``harm`` keeps its meaning, but there is no given class
for the other columns to be about.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from sgoif.errors import SgoifError
from sgoif.records import CLASS_SIGNALS, SIGNALS, VisitFlag

__all__ = [
    "GivenLabels",
    "MixedSteps",
    "SoftTargets",
    "check_targets",
    "read_classes",
    "read_targets",
    "refuse_swapped",
    "without_classes",
]

log = logging.getLogger(__name__)

SoftTargets = Literal["mixed", "soft"]

_ROUNDING = 1e-3  # a probability of one class, computed in half precision, may fall short of 1 by this much
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_PATIENCE = 50  # scored steps without a single usable row before a word is said


@dataclass(frozen=True, slots=True)
class GivenLabels:
    """The targets of one batch as classes."""

    labels: Tensor  # the most probable class, [B]
    mixed: Tensor | None = None  # rows that belong to several examples, [B]
    soft: Tensor | None = None  # rows that are spread over classes and the example's own, [B]
    is_class: Tensor | None = None  # whether the label is a class and no ignore_index, [B]; where not, `labels` is near

    @property
    def label_to_record(self) -> Tensor:
        """What is written down as the given class; -1 for mixed and soft rows, which have none."""
        classless = self.mixed if self.soft is None else self.soft
        return self.labels if classless is None else self.labels.masked_fill(classless, -1)

    @property
    def num_classed(self) -> int | Tensor:
        """How many rows a mean over the batch divides by; counted on the device, without waiting for it."""
        return len(self.labels) if self.is_class is None else self.is_class.sum()

    @property
    def thinning(self) -> Tensor | None:
        """``sqrt(B / n)`` for ``n`` rows that have a class; a factor that keeps second moments those of the n."""
        if self.is_class is None:
            return None
        return (len(self.labels) / self.is_class.sum()).sqrt()


def check_targets(targets: Any) -> None:
    """Raise unless ``targets`` is a tensor with one row per example, and say how to make it one."""
    if isinstance(targets, Tensor) and targets.dim():
        return
    needed = "step() needs targets as a tensor of class numbers [B] or of probabilities [B, C], got"
    if isinstance(targets, Tensor):
        raise SgoifError(f"{needed} a single number; pass the targets of the whole batch.")
    kind = type(targets).__name__
    values = np.asarray(targets, dtype=object).reshape(-1)
    if any(isinstance(value, str | bytes) for value in values[:1]):
        raise SgoifError(
            f"{needed} a {kind} of strings; number the classes 0..C-1 and pass those numbers as a tensor. If they are "
            "ids, pass them first: step(ids, targets)."
        )
    raise SgoifError(f"{needed} a {kind}; pass torch.as_tensor(targets).")


def refuse_swapped(ids: Any, targets: Tensor, num_classes: int) -> None:
    """Raise where ids and targets were given in the wrong order: the ids could be targets, and the targets could not.

    Several numbers above the classes cannot have entered the loss, which would have raised; ``ignore_index`` is one.
    """
    if targets.dim() != 1 or targets.is_floating_point() or not isinstance(ids, Tensor | np.ndarray | list | tuple):
        return
    try:
        could_be = torch.as_tensor(ids)
    except Exception:  # strings, and what is no id either
        return
    if could_be.dim() == 2:
        is_swapped = could_be.shape == (len(targets), num_classes)
    else:
        is_classes = could_be.dtype in _INTEGERS and bool(((could_be >= 0) & (could_be < num_classes)).all())
        is_swapped = is_classes and len(targets[targets >= num_classes].unique()) > 1
    if is_swapped:
        raise SgoifError(
            f"step(ids, targets) takes the ids first and the targets second: the targets given go up to "
            f"{int(targets.max())}, where the model has {num_classes} outputs, and the ids could be targets. Swap them."
        )


def read_targets(
    targets: Tensor, outputs: Tensor, *, label_smoothing: float = 0.0, meaning: SoftTargets = "mixed"
) -> GivenLabels:
    """Read the targets of a batch, without waiting for the device.

    In a batch with one mixed row all rows count as mixed: Mixup blends whole batches, and a row with a pure target is
    then a blend with an example of the same class. A class number outside ``0..C-1`` is ignored: its row alone.

    Args:
        targets: as they enter the loss, ``[B]`` or ``[B, C]``.
        outputs: logits, ``[B, C]``.
        label_smoothing: up to which a target still is one class.
        meaning: of rows that are spread further, see above.
    """
    if targets.dim() == 1 and not targets.is_floating_point():
        return read_classes(targets, outputs.shape[1])
    if targets.shape != outputs.shape or not targets.is_floating_point():
        raise SgoifError(
            f"targets of shape {tuple(targets.shape)} and type {targets.dtype} do not fit the model's outputs "
            f"{tuple(outputs.shape)}. Pass class numbers as integers [B], or probabilities as floats [B, C]."
        )
    top, labels = targets.max(1)
    is_spread = top < 1 - label_smoothing + label_smoothing / outputs.shape[1] - _ROUNDING
    if meaning == "soft":
        return GivenLabels(labels, soft=is_spread)
    return GivenLabels(labels, mixed=is_spread | is_spread.any())


def read_classes(targets: Tensor, num_classes: int) -> GivenLabels:
    """Read class numbers ``[B]``; those that name no class, as ``ignore_index`` does, are kept apart.

    The labels are a copy: the loop may reuse its own tensor. Two operators, and none waits for the device.
    """
    labels = targets.long().clamp(0, num_classes - 1)
    return GivenLabels(labels, is_class=labels == targets)


def without_classes(signals: Tensor, given: GivenLabels, targets: Tensor, outputs: Tensor) -> Tensor:
    """Take out of packed signals ``[B, S]`` what a soft row cannot have; its loss becomes that of its own target."""
    if given.soft is None:
        return signals
    loss = -(targets * outputs.log_softmax(1)).sum(1)
    columns = dict(zip(SIGNALS, signals.unbind(1)))
    columns |= {"loss": loss.to(signals.dtype), "flags": columns["flags"] + int(VisitFlag.SOFT)}
    columns |= {name: torch.full_like(columns[name], value) for name, value in CLASS_SIGNALS.items()}
    return torch.where(given.soft[:, None], torch.stack(list(columns.values()), 1), signals)


class MixedSteps:
    """Notices, on the host, that no step had a row that could be scored, and says once what to do about it."""

    def __init__(self) -> None:
        self._in_a_row = 0
        self._is_said = False

    def note(self, flags: Any) -> None:
        """Take in the flags of one step's rows, a numpy array ``[B]``."""
        if not len(flags):
            return
        is_usable = bool(((flags.astype("int64") & int(VisitFlag.MIXED)) == 0).any())
        self._in_a_row = 0 if is_usable else self._in_a_row + 1
        if self._in_a_row >= _PATIENCE and not self._is_said:
            self._is_said = True
            log.warning(
                "%d scored steps in a row had mixed targets only, so no example was scored. Leave Mixup and CutMix "
                "off on every k-th step and score those (Budget(plan=Plan(stride=k))), or run step() around un-mixed "
                "batches only. If the targets are smoothed, pass Loss(label_smoothing=...); if they are soft, and the "
                "same for an example every time, pass Loss(soft_targets='soft').",
                self._in_a_row,
            )
