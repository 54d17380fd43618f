"""Per-example gradients by ``torch.func``, for any module: general and slow, so a fallback and a reference.

* :class:`FunctionalRule` serves a leaf module that has parameters and no rule of its own (a LayerScale, a learned
  temperature). With the output gradient ``b`` captured, ``⟨φ, g_i⟩ = b_i · ∂_ε module(a_i; θ + ε φ)``: one
  forward-mode JVP of *that module*, exact whatever mixes examples further on, provided that the module itself neither
  mixes examples nor draws random numbers. That is checked on a probe before step 1, see :func:`mixes_examples`.
* :func:`per_example_gradients` is vmap over grad of a whole model.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vjp, vmap

from sgoif.errors import CaptureError
from sgoif.gradients.contractions import widen
from sgoif.gradients.rules import LayerCapture, Rule
from sgoif.records import BlockShape, GradientRows

__all__ = ["FunctionalRule", "mixes_examples", "per_example_gradients"]


class FunctionalRule(Rule):
    """All parameters of a leaf module as one row, contracted by forward-mode differentiation."""

    def block_shape(self, module: nn.Module) -> BlockShape:
        return BlockShape(1, 1, sum(p.numel() for p in self.parameters(module).values()), False)

    def to_block(self, module: nn.Module, tensors: Mapping[str, Tensor]) -> Tensor:
        own = self.parameters(module)
        flat = [tensors[name].flatten(tensors[name].dim() - value.dim()) for name, value in own.items() if value.dim()]
        flat += [tensors[name].unsqueeze(-1) for name, value in own.items() if not value.dim()]
        return torch.cat(flat, -1)[..., None, None, :]

    def from_block(self, module: nn.Module, block: Tensor) -> dict[str, Tensor]:
        own = self.parameters(module)
        names = [n for n, v in own.items() if v.dim()] + [n for n, v in own.items() if not v.dim()]
        parts = block.squeeze(-2).squeeze(-2).split([own[name].numel() for name in names], -1)
        lead = block.shape[:-3]
        return {name: part.reshape((*lead, *own[name].shape)) for name, part in zip(names, parts, strict=True)}

    def dots(self, call: LayerCapture, directions: Tensor) -> Tensor:
        params = {name: value.detach() for name, value in self.parameters(call.module).items()}
        grads = widen(call.output_grad.movedim(call.batch_axis, 0).flatten(1))
        columns = []
        for direction in directions:
            tangent = self.from_block(call.module, direction)
            tangent = {name: tangent[name].to(value.dtype) for name, value in params.items()}
            moved = jvp(lambda p: _call(call, p), (params,), (tangent,))[1]
            columns.append((widen(moved.movedim(call.batch_axis, 0).flatten(1)) * grads).sum(1))
        return torch.stack(columns, 1) * call.scale

    def materialise(self, call: LayerCapture) -> Tensor:
        params = {name: value.detach() for name, value in self.parameters(call.module).items()}

        def one(inputs: tuple[Tensor, ...], output_grad: Tensor) -> dict[str, Tensor]:
            single = tuple(value.unsqueeze(call.batch_axis) for value in inputs)
            pull = vjp(lambda p: _call(call, p, single), params)[1]
            (found,) = pull(output_grad.unsqueeze(call.batch_axis))
            return dict(found)

        axis = call.batch_axis
        found = vmap(one, in_dims=(axis, axis))(call.inputs, call.output_grad)
        return widen(self.to_block(call.module, found)) * call.scale

    def norm2(self, call: LayerCapture) -> Tensor:
        return self.materialise(call).square().sum((1, 2, 3))

    def project(self, call: LayerCapture, left: Tensor, right: Tensor) -> Tensor:
        examples = self.materialise(call)
        return left.to(examples.dtype) @ examples @ right.to(examples.dtype).mT

    def rows(self, call: LayerCapture) -> GradientRows:
        examples = self.materialise(call)  # [B, 1, 1, P]: as rows a = g, b = 1
        return GradientRows(call.layer, examples.mT, examples.new_ones(1).expand(examples.shape[0], 1, 1, 1))


def _call(call: LayerCapture, params: dict[str, Tensor], inputs: tuple[Tensor, ...] | None = None) -> Tensor:
    out = functional_call(call.module, params, call.inputs if inputs is None else inputs, dict(call.extras))
    if not isinstance(out, Tensor):
        raise CaptureError(
            f"{call.layer}: a module that returns {type(out).__name__} has no per-example gradient rule."
        )
    return out.to(call.output_grad.dtype)


def mixes_examples(module: nn.Module, inputs: tuple[Tensor, ...], batch_axis: int = 0) -> bool:
    """Tell whether the module's output for one example depends on the others, or on chance.

    Runs a copy of the module on the batch twice and on its first example alone, and compares. Module and RNG state
    are left as found. Reads the comparison on the host: once per layer, never per step.
    """
    module = copy.deepcopy(module)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        whole = module(*inputs)
        again = module(*inputs)
        alone = module(*(value.narrow(batch_axis, 0, 1) for value in inputs))
    first = whole.narrow(batch_axis, 0, 1)
    tolerance = 1e-3 if whole.dtype in (torch.bfloat16, torch.float16) else 1e-5
    same = torch.allclose(first, alone, rtol=tolerance, atol=tolerance)
    return not (same and torch.allclose(whole, again, rtol=tolerance, atol=tolerance))


def per_example_gradients(
    model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], inputs: Tensor, targets: Tensor
) -> dict[str, Tensor]:
    """Gradients of each example's loss alone, by vmap over grad, ``name -> [B, *parameter]``.

    Only for models that do not mix examples (no train-mode BatchNorm); memory grows with batch times parameters.
    """
    params = {name: value.detach() for name, value in model.named_parameters() if value.requires_grad}
    fixed = {name: value.detach() for name, value in model.named_parameters() if not value.requires_grad}
    fixed |= dict(model.named_buffers())

    def one(p: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return loss(functional_call(model, (p, fixed), (x[None],)), y[None])

    found = vmap(grad(one), in_dims=(None, 0, 0), randomness="error")(params, inputs, targets)
    return dict(found)
