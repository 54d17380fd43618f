"""Capture of what goes into each layer and of the gradient at what comes out, by hooks that leave the training alone.

A forward hook opens a *pair* and puts a hook on the output tensor; the gradient that arrives there closes it. Tensor
hooks, unlike module backward hooks, survive in-place activations. Nothing is written to ``.grad``, the RNG, the modes
or the graph; leaving the context removes every hook.

Activation checkpointing calls the forward twice. The reentrant kind runs it first without gradients (no pair is
opened) and again during backward (a pair is opened). The other kind runs it with gradients first (a pair is opened),
and the recomputation during backward is ignored while that pair waits.

A pass of :func:`~sgoif.gradients.quiet.quiet_eval` inside an open capture is none of its own: of two monitors around
one step, the inner one passes its hold-out through the model while the outer one's hooks are still there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from sgoif.errors import CaptureError
from sgoif.gradients.compiled import CompiledHook
from sgoif.gradients.functional import FunctionalRule, mixes_examples
from sgoif.gradients.layers import Layer
from sgoif.gradients.quiet import quiet_depth, quiet_eval
from sgoif.gradients.rules import CompositeRule, LayerCapture, Rule, rule_for

__all__ = ["Capture", "capture_calls", "collect_parameters", "is_backward_running"]


def is_backward_running() -> bool:
    """Tell whether this thread is inside a backward pass; the one use of a private torch function."""
    return bool(torch._C._current_graph_task_id() >= 0)


@dataclass(eq=False, slots=True)
class _Pair:
    """A call that waits for its output gradient."""

    inputs: tuple[Any, ...]
    extras: Mapping[str, Any]
    versions: tuple[int, ...]
    training: bool
    # Of the output as the layer gave it, before any in-place activation. Dropped as soon as it has served: graph node,
    # hook, pair and edge hold each other, a circle through C++ that no garbage collector sees.
    edge: GradientEdge | None
    output: Tensor | None = None
    is_spent: bool = False


class Capture:
    """Hands out one :class:`LayerCapture` per layer call, as the gradients arrive.

    Args:
        layers: what to capture, from :func:`select_layers`.
        consume: called with each capture the moment its gradient arrives, so that large gradients need not be kept.
        Without
            it, captures are collected in :attr:`calls` (backward order) until the next entry or :meth:`clear`.
        batch_axis: example axis of layers that do not have it first, by module name.
        keep_outputs: modules whose output is handed out too (the head: its output is the logits).
        compiled: modules that run in a compiled graph, where hooks are not seen.
        on_error: given what goes wrong inside a hook; without it the error is raised out of the user's backward pass.

    The object is reusable: enter it around each step. Set :attr:`scale` (and :attr:`num_examples`, to have every
    layer's example axis checked; :attr:`weights`, where examples' losses are weighted) before the backward pass.

    >>> from sgoif.gradients import Capture, select_layers
    >>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))
    >>> capture = Capture(select_layers(model))
    >>> with capture:
    ...     model(torch.ones(5, 3)).sum().backward()
    >>> [call.layer for call in capture.calls]
    ['2', '0']
    """

    def __init__(
        self,
        layers: Iterable[Layer],
        *,
        consume: Callable[[LayerCapture], None] | None = None,
        batch_axis: Mapping[str, int] | None = None,
        keep_outputs: Iterable[str] = (),
        compiled: Iterable[str] = (),
        on_error: Callable[[Exception], None] | None = None,
    ) -> None:
        self.layers = tuple(layers)
        self.calls: list[LayerCapture] = []
        self.scale: float | Tensor = 1.0  # copied into every capture
        self.weights: Tensor | None = None  # of the examples' losses, [B]: divided out of every gradient
        self.num_examples: int | None = None
        self._consume = consume
        self._on_error = on_error
        self._keep_outputs, self._compiled = frozenset(keep_outputs), frozenset(compiled)
        self._batch_axis = dict(batch_axis or {})
        self._wanted = {layer.name for layer in self.layers}
        self._modules = {layer.module_name: (layer.module, self._module_rule(layer)) for layer in self.layers}
        self._waiting: dict[str, list[_Pair]] = {name: [] for name in self._modules}
        self._handles: list[Any] = []
        self._depth = 0  # of quiet passes where it was opened; deeper calls are not its own
        self._checked: set[str] = set()
        self._needs_whole_graph = False

    @staticmethod
    def _module_rule(layer: Layer) -> Rule | CompositeRule:
        rule = rule_for(layer.module)
        return rule if isinstance(rule, CompositeRule) else layer.rule

    def __enter__(self) -> Capture:
        if self._handles:
            raise CaptureError("This capture is open already; close it before opening it again.")
        self.clear()
        self._depth = quiet_depth()
        for name, (module, _) in self._modules.items():
            self._handles.append(
                CompiledHook(module, partial(self._open_compiled, name))
                if name in self._compiled
                else module.register_forward_hook(self._opener(name), with_kwargs=True)
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._forget_pairs()

    def _forget_pairs(self) -> None:
        for waiting in self._waiting.values():
            for pair in waiting:  # forward calls that no gradient reached: unused branches, evaluation inside the step
                pair.edge = None
            waiting.clear()

    def forward(self, run: Callable[[], Tensor]) -> Tensor:
        """Run a forward pass that records a graph from the first captured layer on, and none of what lies before it.

        :meth:`differentiate` goes no further back, so a graph of the body would be memory and time for nothing. Where
        the grad mode is turned back after that layer (it was called under the model's own ``no_grad``, or inside a
        checkpoint) the pass is run again with a whole graph, and so are all later ones.

        Args:
            run: the forward pass. Called inside the open capture, in the mode the model is to be in.
        """
        if self._needs_whole_graph:
            with torch.enable_grad():
                return run()
        modes: list[bool] = []

        def begin(_module: nn.Module, _args: Any) -> None:
            modes.append(torch.is_grad_enabled())
            torch.set_grad_enabled(True)

        handles = [module.register_forward_pre_hook(begin) for module, _ in self._modules.values()]
        try:
            with torch.no_grad():  # its end undoes what `begin` set
                outputs = run()
        finally:
            for handle in handles:
                handle.remove()
        if outputs.requires_grad and all(modes[1:]):
            return outputs
        self._needs_whole_graph = True
        self._forget_pairs()
        with torch.enable_grad():
            return run()

    def differentiate(self, loss: Tensor) -> None:
        """Send the gradient of ``loss`` back to the captured outputs and no further: no ``.grad`` is touched.

        What lies before the earliest captured layer is not differentiated at all.
        """
        edges = [pair.edge for waiting in self._waiting.values() for pair in waiting if pair.edge is not None]
        if not edges:
            raise CaptureError(
                "No captured layer was called with gradients enabled; is the forward pass under no_grad?"
            )
        torch.autograd.grad(loss, _find_first(edges), allow_unused=True)

    def clear(self) -> None:
        """Forget the collected captures."""
        self.calls.clear()

    def _opener(self, name: str) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any], Any], None]:
        def open_pair(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            value = output[0] if isinstance(output, tuple) else output
            if not isinstance(value, Tensor) or not value.requires_grad or quiet_depth() > self._depth:
                return
            waiting = self._waiting[name]
            if waiting and is_backward_running():
                return  # recomputation by a checkpoint whose first forward is already on record
            inputs = tuple(_detach(arg) for arg in args)
            extras = {key: _detach(arg) for key, arg in kwargs.items()}
            versions = _versions((*inputs, *extras.values()))
            kept = value.detach() if name in self._keep_outputs else None
            pair = _Pair(inputs, extras, versions, module.training, get_gradient_edge(value), kept)
            waiting.append(pair)
            value.register_hook(self._closer(name, pair))

        return open_pair

    def _open_compiled(self, name: str, value: Tensor, output: Tensor) -> Callable[[Tensor], None]:
        if quiet_depth() > self._depth:
            return lambda grad: None
        kept = output if name in self._keep_outputs else None
        pair = _Pair((value,), {}, _versions((value,)), self._modules[name][0].training, None, kept)
        self._waiting[name].append(pair)
        return self._closer(name, pair)

    def _closer(self, name: str, pair: _Pair) -> Callable[[Tensor], None]:
        def close_pair(grad: Tensor) -> None:
            if not self._handles:
                return  # a backward pass after the context was left belongs to nobody
            try:
                self._emit(name, self._spend(name, pair), grad.detach())
            except Exception as error:
                if self._on_error is None:
                    raise
                self._on_error(error)

        return close_pair

    def _spend(self, name: str, pair: _Pair) -> _Pair:
        """Take what the pair holds, so that its activations go when the graph's go, not when the graph does."""
        if pair.is_spent:
            raise CaptureError(
                f"{name}: backward ran twice through one forward pass; add the losses, then run it once."
            )
        self._waiting[name].remove(pair)
        taken = replace(pair)
        pair.inputs, pair.extras, pair.edge, pair.output, pair.is_spent = (), {}, None, None, True
        return taken

    def _emit(self, name: str, pair: _Pair, grad: Tensor) -> None:
        if _versions((*pair.inputs, *pair.extras.values())) != pair.versions:
            raise CaptureError(f"{name}: the layer's input was changed in place after the forward pass.")
        with torch.no_grad(), _without_autocast(grad.device.type):
            for call in self._captures(name, pair, grad):
                if self._consume is None:
                    self.calls.append(call)
                else:
                    self._consume(call)

    def _captures(self, name: str, pair: _Pair, grad: Tensor) -> list[LayerCapture]:
        module, rule = self._modules[name]
        axis = self._batch_axis.get(name, 0)
        if self.weights is not None:
            grad = _divide_weights(grad, self.weights, axis)
        call = LayerCapture(
            name, rule, module, pair.inputs, grad, pair.training, axis, self.scale, pair.extras, pair.output
        )
        if isinstance(rule, CompositeRule):
            parts = [part for part in rule.split(call) if part.layer in self._wanted]
            self._check_examples(parts)
            return parts
        self._check_examples([call])
        if isinstance(rule, FunctionalRule) and name not in self._checked:
            self._refuse_mixing(call)
        return [call]

    def _check_examples(self, calls: list[LayerCapture]) -> None:
        for call in calls:
            if self.num_examples is not None and call.num_examples != self.num_examples:
                raise CaptureError(
                    f"{call.layer}: axis {call.batch_axis} of its output has {call.num_examples} entries for "
                    f"{self.num_examples} examples (shape {tuple(call.output_grad.shape)}). Name the example axis with "
                    f"batch_axis={{'{call.layer}': ...}}, or leave out a layer that folds the examples away."
                )

    def _refuse_mixing(self, call: LayerCapture) -> None:
        self._checked.add(call.layer)
        if call.num_examples > 1 and mixes_examples(call.module, call.inputs, call.batch_axis):
            raise CaptureError(
                f"{call.layer} ({type(call.module).__name__}) has no rule, and forward-mode differentiation "
                "does not hold for it: its output for one example depends on the other examples or on random numbers. "
                "Leave it out of the scored layers, or register a rule for it."
            )


def _find_first(edges: list[GradientEdge]) -> list[GradientEdge]:
    """Keep the edges that no other one comes before: to differentiate to these is to pass all the others.

    Autograd holds every gradient that it is asked for until it ends, and all the others only while they are needed.
    """
    if len(edges) < 2:
        return edges
    wanted = {edge.node for edge in edges}
    leads_back: dict[Any, bool] = {}  # by node: whether an edge lies at it or before it
    for edge in edges:
        stack = [edge.node]
        while stack:
            node = stack[-1]
            before = [other for other, _ in node.next_functions if other is not None]
            unseen = [] if node in leads_back else [other for other in before if other not in leads_back]
            if unseen:
                stack += unseen
            else:
                leads_back[node] = node in wanted or any(leads_back[other] for other in before)
                stack.pop()
    return [e for e in edges if not any(leads_back[node] for node, _ in e.node.next_functions if node is not None)]


def _without_autocast(device_type: str) -> AbstractContextManager[object]:
    is_on = torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type)
    return torch.autocast(device_type, enabled=False) if is_on else nullcontext()


def _divide_weights(grad: Tensor, weights: Tensor, axis: int) -> Tensor:
    """Divide the examples' weights out of a gradient; left as it is where the example axis is not theirs.

    Exact at the head. Below a batch norm in training mode, examples share their gradients, and it is not.
    """
    if grad.shape[axis] != len(weights):
        return grad  # refused by :meth:`Capture._check_examples`
    shape = [1] * grad.dim()
    shape[axis] = -1
    return grad / weights.to(grad).view(shape)


def _detach(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def _versions(values: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(v._version for v in values if isinstance(v, Tensor) and not v.is_inference())


@contextmanager
def collect_parameters(layer: Layer) -> Iterator[dict[str, Tensor]]:
    """Collect a layer's parameters as its forward pass sees them: whole, and in the precision that it computes in.

    Outside of it a sharded model has pieces only. The dictionary is filled by the pass.
    """
    seen: dict[str, Tensor] = {}

    def look(_module: nn.Module, _args: Any) -> None:
        seen.update({name: value.detach().clone() for name, value in layer.parameters.items()})

    handle = layer.module.register_forward_pre_hook(look)
    try:
        yield seen
    finally:
        handle.remove()


def capture_calls(
    model: nn.Module,
    forward: Callable[[Any], Tensor],
    losses: Callable[[Tensor, Tensor], Tensor],
    capture: Capture,
    inputs: Any,
    labels: Tensor,
) -> list[LayerCapture]:
    """Run a batch forward and its loss back to the captured layers, in eval mode, touching nothing."""
    capture.scale, capture.num_examples = 1.0, len(labels)
    with quiet_eval(model), torch.enable_grad(), capture:
        capture.differentiate(losses(forward(inputs), labels).sum())
    return list(capture.calls)
