"""What passes through a layer of a compiled model, handed out by an operator that the compiler does not look into.

A compiled model ignores hooks that were added after it was compiled, and one that was there before breaks its graph. So
a layer's ``forward`` is replaced while it is watched, for which ``torch.compile`` does look: the first watched step
compiles a second graph, and each later step uses one of the two. The second graph has one operator more, an identity
whose forward and backward call back into Python. It breaks no graph, so ``fullgraph=True`` can stay.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["CompiledHook"]

OnGradient = Callable[[Tensor], None]


class CompiledHook:
    """Watches one module of a compiled model, from here to :meth:`remove`.

    Args:
        module: that takes a tensor and returns one.
        on_call: given copies of both at every call; returns what is given the gradient at the output.
    """

    def __init__(self, module: nn.Module, on_call: Callable[[Tensor, Tensor], OnGradient]) -> None:
        self._module, self._on_call = module, on_call
        self._waiting: dict[int, OnGradient] = {}
        self._before = vars(module).get("forward")
        self._number = number = next(n for n in count() if n not in _hooks)  # a constant of the graph: few of them
        _hooks[number] = self
        run = type(module).forward if self._before is None else _unbound(self._before)

        def forward(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            out = run(module, *args, **kwargs)
            value = args[0] if args else next(iter(kwargs.values()))
            return _note(value.detach(), out, number)[0]

        module.forward = MethodType(forward, module)  # a method, so that a copy of the module calls itself

    def remove(self) -> None:
        """Give the module its own ``forward`` back, and forget the calls that no gradient reached."""
        if self._before is None:
            del self._module.forward
        else:
            self._module.forward = self._before
        del _hooks[self._number]

    def note(self, value: Tensor, out: Tensor, ticket: int) -> None:
        """A call, known by its ticket from now on."""
        self._waiting[ticket] = self._on_call(value, out)

    def note_gradient(self, grad: Tensor, ticket: int) -> None:
        """The gradient at the output of a call."""
        if ticket in self._waiting:  # no call of an earlier step, whose backward pass comes late
            self._waiting[ticket](grad)


_hooks: dict[int, CompiledHook] = {}  # those in place, by number
_tickets = count()


def _unbound(forward: Callable[..., Any]) -> Callable[..., Any]:
    return lambda _module, *args, **kwargs: forward(*args, **kwargs)


# The compiler may write over what goes into an operator and what comes out, so copies are kept and returned.


@torch.library.custom_op("sgoif::note", mutates_args=())
def _note(value: Tensor, out: Tensor, number: int) -> tuple[Tensor, Tensor]:
    ticket = next(_tickets)
    if number in _hooks:
        _hooks[number].note(value.clone(), out.clone(), ticket)
    return out.clone(), torch.tensor(ticket)


@torch.library.custom_op("sgoif::note_gradient", mutates_args=())
def _note_gradient(grad: Tensor, ticket: Tensor, number: int) -> Tensor:
    if number in _hooks:
        _hooks[number].note_gradient(grad.clone(), int(ticket))
    return grad.clone()


@_note.register_fake
def _(value: Tensor, out: Tensor, number: int) -> tuple[Tensor, Tensor]:
    return torch.empty_like(out), torch.empty((), dtype=torch.int64)


@_note_gradient.register_fake
def _(grad: Tensor, ticket: Tensor, number: int) -> Tensor:
    return torch.empty_like(grad)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.number = inputs[2]
    ctx.save_for_backward(output[1])


def _backward(ctx: Any, grad: Tensor, _ticket: None) -> tuple[None, Tensor, None]:
    return None, _note_gradient(grad, *ctx.saved_tensors, ctx.number), None


_note.register_autograd(_backward, setup_context=_keep)
