"""The Gauss-Newton matrix of the mean loss over a set of examples, never written out: one pass over them per product.

The surrogates of :mod:`sgoif.curvature` are cheap enough to follow a training. A finished model affords the matrix that
they stand for: across layers, not block by block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from sgoif.curvature import ggn_product
from sgoif.gradients import Layer, quiet_eval
from sgoif.linalg import LinearOperator, flatten, unflatten

__all__ = ["GaussNewton"]

COLUMNS = 20  # multiplied at a time: each holds the activations of a batch


@dataclass(frozen=True, eq=False)
class GaussNewton(LinearOperator):
    """``(1/n) Σ_i J_iᵀ H_i J_i`` over the parameters of some layers, in their block layout.

    ``J_i`` is the Jacobian of example i's outputs, ``H_i`` the Hessian of its loss there. Positive semidefinite for
    convex losses. The model runs in eval mode and is left as found.
    """

    model: nn.Module
    layers: Sequence[Layer]
    forward: Callable[[Any], Tensor]  # inputs to outputs, by the model
    losses: Callable[[Tensor, Tensor], Tensor]  # outputs and labels to per-example losses
    batches: Callable[[], Iterable[tuple[Any, Tensor]]]  # starts a pass over inputs and labels
    num_examples: int

    @property
    def shape(self) -> tuple[int, int]:
        size = sum(layer.shape.numel for layer in self.layers)
        return (size, size)

    @property
    def dtype(self) -> torch.dtype:
        return self._parameter.dtype

    @property
    def device(self) -> torch.device:
        return self._parameter.device

    @property
    def _parameter(self) -> Tensor:
        return next(iter(self.layers[0].parameters.values()))

    def matmul(self, rhs: Tensor) -> Tensor:
        shapes = {layer.name: layer.shape for layer in self.layers}
        blocks = unflatten(self.check_columns(rhs), shapes)
        vectors = {name: part for layer in self.layers for name, part in layer.tensors(blocks[layer.name]).items()}
        found = {name: torch.zeros_like(part) for name, part in vectors.items()}
        for inputs, labels in self.batches():
            for name, part in self._product(inputs, labels, vectors).items():
                found[name] += part
        return flatten({layer.name: layer.block(found) for layer in self.layers}, shapes)

    def _product(self, inputs: Any, labels: Tensor, vectors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        params = {name: value.detach() for layer in self.layers for name, value in layer.parameters.items()}
        bound = _Bound(self.model, self.forward)

        def outputs(at: dict[str, Tensor]) -> Tensor:
            # functional_call puts the model's own parameters back, whatever happens
            found: Tensor = functional_call(bound, {f"model.{name}": value for name, value in at.items()}, (inputs,))
            return found

        def loss(logits: Tensor) -> Tensor:
            return self.losses(logits, labels).sum() / self.num_examples

        def product(vector: dict[str, Tensor]) -> dict[str, Tensor]:
            return ggn_product(outputs, loss, params, vector)

        with quiet_eval(self.model), torch.enable_grad(), _plain_attention():
            return dict(vmap(product, chunk_size=COLUMNS)(dict(vectors)))


@contextmanager
def _plain_attention() -> Iterator[None]:
    """Keep to attention kernels that have a forward-mode derivative; the fused ones have none."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


class _Bound(nn.Module):
    """The user's way of running the model, as a module whose parameters can be replaced."""

    def __init__(self, model: nn.Module, run: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.model, self.run = model, run

    def forward(self, inputs: Any) -> Tensor:
        return self.run(inputs)
