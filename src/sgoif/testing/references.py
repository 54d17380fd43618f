"""Dense truths to test against: slow, plain, in whatever precision the model has (use float64)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from sgoif.gradients import Layer

__all__ = ["reference_gradients"]


def reference_gradients(layer: Layer, run: Callable[[], Tensor], *, batch_axis: int = 0) -> Tensor:
    """Per-example gradients by definition: replicate the layer's parameters per example, differentiate the summed loss.

    ``g_i = ∂ (Σ_j loss_j) / ∂ θ⁽ⁱ⁾`` where ``θ⁽ⁱ⁾`` is the copy of the layer's parameters that example i uses. The
    rest of the model runs once on the whole batch, so whatever couples examples (train-mode BatchNorm) couples them
    here too.

    Args:
        layer: the layer whose parameters are replicated.
        run: runs the model that holds the layer and returns the *sum* of the losses.
        batch_axis: the example axis of the layer's input.

    Returns:
        ``[B, G, O, I]``.
    """
    replicas: dict[str, Tensor] = {}
    worker = copy.deepcopy(layer.module)
    worker.load_state_dict(layer.module.state_dict())
    own = {name: value.detach() for name, value in layer.rule.parameters(layer.module).items()}

    def replicate(*args: Any, **kwargs: Any) -> Any:
        inputs = (*args, *kwargs.values())
        batch = next(v for v in inputs if isinstance(v, Tensor)).shape[batch_axis]
        if not replicas:
            replicas.update({k: v.expand(batch, *v.shape).clone().requires_grad_() for k, v in own.items()})
        worker.train(layer.module.training)
        if isinstance(worker, nn.modules.batchnorm._BatchNorm):
            return _apply_batch_norm(worker, args[0], replicas)
        outs = [
            functional_call(
                worker,
                {name: value[i] for name, value in replicas.items()},
                tuple(_example(v, i, batch, batch_axis) for v in args),
                {key: _example(v, i, batch, batch_axis) for key, v in kwargs.items()},
            )
            for i in range(batch)
        ]
        if isinstance(outs[0], tuple):
            return torch.cat([o[0] for o in outs], batch_axis), None
        return torch.cat(outs, batch_axis)

    layer.module.forward = replicate
    try:
        loss = run()
    finally:
        del layer.module.forward
    found = torch.autograd.grad(loss, list(replicas.values()))
    return layer.rule.to_block(layer.module, dict(zip(replicas, found, strict=True)))


def _example(value: Any, index: int, batch: int, axis: int) -> Any:
    """Cut example ``index`` out of a tensor argument; arguments without that axis (masks) pass as they are."""
    if isinstance(value, Tensor) and value.dim() > axis and value.shape[axis] == batch:
        return value.narrow(axis, index, 1)
    return value


def _apply_batch_norm(norm: nn.Module, x: Tensor, replicas: Mapping[str, Tensor]) -> Tensor:
    """Normalise the batch together, then give every example its own affine parameters."""
    assert isinstance(norm, nn.modules.batchnorm._BatchNorm)
    use_batch = norm.training or norm.running_mean is None
    mean = None if norm.running_mean is None else norm.running_mean.clone()
    variance = None if norm.running_var is None else norm.running_var.clone()
    normalised = F.batch_norm(x, mean, variance, training=use_batch, eps=norm.eps)
    shape = (x.shape[0], x.shape[1], *(1,) * (x.dim() - 2))
    return normalised * replicas["weight"].reshape(shape) + replicas["bias"].reshape(shape)
