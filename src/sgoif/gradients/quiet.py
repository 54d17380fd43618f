"""A pass over the user's model that leaves no trace."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import nn

from sgoif.rng import preserve_rng

__all__ = ["quiet_eval"]


@contextmanager
def quiet_eval(model: nn.Module) -> Iterator[None]:
    """Put ``model`` in eval mode and guard the randomness; restore each submodule's own mode and all RNG states.

    Eval mode keeps BatchNorm's running statistics as they are. Python's and numpy's generators are saved too, for a
    hold-out dataset's transforms may draw from them. What is compiled runs as written: hooks are seen, and nothing is
    compiled for eval mode.
    """
    modes = [(module, module.training) for module in model.modules()]
    with preserve_rng(*{parameter.device for parameter in model.parameters()}), _run_eagerly():
        try:
            for module, _ in modes:
                module.training = False  # not .eval(), which a subclass may override with side effects
            yield
        finally:
            for module, training in modes:
                module.training = training


def _run_eagerly() -> AbstractContextManager[None]:
    """Run compiled parts as they are written; nothing is compiled in a process that never loaded the compiler."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
