"""Why the gradient at the head is not that of the declared loss: the usual causes, told apart by fitting each."""

from __future__ import annotations

import torch
from torch import Tensor

from sgoif.gradients import fit_factor
from sgoif.training.targets import read_classes

__all__ = ["gradient_cause"]

_NEAR = 0.02  # relative, as the check itself


def gradient_cause(
    grad: Tensor,
    expected: Tensor,
    outputs: Tensor,
    targets: Tensor,
    reduction: str,
    accumulate: int,
    label_smoothing: float,
) -> str | None:
    """A sentence that names the cause and what to pass; None where no known cause fits.

    Args:
        grad: as captured, with the declared factor undone, ``[B, C]``.
        expected: the gradient of the declared loss, ``[B, C]``.
        outputs: logits, ``[B, C]``.
        targets: as given to the step.
        reduction: as declared.
        accumulate: as declared.
        label_smoothing: as declared.
    """
    if targets.dim() == 1:
        kept = read_classes(targets, grad.shape[1]).is_class
        grad, expected, outputs, targets = grad[kept], expected[kept], outputs[kept], targets[kept]
    grad, expected, p = grad.double(), expected.double(), outputs.double().softmax(1)
    labels = targets.long() if targets.dim() == 1 else targets.argmax(1)
    fit = fit_factor(grad, expected)
    smoothed = _smoothing_cause(grad, p, labels, label_smoothing, most=min(0.5 * float(fit.misfit), _NEAR))
    if smoothed is not None:  # while the model knows nothing, smoothing looks like a factor of 1 - s
        return smoothed
    if float(fit.misfit) <= _NEAR:
        return _factor_cause(float(fit.factor), len(grad), reduction, accumulate)
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
