"""Anchors that are replaced: made of other hold-out examples of their class, their direction tracked from zero again.

Every so many refreshes the tenth with the lowest confidence is replaced. Where the Gram matrix of the normalised
directions has too small an eigenvalue, the anchor that depends most on the others is. With one anchor per class that
can be so in a sound run, where the gradients of all classes nearly sum to zero: both are off by default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sgoif.linalg.factor import factor_dtype

__all__ = ["Replacement", "most_dependent"]

_SHARE = 10  # one anchor in so many is replaced at a time


class Replacement:
    """Which anchors are replaced at a refresh.

    Args:
        num_anchors: ``K``.
        every: refreshes between two replacements of the least confident; None for never.
        gram_below: smallest eigenvalue of the Gram matrix below which the most dependent is replaced; None for never.
        device: where the directions live.

    >>> replacement = Replacement(2, every=1)
    >>> replacement.choose(torch.tensor([0.9, 0.1]), torch.eye(2), torch.tensor([True, True]))
    tensor([False,  True])
    """

    def __init__(
        self,
        num_anchors: int,
        *,
        every: int | None = None,
        gram_below: float | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.every, self.gram_below = every, gram_below
        self.count = torch.zeros(num_anchors, dtype=torch.int64, device=device)
        self._refreshes = 0

    @property
    def is_on(self) -> bool:
        return self.every is not None or self.gram_below is not None

    def choose(self, confidence: Tensor, directions: Tensor, drawn: Tensor) -> Tensor:
        """Return and count the anchors to replace, ``[K]``; may wait for the device.

        Args:
            confidence: ``c_v``, ``[K]``.
            directions: ``φ_v``, ``[P, K]``.
            drawn: which anchors the draw of this refresh has examples of, ``[K]``; the others stay.
        """
        self._refreshes += 1
        chosen = torch.zeros_like(drawn)
        if self.every is not None and self._refreshes % self.every == 0:
            among = confidence.masked_fill(~drawn, float("inf"))  # a class without hold-out examples has no confidence
            least = among.topk(max(1, len(confidence) // _SHARE), largest=False).indices
            chosen = chosen.scatter(0, least, True)
        if self.gram_below is not None:
            smallest, place = most_dependent(directions)
            is_it = torch.arange(len(chosen), device=chosen.device) == place
            chosen = chosen | (is_it & (smallest < self.gram_below))
        chosen = chosen & drawn
        self.count = self.count + chosen.to(self.count.dtype)
        return chosen

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count.clone(), "refreshes": self._refreshes}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.count, self._refreshes = state["count"].to(self.count), int(state["refreshes"])


def most_dependent(directions: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest eigenvalue of the Gram matrix of normalised directions ``[P, K]``, and whose share in it is largest.

    Directions that have not begun yet are passed over.

    >>> smallest, place = most_dependent(torch.tensor([[1.0, 0.0, 0.9], [0.0, 1.0, 0.1], [0.0, 0.0, 0.1]]))
    >>> round(float(smallest), 2), int(place)
    (0.01, 2)
    """
    sizes = torch.linalg.vector_norm(directions, dim=0)
    has_begun = sizes > 0
    unit = directions / sizes.clamp_min(torch.finfo(directions.dtype).tiny)
    gram = (unit.mT @ unit).to(factor_dtype(directions.device))
    gram = gram + torch.diag_embed((~has_begun).to(gram.dtype))  # on its own, and of size one
    values, vectors = torch.linalg.eigh(gram)
    return values[0], vectors[:, 0].abs().argmax()
