"""The classification head: found by running the model once, and used to check, for free, the factor of every gradient.

For cross-entropy the gradient at the logits is known, ``b_i = s (p_i − t_i)``. Fitting ``s`` on the first step
catches a wrong loss reduction, a forgotten loss scale or a mis-declared accumulation before a single score is
written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from sgoif.errors import HeadError
from sgoif.gradients.layers import Layer, select_layers, survey
from sgoif.gradients.quiet import quiet_eval
from sgoif.linalg.factor import factor_dtype

__all__ = [
    "FactorFit",
    "check_factor",
    "check_output",
    "describe_softmax",
    "find_head",
    "find_producer",
    "fit_factor",
    "gradient_factor",
    "squashing",
]

_TOLERANCE, _LOW_PRECISION_TOLERANCE = 0.01, 0.05


def find_head(model: nn.Module, run: Callable[[], Tensor], *, name: str | None = None) -> Layer:
    """Find the layer that produces the model's ``[B, C]`` output: a Linear, or a 1x1 convolution that is averaged.

    Args:
        model: the model.
        run: runs it once and returns its logits. It is called in eval mode, without gradients, and leaves no trace.
        name: the head's name, where the user knows it; then nothing is run.

    Raises:
        HeadError: with the candidates, when none or several match.
    """
    if name is not None:
        return select_layers(model, [name])[0]
    candidates = {
        layer.name: layer
        for layer in survey(model).layers
        if isinstance(layer.module, nn.Linear)
        or (isinstance(layer.module, nn.Conv2d) and layer.module.kernel_size == (1, 1))
    }
    try:
        found, classes = find_producer(model, {key: layer.module for key, layer in candidates.items()}, run)
    except HeadError:
        _refuse_untrained(model, run)
        raise
    head = candidates[found]
    if head.shape.outputs != classes:
        raise HeadError(
            f"The head {head.name!r} is a {type(head.module).__name__} with a forward of its own, whose gradients per "
            "class are not known. Make it an nn.Linear, or register a rule for it (sgoif.gradients.register)."
        )
    return head


def _refuse_untrained(model: nn.Module, run: Callable[[], Tensor]) -> None:
    """Raise with the cure if the layer that gives the output is frozen, or inside an adapter (PEFT) that is trained."""
    whole = dict(model.named_modules())
    frozen = {
        name: module
        for name, module in whole.items()
        if isinstance(module, nn.Linear | nn.Conv2d) and not any(p.requires_grad for p in module.parameters())
    }
    adapted = {
        name: module for name, module in whole.items() if isinstance(getattr(module, "base_layer", None), nn.Linear)
    }
    outer = {name: module for name, module in frozen.items() if name.removesuffix(".base_layer") not in adapted}
    try:
        name, _ = find_producer(model, outer | adapted, run)
    except HeadError:
        return
    cure = f"name it in modules_to_save=[{name.rpartition('.')[2]!r}] of PEFT's config"
    if name in adapted:
        raise HeadError(
            f"The layer {name!r} gives the model's output through an adapter, whose parts have no gradient per class. "
            f"Train the layer itself: leave it out of the adapter's target_modules and {cure}."
        )
    raise HeadError(
        f"The layer {name!r} gives the model's output but is frozen, and a layer that does not learn has no influence. "
        f"Train it, too: {cure} (task_type='SEQ_CLS' does so), or call requires_grad_(True) on it."
    )


def find_producer(model: nn.Module, candidates: Mapping[str, nn.Module], run: Callable[[], Tensor]) -> tuple[str, int]:
    """Find which of some modules produces the model's output, and how many classes that tells apart.

    Raises:
        HeadError: with what the candidates gave, when none or several match.
    """
    outputs: dict[str, Tensor] = {}  # copies: an activation may work in place
    handles = [
        module.register_forward_hook(lambda _m, _i, out, key=key: outputs.__setitem__(key, out.detach().clone()))
        for key, module in candidates.items()
    ]
    try:
        with quiet_eval(model), torch.no_grad():
            logits = run().detach()
    finally:
        for handle in handles:
            handle.remove()
    check_output(logits)
    found = [key for key, out in outputs.items() if _produces(out, logits)]
    if len(found) != 1 and not bool(torch.isfinite(logits).all()):
        raise HeadError(
            "The model's output for the first hold-out examples is NaN or infinite, so its head cannot be found. Check "
            "the weights and these examples, or name the head: head='name', for watch and audit in sgoif.Method."
        )
    if len(found) != 1:
        seen = ", ".join(f"{key} {tuple(out.shape)}" for key, out in outputs.items()) or "none was called"
        for key, out in outputs.items() if not found else ():
            kind = squashing(out, logits)
            if kind is not None:
                raise HeadError(describe_softmax(key) if kind == "softmax" else _describe_log_softmax(key))
        what = "No layer produces" if not found else f"Several layers ({', '.join(found)}) produce"
        raise HeadError(
            f"{what} the model's output {tuple(logits.shape)}. Name it: head='name', for watch and audit in "
            f"sgoif.Method. Candidates: {seen}."
        )
    return found[0], logits.shape[1]


def check_output(logits: Tensor) -> None:
    """Raise unless a model's output is ``[examples, classes]``.

    Raises:
        HeadError: with what to do.
    """
    shape = tuple(logits.shape)
    if logits.dim() == 3:
        raise HeadError(
            f"The model's output has shape {shape}, one prediction per token or position; sequences are not supported "
            "yet, so score a model that gives one prediction per example, [examples, classes]."
        )
    if logits.dim() != 2:
        one = " One input needs a batch axis too: x[None] in place of x." if logits.dim() == 1 else ""
        raise HeadError(f"The model's output has shape {shape}; a head gives [examples, classes].{one}")


def squashing(out: Tensor, logits: Tensor) -> Literal["softmax", "log_softmax"] | None:
    """Say which of the two turned a layer's output ``[B, C]`` into the model's; None for neither."""
    if out.shape != logits.shape or out.dim() != 2 or out.shape[1] < 2:
        return None
    tolerance = 2e-2 if _is_low(out) or _is_low(logits) else 1e-5
    given, raw = logits.float(), out.float()
    if torch.allclose(raw.softmax(1), given, rtol=tolerance, atol=tolerance / 10):
        return "softmax"
    return "log_softmax" if torch.allclose(raw.log_softmax(1), given, rtol=tolerance, atol=tolerance / 10) else None


def describe_softmax(layer: str) -> str:
    """Say what is wrong with a model that ends in a softmax."""
    return (
        f"The model's output is the softmax of layer {layer!r}, but cross_entropy takes logits and would take the "
        "softmax once more. Return the logits: leave out the last softmax in training, and take it where probabilities "
        f"are needed. A loss of your own on probabilities goes in loss=, with head={layer!r}."
    )


def _describe_log_softmax(layer: str) -> str:
    return (
        f"The model's output is the log_softmax of layer {layer!r}. With nll_loss, which is cross-entropy then, pass "
        f"head={layer!r}; with cross_entropy return the logits."
    )


def _produces(out: Tensor, logits: Tensor) -> bool:
    if out.dim() == 4 and out.shape[:2] == logits.shape:
        tolerance = 2e-2 if _is_low(out) else 1e-4  # of what is averaged: the logits of a new model may be tiny
        off = (out.float().mean((2, 3)) - logits.float()).abs().max()
        return bool(off <= tolerance * out.abs().max())
    return out.shape == logits.shape and torch.equal(out.to(logits.dtype), logits)


def gradient_factor(
    *,
    loss_reduction: str,
    num_examples: int | Tensor,
    accumulate: float | Tensor = 1,
    loss_scale: float | Tensor = 1.0,
) -> float | Tensor:
    """The factor that turns a captured output gradient into the gradient of the *sum* of the losses.

    ``num_examples`` is the local batch of this backward pass (for a class-weighted mean, the sum of the weights).

    >>> gradient_factor(loss_reduction="mean", num_examples=250, accumulate=4)
    1000.0
    """
    if loss_reduction not in ("mean", "sum"):
        raise HeadError(f"reduction must be 'mean' or 'sum', got {loss_reduction!r}.")
    count: float | Tensor = 1.0
    if loss_reduction == "mean":
        count = num_examples if isinstance(num_examples, Tensor) else float(num_examples)
    # on the device every product is a kernel, so those with 1 are left out
    count = count if isinstance(accumulate, int | float) and accumulate == 1 else count * accumulate
    return count if isinstance(loss_scale, float) and loss_scale == 1 else count / loss_scale


@dataclass(frozen=True, slots=True)
class FactorFit:
    """Least-squares fit ``b ≈ s · expected``: ``factor`` is s, ``misfit`` the relative residual. 0-d device tensors."""

    factor: Tensor
    misfit: Tensor


def fit_factor(output_grad: Tensor, expected: Tensor) -> FactorFit:
    """Fit the factor between captured logits' gradients and what the loss predicts (``p − t`` for cross-entropy)."""
    wide = factor_dtype(output_grad.device)
    b, e, tiny = output_grad.to(wide), expected.to(wide), torch.finfo(wide).tiny
    factor = (b * e).sum() / (e * e).sum().clamp_min(tiny)
    misfit = (b - factor * e).norm() / b.norm().clamp_min(tiny)
    return FactorFit(factor, misfit)


def check_factor(fit: FactorFit, scale: float | Tensor, *, low_precision: bool = False) -> None:
    """Raise unless ``scale`` (from :func:`gradient_factor`) undoes the fitted factor within 1% (5% in low precision).

    Reads the fit on the host: for step 1, not for every step.
    """
    tolerance = _LOW_PRECISION_TOLERANCE if low_precision else _TOLERANCE
    product, misfit = float(fit.factor * scale), float(fit.misfit)
    if not misfit <= max(tolerance, 0.02):
        raise HeadError(
            f"The gradients at the head do not look like cross-entropy's p - t (relative misfit {misfit:.2f}). If "
            "the loss is another one, pass it as loss=; if targets are soft, mixed or smoothed, pass them as they "
            "enter the loss."
        )
    if not abs(product - 1) <= tolerance:
        raise HeadError(
            f"The gradients at the head are {product:.4g} times what the declared settings say. Check reduction "
            f"('mean' or 'sum'), accumulate and scaler of sgoif.Loss; the factor found is {float(fit.factor):.6g}."
        )


def _is_low(values: Tensor) -> bool:
    return values.dtype in (torch.bfloat16, torch.float16)
