"""The training loss as the user declares it, and the proof, on the first step, that it is the one back-propagated.

Between an example's loss and the gradient that backward makes of it lie a reduction, a number of micro-batches and a
loss scale. All are declared, and all are checked at once: the gradient captured at the head is compared with the one
that the declared loss gives for the same outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor

from sgoif.errors import HeadError, SgoifError
from sgoif.gradients import LayerCapture, check_factor, fit_factor, gradient_factor
from sgoif.gradients.contractions import widen
from sgoif.tasks.classification import cross_entropy, is_smoothed, target_probabilities
from sgoif.training.targets import SoftTargets, read_classes

__all__ = ["HoldoutPass", "Loss", "Losses", "check_loss", "holdout_losses", "logits_of"]

_NEAR = 0.02  # relative, as the check itself
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
        if self.soft_targets not in get_args(SoftTargets):
            names = ", ".join(get_args(SoftTargets))
            raise SgoifError(f"soft_targets must be one of {names}, got {self.soft_targets!r}.")
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
    expected = _differentiate_losses(settings.losses, outputs, targets)
    if not bool(torch.isfinite(grad).all()) or not bool(grad.any()) or not bool(expected.any()):
        return False
    low = head.output_grad.dtype in (torch.bfloat16, torch.float16)
    try:
        check_factor(fit_factor(grad, expected), scale, low_precision=low)
    except HeadError as error:
        if float(expected.abs().max()) <= _ROUNDING_UNITS * torch.finfo(head.output_grad.dtype).eps:
            return False  # a saturated head: what is left of the gradient is rounding
        found = _find_cause(widen(grad) * scale, expected, outputs, targets, settings)
        raise HeadError(f"{error} {found}" if found else str(error)) from None
    return True


def _differentiate_losses(losses: Losses, outputs: Tensor, targets: Tensor) -> Tensor:
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

    The user's loss may take probabilities only. Where the targets of a step are that, so will the hold-out's be,
    smoothed if these are.
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


# Why the gradient at the head is not that of the declared loss: the usual causes, told apart by fitting each.


def _find_cause(grad: Tensor, expected: Tensor, outputs: Tensor, targets: Tensor, settings: Loss) -> str | None:
    """A sentence that names the cause and what to pass; None where no known cause fits.

    The captured gradient, with the declared factor undone, that of the declared loss and the outputs are ``[B, C]``.
    """
    grad, expected, outputs, targets = (part.detach().cpu() for part in (grad, expected, outputs, targets))
    if targets.dim() == 1:
        kept = read_classes(targets, grad.shape[1]).is_class
        grad, expected, outputs, targets = grad[kept], expected[kept], outputs[kept], targets[kept]
    grad, expected, p = grad.double(), expected.double(), outputs.double().softmax(1)
    labels = targets.long() if targets.dim() == 1 else targets.argmax(1)
    fit = fit_factor(grad, expected)
    smoothed = _smoothing_cause(grad, p, labels, settings.label_smoothing, most=min(0.5 * float(fit.misfit), _NEAR))
    if smoothed is not None:  # while the model knows nothing, smoothing looks like a factor of 1 - s
        return smoothed
    if float(fit.misfit) <= _NEAR:
        return _factor_cause(float(fit.factor), len(grad), settings.reduction, settings.accumulate)
    factors = _row_factors(grad, expected)
    if factors is not None and _is_by_class(factors, labels):
        return (
            "The loss has class weights w: pass loss=lambda z, y: F.cross_entropy(z, y, weight=w, reduction='none') to "
            "watch() and grad_factor=w[y].sum() to step()."
        )
    spread = _target_cause(p - grad, labels)
    if spread is None and factors is not None:
        return (
            "Each example has a weight of its own in the loss: pass them to step() as weights=; where the loss itself "
            "makes them, as a focal loss does, pass it to watch() as loss=."
        )
    return spread


def _factor_cause(factor: float, batch: int, reduction: str, accumulate: int) -> str | None:
    """The gradient has the right shape and the wrong size."""
    if reduction == "mean" and _is_near(factor, batch):
        return "The loss is a sum over the batch: pass loss=sgoif.Loss(reduction='sum')."
    if reduction == "sum" and _is_near(factor, 1 / batch):
        return "The loss is a mean over the batch: pass loss=sgoif.Loss(reduction='mean')."
    if accumulate > 1 and _is_near(factor, accumulate):
        return f"The loss is not divided by accumulate={accumulate}: divide it, or leave accumulate out."
    for scale in (2.0**power for power in range(8, 25)):
        if _is_near(factor, scale):
            return f"The loss is scaled by {scale:.0f}, as a GradScaler does: pass loss=sgoif.Loss(scaler=...)."
    inverse = 1 / factor if factor > 0 else 0.0
    if 1.5 < inverse < 1025 and abs(inverse - round(inverse)) <= 0.01 * inverse:
        return (
            f"The loss is divided by {round(inverse)}: pass loss=sgoif.Loss(accumulate={round(inverse) * accumulate}) "
            "if gradients are accumulated over as many micro-batches, else grad_factor= to step()."
        )
    return (
        "If the loss is a weighted mean, pass grad_factor= to step(): the sum of the weights (of class weights, "
        "w[y].sum()). If it has a constant weight w, pass grad_factor=len(targets) / w."
    )


def _smoothing_cause(grad: Tensor, p: Tensor, labels: Tensor, declared: float, most: float) -> str | None:
    """Fit ``grad = p - t + s (t - 1/C)`` for the smoothing s, with a relative residual of ``most``."""
    hot = torch.nn.functional.one_hot(labels, p.shape[1]).double()
    left, shape = grad - (p - hot), hot - 1 / p.shape[1]
    smoothing = float(fit_factor(left, shape).factor)
    if not float((left - smoothing * shape).norm() / grad.norm()) <= most or abs(smoothing - declared) < 2e-3:
        return None
    if abs(smoothing) < 2e-3:
        return f"The loss is not smoothed: leave label_smoothing={declared:g} out."
    if not 0 < smoothing < 0.995:
        return None
    return f"The loss smooths its labels: pass loss=sgoif.Loss(label_smoothing={round(smoothing, 3):g})."


def _target_cause(inside: Tensor, labels: Tensor) -> str | None:
    """If what was subtracted from the probabilities is a distribution over classes, other targets entered the loss."""
    is_distribution = bool((inside >= -0.02).all()) and bool(((inside.sum(1) - 1).abs() <= 0.02).all())
    if not is_distribution:
        return None
    if bool((inside.amax(1) >= 0.98).all()):
        wrong = float((inside.argmax(1) != labels).double().mean())
        return (
            f"For {100 * wrong:.0f}% of the rows another class entered the loss than the one given to step(): pass "
            "the targets of this batch, in its order, after its ids."
        )
    return (
        "The targets that entered the loss are spread over classes (Mixup, CutMix, soft labels): pass those "
        "probabilities [B, C] to step() as targets."
    )


def _row_factors(grad: Tensor, expected: Tensor) -> Tensor | None:
    """The factor of each row, NaN where it cannot be told; None where rows differ by more than a positive factor."""
    power = expected.square().sum(1)
    factors = (grad * expected).sum(1) / power.clamp_min(1e-300)
    off = (grad - factors[:, None] * expected).norm() / grad.norm()
    told = power > 1e-6 * power.max()
    if not float(off) <= _NEAR or not bool((factors[told] > 0).all()):
        return None
    return factors.masked_fill(~told, float("nan"))


def _is_by_class(factors: Tensor, labels: Tensor) -> bool:
    """Whether rows of one class have one factor; more rows than classes are needed to tell."""
    told = ~factors.isnan()
    classes = labels[told].unique()
    if int(told.sum()) < len(classes) + 2:
        return False
    groups = [factors[told & (labels == label)] for label in classes]
    return all(float((mine.max() - mine.min()) / mine.mean()) <= _NEAR for mine in groups)


def _is_near(value: float, wanted: float) -> bool:
    return abs(value / wanted - 1) <= _NEAR
