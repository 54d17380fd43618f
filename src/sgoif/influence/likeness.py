"""Likeness: 256 signs that tell what the model sees in an example, so that like examples can be found later.

The signs are those of the head's input along fixed random directions, after a running mean is taken off: features after
a ReLU share a large mean, and with it all signs would agree. Two inputs at an angle ``a`` differ in ``256 a / π`` signs
on average. The mean is that of the hold-out, which shows every class, and follows the model as it moves.

A batch costs one product ``[B, D] × [D, 256]`` and one comparison; packing waits until many visits come to the host.
More than 2,048 features are first folded to so many, each under a random sign: that keeps angles within 0.02 and bounds
the product.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sgoif.evidence import SKETCH_BITS

__all__ = ["MOST_PROJECTED", "Likeness", "packed_signs"]

MOST_PROJECTED = 2048  # features
_HORIZON = 5.0  # draws of the hold-out that the mean remembers: about 100 steps


class Likeness:
    """Directions and running mean.

    Args:
        num_features: D, of the head's input. Further columns are passed over: a bias tells no two examples apart.
        moves: whether the model is being trained; the mean of one that is not remembers every draw.
        seed: of the directions.
        device: where the features are.
        dtype: of directions and mean.

    >>> likeness = Likeness(3)
    >>> likeness.follow(torch.tensor([[1.0, 1.0, 1.0], [3.0, 1.0, 1.0]]))
    >>> likeness.mean.tolist()
    [2.0, 1.0, 1.0]
    >>> likeness.signs(torch.ones(2, 3)).shape
    torch.Size([2, 256])
    """

    def __init__(
        self,
        num_features: int,
        *,
        moves: bool = True,
        seed: int = 0,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randn(min(num_features, MOST_PROJECTED), SKETCH_BITS, generator=generator)
        self.directions = drawn.to(device=device, dtype=dtype)
        flips = torch.randint(0, 2, (num_features,), generator=generator) * 2 - 1
        self._flips = flips.to(device=device, dtype=dtype) if num_features > MOST_PROJECTED else None
        self.mean = torch.zeros(num_features, device=device, dtype=dtype)
        self._offset = torch.zeros(SKETCH_BITS, device=device, dtype=dtype)  # -mean @ directions
        self._slowest = 1 / _HORIZON if moves else 0.0
        self._draws = 0

    def follow(self, features: Tensor) -> None:
        """Move the mean towards that of a draw ``[R, D]``; a feature that is not finite leaves its own as it was."""
        self._draws += 1
        rate = max(1 / self._draws, self._slowest)
        moved = self.mean + rate * (self._known(features).mean(0) - self.mean)
        self._use(torch.where(moved.isfinite(), moved, self.mean))

    def signs(self, features: Tensor) -> Tensor:
        """Signs ``[B, 256]`` of features ``[B, D]``; a row that is not finite has none, all False."""
        return torch.addmm(self._offset, self._folded(self._known(features)), self.directions) > 0

    def _known(self, features: Tensor) -> Tensor:
        return features[:, : len(self.mean)].to(self.mean.dtype)

    def _folded(self, features: Tensor) -> Tensor:
        """Add up features that are too many, each under its sign, ``[B, D] -> [B, 2048]``."""
        if self._flips is None:
            return features
        count = -(-features.shape[1] // MOST_PROJECTED)
        padded = F.pad(features * self._flips, (0, count * MOST_PROJECTED - features.shape[1]))
        return padded.view(len(features), count, MOST_PROJECTED).sum(1)

    def _use(self, mean: Tensor) -> None:
        self.mean, self._offset = mean, -(self._folded(mean[None]) @ self.directions)[0]

    def state_dict(self) -> dict[str, Any]:
        """The mean; directions come from the seed."""
        return {"mean": self.mean.clone(), "draws": self._draws}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where another stood."""
        self._draws = int(state["draws"])
        self._use(state["mean"].to(self.mean))


def packed_signs(signs: Tensor) -> Tensor:
    """Pack ``[B, 256]`` booleans into bytes ``[B, 32]``, the first sign lowest: four words of 64 bits, end to end."""
    place = 1 << torch.arange(8, dtype=torch.uint8, device=signs.device)
    return (signs.view(torch.uint8).view(len(signs), SKETCH_BITS // 8, 8) * place).sum(2, dtype=torch.uint8)
