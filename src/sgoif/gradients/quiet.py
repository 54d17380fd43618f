"""A pass over the user's model that leaves no trace."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn

__all__ = ["quiet_eval"]


@contextmanager
def quiet_eval(model: nn.Module) -> Iterator[None]:
    """Put ``model`` in eval mode and guard the randomness; restore each submodule's own mode and all RNG states.

    Eval mode keeps BatchNorm's running statistics as they are. Python's and numpy's generators are saved too, for a
    hold-out dataset's transforms may draw from them.
    """
    modes = [(module, module.training) for module in model.modules()]
    python_state, numpy_state = random.getstate(), np.random.get_state()
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    with torch.random.fork_rng(devices=list(devices)):
        try:
            for module, _ in modes:
                module.training = False  # not .eval(), which a subclass may override with side effects
            yield
        finally:
            for module, training in modes:
                module.training = training
            random.setstate(python_state)
            np.random.set_state(numpy_state)
