"""The head of the model that trains, what a forward pass computes, and how its curvature is damped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from sgoif.distributed import is_sharded, keep_sharded
from sgoif.gradients import Layer, find_head, quiet_eval
from sgoif.gradients.head import check_output
from sgoif.training.engine import Method
from sgoif.training.work import Work, count_work

__all__ = ["FROZEN_DAMPING", "counted_head", "damp_frozen"]

# Times the mean eigenvalue of each factor, where features do not learn. Pretrained features have a few strong
# directions (the largest eigenvalue is 50 times the mean, unstandardised 390 times) and a thousand weak ones, which 0.1
# amplifies. On the development set (frozen EfficientNet, pair-20 and human noise) `harm` of an audit lost 12 to
# 34 AP to H = I at 0.1 and at most 0.9 at 100, where `worst` gained up to 1.9. At 10 `worst` gained up to 6.4, but
# `harm` lost 4.5 where the hold-out was noisy.
FROZEN_DAMPING = 100.0


def damp_frozen(method: Method, model: nn.Module, head: Layer) -> Method:
    """Damp K-FAC for features that do not learn, where the head alone does and no settings of it are given."""
    learning = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    is_head_alone = learning == {id(parameter) for parameter in head.parameters.values()}
    if method.curvature_settings is not None or method.curvature != "kfac" or not is_head_alone:
        return method
    return replace(method, curvature_settings={"relative_damping": FROZEN_DAMPING})


def counted_head(model: nn.Module, run: Callable[[], Tensor], name: str | None) -> tuple[Layer, Work | None]:
    """Find the head, and count what a forward pass computes in the same pass."""
    if is_sharded(*model.parameters()):  # collectives run inside, which a count need not bear
        with keep_sharded(model):
            return find_head(model, run, name=name), None
    counted: list[Work | None] = []

    def run_counted() -> Tensor:
        out, work = count_work(run)
        counted.append(work)
        return out

    found = find_head(model, run_counted, name=name)
    if not counted:  # the head was named, so nothing was run
        with quiet_eval(model), torch.no_grad():
            check_output(run_counted())
    return found, counted[0]
