"""Per-class scores when there are many classes: never a direction per class, always pairs of examples.

With Kronecker curvature at the head, ``I(i, v) = -(1/m) Σ_{j in v} (b_iᵀ G⁻¹ b_j)(a_jᵀ A⁻¹ a_i)``: inner products
between the batch and cached hold-out rows, then a sum per class. K directions would cost ``B·K·C·I`` and hold ``K·C·I``
numbers.

Only a few classes per example are asked for (the given one and the most probable). Up to 256 classes all pairs are
computed, two matrix products of ``B·M·(I + C)``; beyond, the rows of the classes asked for are gathered, and the cost
``B·N·m·(I + C)`` no longer grows with the hold-out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sgoif.gradients.contractions import CHUNK_BYTES, pool_positions
from sgoif.linalg import Kronecker, KroneckerInverse, factorise
from sgoif.records import GradientRows

__all__ = ["DualAnchors"]

# A gathered number costs about 40 times a multiplied one, and N = 6 classes of K are gathered: even at K = 240.
_GATHER_FROM = 256  # classes
# With gathering, at most so many rows of a class are held, the latest: at 256 examples a refresh 16 examples of one of
# 256 classes took 16 refreshes to come, so that older ones say more about an older model than about the class.
_MOST_ROWS = 16


class DualAnchors:
    """The most recent head rows of the hold-out examples, and the inverse factors of the last refresh.

    Up to 256 classes every hold-out example has a row. Above, **at most 16 rows of a class are held**: each example has
    a fixed place that it may share with others of its class, and the latest one seen stands for them.

    Args:
        size: hold-out examples.
        outputs: C.
        inputs: I, bias column included.
        labels: their classes, ``[M]``.
        num_classes: K.
        dtype: of the cached rows.
    """

    def __init__(
        self,
        size: int,
        outputs: int,
        inputs: int,
        labels: Tensor,
        num_classes: int,
        *,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        like: dict[str, Any] = {"device": labels.device, "dtype": dtype}
        self.num_classes, self.gathers = num_classes, num_classes >= _GATHER_FROM
        self._place, self._class_of_row = (
            _places(labels, num_classes) if self.gathers else (torch.arange(size, device=labels.device), labels)
        )
        rows = len(self._class_of_row)
        self.a = torch.zeros(rows, inputs, **like)
        self.b = torch.zeros(rows, outputs, **like)
        self._example = torch.full((rows,), -1, device=labels.device)  # whose row it is, -1 for nobody's
        self._weights = torch.zeros(rows, **like)
        self.known = torch.zeros(num_classes, device=labels.device, dtype=torch.bool)  # classes with a row
        self._inverse: tuple[Tensor, Tensor] | None = None  # A⁻¹, G⁻¹

    def update(self, positions: Tensor, rows: GradientRows, trust: Tensor) -> None:
        """Replace the rows of the examples just seen."""
        a, b = pool_positions(rows)
        positions = positions.to(self._place.device)
        places = self._place[positions]
        # where two examples of one draw share a place, one of them is picked, the same for all that is written
        winner = torch.zeros_like(self._example)
        winner[places] = torch.arange(len(places), device=places.device)
        winner = winner[places]
        self.a[places], self.b[places] = a[winner].to(self.a.dtype), b[winner].to(self.b.dtype)
        self._example[places] = positions[winner]
        weights = torch.where(self._example >= 0, trust[self._example], torch.zeros_like(self._weights))
        totals = weights.new_zeros(self.num_classes)
        totals.index_add_(0, self._class_of_row, weights)
        self._weights = weights / totals.clamp_min(1e-12)[self._class_of_row]
        self.known = totals > 0

    def factorise(self, operator: Kronecker | None) -> None:
        """Take ``H`` from here on; None means ``H = I``. Once per refresh."""
        inverse = None if operator is None else factorise(operator)
        self.use_inverse(inverse if isinstance(inverse, KroneckerInverse) else None)

    def use_inverse(self, inverse: KroneckerInverse | None) -> None:
        """As :meth:`factorise`, from factors that exist already."""
        self._inverse = None if inverse is None else (inverse.right.inverse()[0], inverse.left.inverse()[0])

    def dots(self, rows: GradientRows, *, identity: bool = False) -> Tensor:
        """``⟨φ_v, g_i⟩`` for every class, ``[B, K]``, by all pairs."""
        a, b = pool_positions(rows)
        if not identity:
            a, b = self._solved(a, b)
        return self._dots_of_all(a, b)

    def dots_of(self, a: Tensor, b: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
        """``⟨φ_v, g_i⟩`` for some classes of each example: with ``H`` as it is, and with ``H = I``.

        Args:
            a: the head's inputs, ``[B, I]``.
            b: gradients at its outputs, ``[B, C]``.
            classes: ``[B, N]``.

        Returns:
            Two tensors ``[B, N]``.
        """
        if not self.gathers:
            solved, plain = self._dots_of_all(*self._solved(a, b)), self._dots_of_all(a, b)
            return solved.gather(1, classes), plain.gather(1, classes)
        a_sides, b_sides = (torch.stack(pair, 1) for pair in zip(self._solved(a, b), (a, b)))  # [B, 2, I], [B, 2, C]
        per_example = classes.shape[1] * (self.a.shape[1] + self.b.shape[1]) * self._rows_per_class * a.element_size()
        size = max(1, CHUNK_BYTES // per_example)
        parts = [
            self._dots_of_gathered(*part) for part in zip(a_sides.split(size), b_sides.split(size), classes.split(size))
        ]
        solved, plain = (parts[0] if len(parts) == 1 else torch.cat(parts)).unbind(1)
        return solved, plain

    @property
    def _rows_per_class(self) -> int:
        return len(self._class_of_row) // self.num_classes

    def _solved(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """``A⁻¹a`` and ``G⁻¹b``: applied to the batch, which is smaller than what is cached."""
        return (a, b) if self._inverse is None else (a @ self._inverse[0], b @ self._inverse[1])

    def _dots_of_all(self, a: Tensor, b: Tensor) -> Tensor:
        pairs = (self.a @ a.mT) * (self.b @ b.mT) * self._weights[:, None]  # [M, B]: the sum runs over whole rows
        return a.new_zeros(self.num_classes, len(a)).index_add_(0, self._class_of_row, pairs).mT

    def _dots_of_gathered(self, a: Tensor, b: Tensor, classes: Tensor) -> Tensor:
        """``a [B, 2, I]``, ``b [B, 2, C]``, ``classes [B, N]`` to ``[B, 2, N]``."""
        batch, flat = len(a), classes.flatten()

        def rows_of(values: Tensor) -> Tensor:  # [K·m, F] -> [B, F, N·m], one whole class at a time
            picked = values.view(self.num_classes, -1).index_select(0, flat)
            return picked.view(batch, classes.shape[1] * self._rows_per_class, -1).mT

        pairs = torch.bmm(a, rows_of(self.a)) * torch.bmm(b, rows_of(self.b)) * rows_of(self._weights)
        return pairs.view(batch, 2, classes.shape[1], -1).sum(3)

    def state_dict(self) -> dict[str, Any]:
        """All cached rows and the factors."""
        tensors = {name: getattr(self, name).clone() for name in _TENSORS}
        return {**tensors, "inverse": None if self._inverse is None else [part.clone() for part in self._inverse]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where another object stood."""
        for name in _TENSORS:
            setattr(self, name, state[name].to(getattr(self, name)))
        inverse = state["inverse"]
        self._inverse = None if inverse is None else (inverse[0].to(self.a), inverse[1].to(self.a))

    def tensors(self) -> dict[str, Tensor]:
        """All that scores depend on, by plain names: for a file."""
        kept = {"a": self.a, "b": self.b, "weights": self._weights, "class_of_row": self._class_of_row}
        kept |= {"known": self.known, "place": self._place, "example": self._example}
        parts = () if self._inverse is None else zip(("inverse_a", "inverse_b"), self._inverse)
        return kept | dict(parts)

    @classmethod
    def from_tensors(cls, kept: Mapping[str, Tensor]) -> DualAnchors:
        """Undo :meth:`tensors`."""
        known, a, b = kept["known"], kept["a"], kept["b"]
        none = known.new_zeros(0, dtype=torch.long)  # all that depends on labels is in the file
        found = cls(0, b.shape[1], a.shape[1], none, len(known), dtype=a.dtype)
        found.a, found.b, found.known = a, b, known
        found._weights, found._class_of_row = kept["weights"], kept["class_of_row"]
        found._place, found._example = kept["place"], kept["example"]
        found._inverse = (kept["inverse_a"], kept["inverse_b"]) if "inverse_a" in kept else None
        return found


_TENSORS = ("a", "b", "known", "_example", "_weights")


def _places(labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """The row of every example, as many rows for each class: ``[M]``; and the class of every row, ``[K·m]``."""
    counts = torch.bincount(labels, minlength=num_classes)
    each = min(_MOST_ROWS, max(1, int(counts.max())))
    order = labels.argsort(stable=True)
    rank = torch.empty_like(labels)
    rank[order] = torch.arange(len(labels), device=labels.device) - (counts.cumsum(0) - counts)[labels[order]]
    return labels * each + rank % each, torch.arange(num_classes, device=labels.device).repeat_interleave(each)
