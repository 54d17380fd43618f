"""A model, looked at through its head: what that is given of the examples, and its weights as one matrix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sgoif.distributed import is_sharded
from sgoif.errors import SgoifError
from sgoif.features.extraction import extract_features
from sgoif.gradients import find_head
from sgoif.gradients.models import default_forward
from sgoif.inputs.examples import Examples
from sgoif.inputs.items import move_to
from sgoif.unlearning.softmax import HeadRows

__all__ = ["HeadView"]


@dataclass(frozen=True)
class HeadView:
    """A model seen through its head. All that runs it is called inside ``quiet_eval``; linear algebra is in float64."""

    model: nn.Module
    forward: Callable[[Any], Tensor]
    head: str
    batch_size: int

    @classmethod
    def on(
        cls, model: nn.Module, few: Any, forward: Callable[[Any], Tensor] | None, head: str | None, batch_size: int
    ) -> HeadView:
        """Find the head, by name or by running the model on a few inputs."""
        run = forward or default_forward(model)
        few = move_to(few, next(model.parameters()).device)
        found = find_head(model, lambda: run(few), name=head)
        if is_sharded(*found.parameters.values()):
            raise SgoifError(f"the head {found.name!r} is sharded; gather the model's weights on one process first.")
        view = cls(model, run, found.module_name, batch_size)
        view._check(few)
        return view

    @cached_property
    def theta(self) -> Tensor:
        """Weights ``[C, D]``, the bias in their last column; a copy."""
        module: Any = self.model.get_submodule(self.head)
        weight = module.weight.detach().flatten(1)
        parts = [weight] if module.bias is None else [weight, module.bias.detach()[:, None]]
        return torch.cat(parts, 1).to(self._home, torch.float64)

    def to_state(self, theta: Tensor) -> dict[str, Tensor]:
        """``theta`` as entries of the model's state dict, copies that are the caller's."""
        module: Any = self.model.get_submodule(self.head)
        prefix, size = f"{self.head}." if self.head else "", module.weight[0].numel()
        weight = theta[:, :size].reshape(module.weight.shape).to(module.weight, copy=True)
        if module.bias is None:
            return {f"{prefix}weight": weight}
        return {f"{prefix}weight": weight, f"{prefix}bias": theta[:, -1].to(module.bias, copy=True)}

    @property
    def _home(self) -> torch.device:
        device = next(self.model.parameters()).device
        return torch.device("cpu") if device.type == "mps" else device  # which has no float64

    def features(self, inputs: Any) -> Tensor:
        """What the head is given of a batch, ``[B, D]``, with a 1 for the bias."""
        inputs = move_to(inputs, next(self.model.parameters()).device)
        seen = extract_features(self.model, self.forward, inputs, self.head, ()).features.to(self._home, torch.float64)
        has_bias = self.theta.shape[1] > seen.shape[1]
        return torch.cat([seen, seen.new_ones(len(seen), 1)], 1) if has_bias else seen

    def rows(
        self, source: Examples, positions: NDArray[np.int64], class_names: Sequence[str] | None = None
    ) -> HeadRows:
        """Some examples of a source, one batch after another."""
        features, labels, classes = [], [], len(self.theta)
        for start in range(0, len(positions), self.batch_size):
            part = torch.from_numpy(positions[start : start + self.batch_size])
            inputs, given = source.labelled(part, class_names)
            features.append(self.features(inputs))
            labels.append(given)
        found = torch.cat(labels)
        if int(found.min()) < 0 or int(found.max()) >= classes:
            raise SgoifError(f"labels must lie in 0..{classes - 1}, got {int(found.min())} to {int(found.max())}.")
        seen = torch.cat(features)
        if not torch.isfinite(seen).all():
            raise SgoifError(f"what the head {self.head!r} is given is not finite for some examples.")
        return HeadRows(seen, found.to(self._home))

    def _check(self, few: Any) -> None:
        """A head that was named need not be the one that makes the logits."""
        with torch.no_grad():
            logits = self.forward(few).to(self._home, torch.float64)
        ours = self.features(few) @ self.theta.mT
        if logits.shape != ours.shape or not torch.allclose(ours, logits, rtol=0.05, atol=0.05):
            raise SgoifError(
                f"the model's output is not what its layer {self.head!r} gives; pass head= the one that is."
            )
