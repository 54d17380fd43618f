"""The hold-out of a multi-label training: examples that are never trained on, with a yes, a no or nothing per tag."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sgoif.errors import SgoifError
from sgoif.inputs.examples import Examples
from sgoif.tasks.multilabel import bits_of

__all__ = ["TagHoldOut"]


class TagHoldOut:
    """Held-out examples with their tags, visited in rounds.

    Args:
        source: whatever :class:`sgoif.inputs.Examples` reads, with targets ``[C]`` of an example that are 1, 0, or NaN
            or negative where nobody knows.
        seed: of the order.
        device: where the targets live and inputs are moved to.
        role: what the examples are, for messages.
    """

    def __init__(
        self, source: Any, *, seed: int = 0, device: torch.device | str = "cpu", role: str = "anchors="
    ) -> None:
        self.device = torch.device(device)
        self.examples = Examples(source, role=role, device=device)
        targets = self.examples.tags()
        self.ids: Sequence[Any] = self.examples.ids
        if targets.dim() != 2 or not len(targets):
            raise SgoifError(
                f"a multi-label hold-out needs targets [examples, tags], at least one example, got "
                f"{tuple(targets.shape)}; for one class per example leave out task=."
            )
        self.targets = targets.to(self.device)
        self._order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(seed))
        self.position = 0

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def num_tags(self) -> int:
        return self.targets.shape[1]

    @property
    def counts(self) -> Tensor:
        """How many examples are known to lack and to have each tag, ``[2, C]``."""
        present, absent = bits_of(self.targets)
        return torch.stack([absent.sum(0), present.sum(0)])

    def next_positions(self, count: int) -> Tensor:
        """Positions of the next ``count`` examples (fewer when the hold-out is smaller), wrapping around."""
        count = min(count, len(self))
        picked = self._order[(self.position + torch.arange(count)) % len(self)]
        self.position = (self.position + count) % len(self)
        return picked

    def inputs(self, positions: Tensor) -> Any:
        """The inputs at these positions, collated and on the device."""
        return self.examples.inputs(positions)
