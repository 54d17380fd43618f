"""A pass over the user's model that leaves no trace, and that no capture around it takes for a pass of the training."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import nn

from sgoif.rng import preserve_rng

__all__ = ["quiet_depth", "quiet_eval"]


class _Open(threading.local):
    depth = 0  # a thread's own: another thread may score while this one trains


_open = _Open()


def quiet_depth() -> int:
    """How many :func:`quiet_eval` this thread is inside of; 0 in a training step of the user's."""
    return _open.depth


@contextmanager
def quiet_eval(model: nn.Module) -> Iterator[None]:
    """Put ``model`` in eval mode and guard the randomness; restore each submodule's own mode and all RNG states.

    Eval mode keeps BatchNorm's running statistics as they are. Python's and numpy's generators are saved too, for a
    hold-out dataset's transforms may draw from them. What is compiled runs as written: hooks are seen, and nothing is
    compiled for eval mode. A capture that was opened outside, as by another monitor's step, captures nothing of it.
    """
    modes = [(module, module.training) for module in model.modules()]
    with preserve_rng(*{parameter.device for parameter in model.parameters()}), _run_eagerly():
        _open.depth += 1
        try:
            for module, _ in modes:
                module.training = False  # not .eval(), which a subclass may override with side effects
            yield
        finally:
            _open.depth -= 1
            for module, training in modes:
                module.training = training


def _run_eagerly() -> AbstractContextManager[None]:
    """Run compiled parts as they are written; nothing is compiled in a process that never loaded the compiler."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
