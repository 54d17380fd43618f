"""The training loss as the user declares it, and the proof, on the first step, that it is the one back-propagated.

Between an example's loss and the gradient that backward makes of it lie a reduction, a number of micro-batches and a
loss scale. All are declared, and all are checked at once: the gradient captured at the head is compared with the one
that the declared loss gives for the same outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sgoif.errors import HeadError, SgoifError
from sgoif.gradients import LayerCapture, check_factor, fit_factor, gradient_factor
from sgoif.gradients.contractions import widen
from sgoif.tasks.classification import cross_entropy, is_smoothed, target_probabilities
from sgoif.training.lossgradient import gradient_cause
from sgoif.training.targets import SoftTargets, check_soft_targets, read_classes

__all__ = ["HoldoutPass", "Loss", "Losses", "check_loss", "holdout_losses", "logits_of"]

_ROUNDING_UNITS = 32  # gradients below so many units of rounding prove nothing wrong

Losses = Callable[[Tensor, Tensor], Tensor]  # outputs and targets to per-example losses


class HoldoutPass(NamedTuple):
    """How hold-out examples go through the model: as training examples do."""

    forward: Callable[[Any], Tensor]
    losses: Losses
    autocast: torch.dtype | None  # the precision of the forward pass


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss that is back-propagated, and what lies between it and the gradient of one example.

    Attributes:
        per_example: outputs and targets to per-example losses; the task's own if left out. It may smooth labels itself.
        reduction: ``"mean"`` or ``"sum"``, of the loss that is back-propagated.
        accumulate: micro-batches per optimiser step, where the loss is divided by it.
        scaler: a ``GradScaler``.
        label_smoothing: of the default loss, and of targets ``[B, C]`` that are smoothed already.
        soft_targets: what targets ``[B, C]`` are that name no single class: ``"mixed"`` (Mixup, CutMix: such batches
            are skipped and counted) or ``"soft"`` (the example's own every time, as in distillation: ``harm`` only).

    >>> Loss(reduction="sum", accumulate=4).accumulate
    4
    """

    per_example: Losses | None = None
    reduction: str = "mean"
    accumulate: int = 1
    scaler: Any = None
    label_smoothing: float = 0.0
    soft_targets: SoftTargets = "mixed"

    def __post_init__(self) -> None:
        check_soft_targets(self.soft_targets)
        if self.reduction not in ("mean", "sum"):
            raise SgoifError(
                f"reduction must be 'mean' or 'sum', got {self.reduction!r}; per-example losses go in loss=."
            )
        if isinstance(self.accumulate, str) or not self.accumulate >= 1:
            raise SgoifError(f"accumulate must be 1 or more micro-batches per optimiser step, got {self.accumulate!r}.")

    @property
    def losses(self) -> Losses:
        """Outputs and targets to per-example losses."""
        return self.per_example or cross_entropy(self.label_smoothing)

    def scale(self, num_examples: int | Tensor, accumulate: float | Tensor | None = None) -> float | Tensor:
        """What turns a captured gradient into that of the summed losses, for a micro-batch of this size.

        Where losses are weighted, the size is the sum of the weights.
        """
        scale: float | Tensor = 1.0
        if self.scaler is not None and self.scaler.is_enabled():
            on_device = getattr(self.scaler, "_scale", None)  # get_scale() would wait for the device
            scale = on_device if isinstance(on_device, Tensor) else float(self.scaler.get_scale())
        return gradient_factor(
            loss_reduction=self.reduction,
            num_examples=num_examples,
            accumulate=self.accumulate if accumulate is None else accumulate,
            loss_scale=scale,
        )


def check_loss(settings: Loss, head: LayerCapture, outputs: Tensor, targets: Tensor, scale: float | Tensor) -> bool:
    """Tell whether the loss could be checked: False where the step's gradients are not finite, zero or mere rounding.

    The first is ordinary in the first steps under a ``GradScaler``, which starts too high and backs off; the others
    come of a loss weight of 0 and of a head that is sure of every example.

    Raises:
        HeadError: the gradient at the head is not that of the declared loss; with the cause where it can be told.
    """
    grad = head.grad if head.grad.dim() == 2 else head.grad.flatten(2).sum(2)
    expected = _expected_gradient(settings.losses, outputs, targets)
    if not bool(torch.isfinite(grad).all()) or not bool(grad.any()) or not bool(expected.any()):
        return False
    low = head.output_grad.dtype in (torch.bfloat16, torch.float16)
    try:
        check_factor(fit_factor(grad, expected), scale, low_precision=low)
    except HeadError as error:
        if float(expected.abs().max()) <= _ROUNDING_UNITS * torch.finfo(head.output_grad.dtype).eps:
            return False  # a saturated head: what is left of the gradient is rounding
        found = gradient_cause(
            widen(grad) * scale,
            expected,
            outputs,
            targets,
            settings.reduction,
            settings.accumulate,
            settings.label_smoothing,
        )
        raise HeadError(f"{error} {found}" if found else str(error)) from None
    return True


def _expected_gradient(losses: Losses, outputs: Tensor, targets: Tensor) -> Tensor:
    """The gradient of the summed losses at the outputs, zero where a class number is none of the classes."""
    is_class = None
    if targets.dim() == 1 and not targets.is_floating_point():
        given = read_classes(targets, outputs.shape[1])
        targets, is_class = given.labels, given.is_class
    with torch.enable_grad():
        z = widen(outputs).detach().requires_grad_()
        found = _example_losses(losses, z, targets)
        (expected,) = torch.autograd.grad((found if is_class is None else found.where(is_class, 0.0)).sum(), z)
    return expected


def holdout_losses(settings: Loss, targets: Tensor) -> Losses:
    """The loss for hold-out examples, whose labels are class numbers, in the form that training targets have.

    Args:
        settings: with the user's loss, which may take probabilities only.
        targets: of a training step. Where they are probabilities, so will the hold-out's be, smoothed if these are.
    """
    as_probabilities = targets.dim() == 2
    smoothing = settings.label_smoothing
    if as_probabilities and smoothing and not bool(is_smoothed(targets, smoothing).any()):
        smoothing = 0.0  # the loss does it

    def losses(outputs: Tensor, labels: Tensor) -> Tensor:
        outputs = widen(outputs)  # losses are computed in full precision, as they are under autocast
        if as_probabilities:
            return settings.losses(outputs, target_probabilities(labels, outputs, label_smoothing=smoothing))
        return settings.losses(outputs, labels)

    return losses


def _example_losses(losses: Losses, outputs: Tensor, targets: Tensor) -> Tensor:
    try:
        found = losses(outputs, targets)
    except Exception as error:
        raise HeadError(
            f"loss= failed for outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)} of type "
            f"{targets.dtype}: {type(error).__name__}: {error}. It is called with what enters your loss."
        ) from error
    if found.shape != (len(outputs),):
        raise HeadError(
            f"loss= must give one loss per example, shape ({len(outputs)},), but gave {tuple(found.shape)}. Use "
            "reduction='none', and sum or average over classes where the loss is one per class."
        )
    return found


def logits_of(head: LayerCapture) -> Tensor:
    """The model's outputs, ``[B, C]``; a convolutional head is averaged over positions."""
    assert head.output is not None
    return head.output if head.output.dim() == 2 else head.output.flatten(2).mean(2)
