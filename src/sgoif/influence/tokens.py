"""Which tokens of a sequence carry its harm: one forward pass with a derivative along the direction of a group.

The loss of a sequence is the sum of its tokens' losses, so its harm ``-φ·∇ℓ`` is the sum of ``-φ·∇ℓ_t``. Forward-mode
differentiation along ``φ`` gives the derivative of every token's loss at once, whatever their number, and exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from sgoif.errors import SgoifError
from sgoif.gradients import Layer, quiet_eval
from sgoif.influence.groups import Forward
from sgoif.tasks.sequences import token_losses

__all__ = ["differentiate_tokens"]


class _Called(nn.Module):
    """A model together with the way in which it is called."""

    def __init__(self, model: nn.Module, call: Forward) -> None:
        super().__init__()
        self.model, self._call = model, call

    def forward(self, batch: Mapping[str, Any]) -> Tensor:
        return self._call(batch)


def differentiate_tokens(
    model: nn.Module,
    forward: Forward,
    layers: Sequence[Layer],
    direction: Mapping[str, Tensor],
    batch: Mapping[str, Any],
    targets: Tensor,
) -> tuple[Tensor, Tensor]:
    """Losses of the tokens and their derivatives along a direction, both ``[B, T]``, in eval mode.

    Costs about five forward passes, and no graph is kept; the model is left as found.

    Args:
        model: whose parameters the layers have.
        forward: a batch to logits, by calling that model.
        layers: the scored layers.
        direction: ``φ`` by layer, ``[G, O, I]``.
        batch: what the model is called with.
        targets: the token that each position is to predict.

    Raises:
        SgoifError: an operation of the model has no forward-mode derivative.
    """
    called = _Called(model, forward)
    names = {id(parameter): name for name, parameter in called.named_parameters()}
    with quiet_eval(model), torch.no_grad(), sdpa_kernel(SDPBackend.MATH), forward_ad.dual_level():
        moved: dict[str, Tensor] = {}
        for layer in layers:
            tangents = layer.tensors(direction[layer.name])
            for name, parameter in layer.parameters.items():
                tangent = tangents[name].to(parameter).reshape(parameter.shape).contiguous()
                moved[names[id(parameter)]] = forward_ad.make_dual(parameter.detach(), tangent)
        try:
            logits = torch.func.functional_call(called, moved, (batch,))
        except (NotImplementedError, RuntimeError) as error:
            if "forward" not in str(error):
                raise
            raise SgoifError(
                "tokens cannot be explained: an operation of this model has no forward-mode derivative "
                f"({str(error).splitlines()[0]}). Load the model with attn_implementation='eager' or 'sdpa'."
            ) from error
        losses = forward_ad.unpack_dual(token_losses(logits, targets))
        slopes = torch.zeros_like(losses.primal) if losses.tangent is None else losses.tangent.clone()
        return losses.primal.clone(), slopes
