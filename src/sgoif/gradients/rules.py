"""How each layer type is a grouped affine map: the one place that knows what a Linear or a convolution is.

A :class:`Rule` answers, for one captured call of one layer, the questions that scoring asks of per-example gradients:
``dot`` with a direction, ``dots`` with K of them, ``norm2``, ``project``, ``materialise``, and ``rows`` (the matrix
form that curvature reads). An :class:`AffineRule` needs only to say what its rows are; everything else follows, and a
layer that has a faster way (a convolution *is* the contraction with its unfolded patches) overrides that one step.

Rules are pure: they hold no tensors. They register under the module type they serve, see :func:`register`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import sgoif.gradients.contractions as contractions
from sgoif.errors import RegistryError
from sgoif.gradients.contractions import widen
from sgoif.records import BlockShape, GradientRows

__all__ = [
    "AffineRule",
    "CompositeRule",
    "LayerCapture",
    "Rule",
    "is_composite",
    "register",
    "register_name",
    "registered_types",
    "rule_for",
]


@dataclass(frozen=True, slots=True)
class LayerCapture:
    """One call of one layer in one step: what went in, and the gradient of the loss at what came out.

    ``scale`` undoes mean reduction, gradient accumulation and loss scaling: ``scale · output_grad`` is the gradient
    of the *sum* of the losses. It is applied to results, never to the (large) gradient itself.
    """

    layer: str
    rule: Rule | CompositeRule
    module: nn.Module
    inputs: tuple[Any, ...]
    output_grad: Tensor
    training: bool
    batch_axis: int = 0
    scale: float | Tensor = 1.0
    extras: Mapping[str, Any] = field(default_factory=dict)  # keyword arguments of the call
    output: Tensor | None = None  # detached, for layers whose output was asked for

    @property
    def input(self) -> Tensor:
        """The first positional input, with the example axis first."""
        value = self.inputs[0] if self.inputs else next(iter(self.extras.values()))
        assert isinstance(value, Tensor)
        return value.movedim(self.batch_axis, 0) if self.batch_axis else value

    @property
    def grad(self) -> Tensor:
        """The unscaled output gradient, with the example axis first."""
        return self.output_grad.movedim(self.batch_axis, 0) if self.batch_axis else self.output_grad

    @property
    def num_examples(self) -> int:
        return self.output_grad.shape[self.batch_axis]


class Rule(ABC):
    """Per-example gradients of one layer type."""

    @abstractmethod
    def block_shape(self, module: nn.Module) -> BlockShape:
        """Shape ``[G, O, I]`` of the module's parameters as one block."""

    @abstractmethod
    def to_block(self, module: nn.Module, tensors: Mapping[str, Tensor]) -> Tensor:
        """Arrange tensors shaped like the module's parameters (leading axes allowed) into ``[..., G, O, I]``."""

    @abstractmethod
    def from_block(self, module: nn.Module, block: Tensor) -> dict[str, Tensor]:
        """Undo :meth:`to_block`."""

    @abstractmethod
    def dots(self, call: LayerCapture, directions: Tensor) -> Tensor:
        """``⟨φ_k, g_i⟩`` for ``directions [K, G, O, I]``, as ``[B, K]``."""

    @abstractmethod
    def norm2(self, call: LayerCapture) -> Tensor:
        """``|g_i|²``, ``[B]``."""

    @abstractmethod
    def materialise(self, call: LayerCapture) -> Tensor:
        """Every ``g_i``, ``[B, G, O, I]``."""

    @abstractmethod
    def project(self, call: LayerCapture, left: Tensor, right: Tensor) -> Tensor:
        """``left g_i rightᵀ`` per group for ``left [G, k_out, O]``, ``right [G, k_in, I]``: ``[B, G, k_out, k_in]``."""

    @abstractmethod
    def rows(self, call: LayerCapture) -> GradientRows:
        """Matrix form, with the scale applied. Raises ``CaptureError`` where a layer has none."""

    def projected_rows(self, call: LayerCapture, left: Tensor, right: Tensor) -> GradientRows:
        """Matrix form of the projected gradients: inputs ``right a``, output gradients ``left b``."""
        rows = self.rows(call)
        return GradientRows(
            call.layer,
            right.to(widen(rows.inputs).dtype) @ widen(rows.inputs),
            left.to(widen(rows.output_grads).dtype) @ widen(rows.output_grads),
        )

    def dot(self, call: LayerCapture, direction: Tensor) -> Tensor:
        """``⟨φ, g_i⟩`` for one direction ``[G, O, I]``, as ``[B]``."""
        return self.dots(call, direction[None])[:, 0]

    def unsupported(self, module: nn.Module) -> str | None:
        """Say why this module cannot be scored, or None."""
        return None

    def parameters(self, module: nn.Module) -> dict[str, nn.Parameter]:
        """The parameters in the block, by their names inside ``module``."""
        return dict(module.named_parameters(recurse=False))


class CompositeRule(ABC):
    """A module that hides several affine maps behind one call: it splits a captured call into one per map."""

    @abstractmethod
    def layers(self, module: nn.Module) -> dict[str, Rule]:
        """The hidden layers by suffix."""

    @abstractmethod
    def split(self, call: LayerCapture) -> list[LayerCapture]:
        """One capture per hidden layer; may recompute parts of the forward pass."""

    def unsupported(self, module: nn.Module) -> str | None:
        """Say why this module cannot be scored, or None."""
        return None


class AffineRule(Rule, ABC):
    """A layer that applies one grouped affine map at every position: only its rows need saying."""

    @abstractmethod
    def input_rows(self, call: LayerCapture) -> Tensor:
        """``a``, ``[B, G, I, T]``, ones in the last row where the layer has a bias."""

    @abstractmethod
    def grad_rows(self, call: LayerCapture) -> Tensor:
        """``b`` before scaling, ``[B, G, O, T]``."""

    def through(self, call: LayerCapture, weight: Tensor) -> Tensor:
        """Apply the layer with other weights ``[G, k, I]``: ``[B, G, k, T]``. Override where there is a fast kernel."""
        rows = widen(self.input_rows(call))
        return weight.to(rows.dtype) @ rows

    def rows(self, call: LayerCapture) -> GradientRows:
        grads = self.grad_rows(call)
        is_one = isinstance(call.scale, float) and call.scale == 1.0  # a pass over the gradients is saved
        return GradientRows(call.layer, self.input_rows(call), grads if is_one else grads * call.scale)

    def dots(self, call: LayerCapture, directions: Tensor) -> Tensor:
        grads = self.grad_rows(call)
        if directions.shape[0] == 1 and grads.shape[3] > 1:
            # Σ_t b_it · (Φ a_it): one forward pass of the layer with weights Φ, and one inner product
            return contractions.inner(self.through(call, directions[0]), grads)[:, None] * call.scale
        return contractions.dots(GradientRows(call.layer, self.input_rows(call), grads), directions) * call.scale

    def norm2(self, call: LayerCapture) -> Tensor:
        return contractions.norm2(self._unscaled(call)) * call.scale**2

    def materialise(self, call: LayerCapture) -> Tensor:
        return contractions.materialise(self._unscaled(call), call.scale)

    def _unscaled(self, call: LayerCapture) -> GradientRows:
        return GradientRows(call.layer, self.input_rows(call), self.grad_rows(call))

    def projected_rows(self, call: LayerCapture, left: Tensor, right: Tensor) -> GradientRows:
        grads = self.grad_rows(call)
        projected = left.to(grads.dtype) @ grads
        return GradientRows(call.layer, widen(self.through(call, right)), widen(projected) * call.scale)

    def project(self, call: LayerCapture, left: Tensor, right: Tensor) -> Tensor:
        return contractions.materialise(self.projected_rows(call, left, right))


class WeightRule(AffineRule, ABC):
    """A layer whose parameters are one weight and, in the last column of the block, perhaps a bias."""

    prefix = ""  # of both parameters' names

    @abstractmethod
    def fold(self, module: nn.Module, weight: Tensor) -> Tensor:
        """Arrange the weight (leading axes allowed) into ``[..., G, O, I]``."""

    @abstractmethod
    def unfold(self, module: nn.Module, block: Tensor) -> Tensor:
        """Undo :meth:`fold`."""

    def to_block(self, module: nn.Module, tensors: Mapping[str, Tensor]) -> Tensor:
        weight, bias = self.fold(module, tensors[f"{self.prefix}weight"]), tensors.get(f"{self.prefix}bias")
        return weight if bias is None else torch.cat([weight, bias.reshape(weight.shape[:-1])[..., None]], -1)

    def from_block(self, module: nn.Module, block: Tensor) -> dict[str, Tensor]:
        if not self.block_shape(module).has_bias:
            return {f"{self.prefix}weight": self.unfold(module, block)}
        weight, bias = self.unfold(module, block[..., :-1]), block[..., -1].flatten(-2)
        return {f"{self.prefix}weight": weight, f"{self.prefix}bias": bias}


def with_bias_row(inputs: Tensor, has_bias: bool) -> Tensor:
    """Append the constant row that multiplies the bias, ``[B, G, I, T] -> [B, G, I + 1, T]``."""
    if not has_bias:
        return inputs
    return torch.cat([inputs, inputs.new_ones(1).expand(*inputs.shape[:2], 1, inputs.shape[3])], 2)


_RULES: dict[type[nn.Module], Rule | CompositeRule] = {}
_BY_NAME: dict[str, Rule] = {}  # of modules whose library is not imported here


def register(module_type: type[nn.Module], rule: Rule | CompositeRule) -> None:
    """Serve ``module_type`` by ``rule``; a type that has one already raises.

    ``sgoif.testing.check_rule`` tells whether a rule is exact.
    """
    if module_type in _RULES:
        raise RegistryError(f"{module_type.__name__} is served by {type(_RULES[module_type]).__name__} already.")
    _RULES[module_type] = rule


def register_name(qualified_name: str, rule: Rule) -> None:
    """Serve modules of a library that is not imported, by the qualified name of their type; not its subclasses."""
    if qualified_name in _BY_NAME:
        raise RegistryError(f"{qualified_name} is served by {type(_BY_NAME[qualified_name]).__name__} already.")
    _BY_NAME[qualified_name] = rule


def registered_types() -> tuple[type[nn.Module], ...]:
    """Every module type with a rule."""
    return tuple(_RULES)


def is_composite(module: nn.Module) -> bool:
    """Tell whether the module hides its layers, supported or not: its children are then not layers of their own."""
    return any(isinstance(_RULES.get(kind), CompositeRule) for kind in type(module).__mro__)


# Subclasses with a forward of their own that computes what the base's does, by name: their libraries are not imported.
_FAITHFUL = frozenset({"timm.layers.linear.Linear"})  # casts its weights under TorchScript only


def rule_for(module: nn.Module) -> Rule | CompositeRule | str:
    """Find the rule that serves ``module``, or say in words why there is none.

    A subclass is served by its base's rule only while it keeps the base's ``forward``; one that brings its own
    computes something else.
    """
    name = f"{type(module).__module__}.{type(module).__qualname__}"
    if name in _BY_NAME and not nn.utils.parametrize.is_parametrized(module):
        return _BY_NAME[name].unsupported(module) or _BY_NAME[name]
    for module_type in type(module).__mro__:
        rule = _RULES.get(module_type)
        if rule is None:
            continue
        is_own = getattr(type(module), "forward", None) is not getattr(module_type, "forward", None)
        if is_own and name not in _FAITHFUL:
            return f"{type(module).__name__} overrides the forward of {module_type.__name__}"
        if nn.utils.parametrize.is_parametrized(module):
            return "its parameters are parametrised"
        return rule.unsupported(module) or rule
    return f"no rule for {type(module).__name__}"
