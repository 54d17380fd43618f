"""Anchors of single classes when there are many: each class's mean gradient at the head, in a few of its rows.

One direction per class would hold ``K·C·I`` numbers. But a hold-out example's gradient at the logits, ``p - e_y``, is
large at its own class and at the few that it is taken for, and nearly the same at all others. So a class's mean
gradient ``g_v = Σ_j s_j b_j a_jᵀ`` is kept in its seven largest rows, and one more that stands for each of the others.
With a Kronecker curvature ``G ⊗ A`` whose ``G`` is diagonal,

    ⟨H⁻¹ g_v, g_i⟩ = Σ_r β_r u_r · A⁻¹a_i + (Σ_c β_c - Σ_r β_r) u_rest · A⁻¹a_i,   β = G⁻¹b_i,

``B·N·8·I`` multiplications for ``N`` classes of each example, whatever the number of classes. Up to 256 classes one
product with all of them is faster than gathering.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sgoif.linalg import KroneckerInverse

__all__ = ["GATHER_ABOVE", "ROWS", "ClassAnchors"]

ROWS = 7  # of a class's gradient, beside the one for all others: within 5% of all rows at 100 and at 1,000 classes
GATHER_ABOVE = 256  # classes
_CHUNK_BYTES = 2**20  # gathered at a time
_MOST_EXAMPLES = 16  # of a class: older ones say more about an older model than about the class


class ClassAnchors:
    """Mean gradients of all classes, from the latest look at each of their hold-out examples.

    Args:
        labels: of the hold-out examples, ``[M]``.
        num_classes: K, which is also the number of outputs.
        inputs: I, bias column included.
        largest: examples of the largest class; counted if left out, which waits for the device.
        dtype: of the gradients.
    """

    def __init__(
        self,
        labels: Tensor,
        num_classes: int,
        inputs: int,
        *,
        largest: int | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        device = labels.device
        like: dict[str, Any] = {"device": device, "dtype": dtype}
        self._labels, self.num_classes, self._rows = labels, num_classes, min(ROWS, num_classes - 1)
        largest = int(torch.bincount(labels, minlength=1).max()) if largest is None else largest
        each = min(_MOST_EXAMPLES, max(1, largest))
        self._slot = _slots(labels, num_classes, each)  # where each example is kept, [M]
        self._examples = torch.full((num_classes, each), -1, device=device)  # who is kept there, -1 for nobody
        self._columns = torch.zeros(len(labels), self._rows, dtype=torch.long, device=device)
        self._values = torch.zeros(len(labels), self._rows, **like)  # of each example's gradient at those outputs
        self._total = torch.zeros(len(labels), **like)  # over all outputs
        self.outputs = torch.zeros(num_classes, self._rows, dtype=torch.long, device=device)  # c_r, [K, R]
        self.gradients = torch.zeros(num_classes, self._rows + 1, inputs, **like)  # u, [K, R + 1, I]
        self.known = torch.zeros(num_classes, device=device, dtype=torch.bool)  # classes with a gradient
        self._inverse: tuple[Tensor, Tensor] | None = None  # A⁻¹, the diagonal of G⁻¹

    def update(self, positions: Tensor, output_grads: Tensor, features: Tensor, trust: Tensor) -> None:
        """Take in examples just seen, and renew the gradients of their classes.

        Args:
            positions: of the examples, ``[R]``.
            output_grads: their gradients at the outputs, ``[R, C]``.
            features: the head's inputs of all hold-out examples when last seen, ``[M, I]``.
            trust: in the label of each hold-out example, ``[M]``.
        """
        positions = positions.to(self._slot.device)
        columns = output_grads.abs().topk(self._rows, 1).indices
        self._columns[positions] = columns
        self._values[positions] = output_grads.gather(1, columns).to(self._values.dtype)
        self._total[positions] = output_grads.sum(1).to(self._total.dtype)
        # of examples that share a slot one is picked, the same whatever the device does first
        latest = torch.full_like(self._examples, -1).flatten()
        latest.scatter_reduce_(0, self._slot[positions], positions, "amax")
        latest = latest.view_as(self._examples)
        self._examples = torch.where(latest >= 0, latest, self._examples)
        self._renew(self._labels[positions].unique(), features, trust)

    def _renew(self, classes: Tensor, features: Tensor, trust: Tensor) -> None:
        """Find the largest rows of some classes' gradients, and the gradients in them."""
        who = self._examples[classes]  # [n, m]
        is_there = who >= 0
        who = who.clamp_min(0)
        shares = torch.where(is_there, trust[who], torch.zeros_like(trust[who])).to(self._values.dtype)
        total = shares.sum(1, keepdim=True)
        shares = shares / total.clamp_min(1e-12)
        columns, values = self._columns[who], self._values[who]  # [n, m, R]
        chosen = _largest_columns(columns.flatten(1), (shares[:, :, None] * values).abs().flatten(1), self._rows)
        is_same = chosen[:, :, None, None] == columns[:, None]  # [n, R, m, R]
        at_chosen = (is_same * values[:, None]).sum(3)  # [n, R, m]
        others = self.num_classes - self._rows
        rest = (self._total[who] - values.sum(2)) / others  # of the outputs that an example does not name
        at_chosen = torch.where(is_same.any(3), at_chosen, rest[:, None])
        at_rest = (self._total[who][:, None] - at_chosen.sum(1, keepdim=True)) / others
        weights = torch.cat([at_chosen, at_rest], 1) * shares[:, None]  # [n, R + 1, m]
        self.gradients[classes] = torch.bmm(weights, features[who].to(weights.dtype))
        self.outputs[classes], self.known[classes] = chosen, total[:, 0] > 0

    def use_inverse(self, inverse: KroneckerInverse | None) -> None:
        """Take ``H⁻¹`` from here on, the diagonal of ``G⁻¹`` where it is whole; None means ``H = I``."""
        self._inverse = None if inverse is None else (inverse.right.inverse()[0], _diagonal(inverse.left.inverse()[0]))

    def solve_inputs(self, a: Tensor) -> Tensor:
        """``A⁻¹a``, ``[B, I]``; with ``H = I`` the inputs themselves."""
        return a if self._inverse is None else a @ self._inverse[0]

    @property
    def output_factors(self) -> Tensor | None:
        """The diagonal of ``G⁻¹``, ``[C]``; None with ``H = I``."""
        return None if self._inverse is None else self._inverse[1]

    def dots_of(self, a: Tensor, b: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
        """``⟨φ_v, g_i⟩`` for some classes of each example: with ``H`` as it is, and with ``H = I``.

        Args:
            a: the head's inputs, ``[B, I]``.
            b: gradients at its outputs, ``[B, C]``.
            classes: ``[B, N]``.

        Returns:
            Two tensors ``[B, N]``.
        """
        inputs = torch.stack([self.solve_inputs(a), a], 1)  # [B, 2, I]
        products = self._products_of_all if self.num_classes <= GATHER_ABOVE else self._products_of_gathered
        at_rows = products(inputs, classes)  # u · a, [B, 2, N, R + 1]
        at = self.outputs[classes]  # [B, N, R]
        plain = b.gather(1, at.flatten(1)).view(at.shape)
        factors = torch.ones_like(b[0]) if self._inverse is None else self._inverse[1]
        weights = torch.stack([plain * factors[at], plain], 1)  # [B, 2, N, R]
        totals = torch.stack([b @ factors, b.sum(1)], 1)  # [B, 2]
        rest = totals[:, :, None] - weights.sum(3)
        found_solved, found_plain = ((at_rows[..., :-1] * weights).sum(3) + at_rows[..., -1] * rest).unbind(1)
        return found_solved, found_plain

    def _products_of_all(self, inputs: Tensor, classes: Tensor) -> Tensor:
        """With every class, of which those asked for are picked."""
        products = inputs.flatten(0, 1) @ self.gradients.flatten(0, 1).mT  # [2·B, K·(R + 1)]
        products = products.view(len(inputs), 2, self.num_classes, -1)
        picked = classes[:, None, :, None].expand(-1, 2, -1, products.shape[3])
        return products.gather(2, picked)

    def _products_of_gathered(self, inputs: Tensor, classes: Tensor) -> Tensor:
        """With the classes asked for alone, so many examples at a time that what is gathered stays in the cache."""
        count, gradients = classes.shape[1], self.gradients.view(self.num_classes, -1)
        size = max(1, _CHUNK_BYTES // (count * self.gradients[0].nbytes))
        parts = []
        for some, wanted in zip(inputs.split(size), classes.split(size)):
            flat = gradients.index_select(0, wanted.flatten()).view(len(some), -1, inputs.shape[2])
            parts.append(torch.bmm(some, flat.mT).view(len(some), 2, count, -1))
        return torch.cat(parts)

    def state_dict(self) -> dict[str, Any]:
        """All that later scores depend on."""
        tensors = {name: getattr(self, name).clone() for name in _TENSORS}
        return {**tensors, "inverse": None if self._inverse is None else [part.clone() for part in self._inverse]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where another object stood."""
        inverse = state["inverse"]
        for name in _TENSORS:
            setattr(self, name, state[name].to(getattr(self, name)))
        self._inverse = None if inverse is None else (inverse[0].to(self._values), inverse[1].to(self._values))

    def tensors(self) -> dict[str, Tensor]:
        """All that scores depend on, by plain names: for a file."""
        kept = {"outputs": self.outputs, "gradients": self.gradients, "known": self.known}
        parts = () if self._inverse is None else zip(("inverse_a", "inverse_b"), self._inverse)
        return kept | dict(parts)

    @classmethod
    def from_tensors(cls, kept: Mapping[str, Tensor]) -> ClassAnchors:
        """Undo :meth:`tensors`."""
        gradients = kept["gradients"]
        none = kept["outputs"].new_zeros(0)  # all that depends on labels is in the file
        found = cls(none, len(gradients), gradients.shape[2], dtype=gradients.dtype)
        found.outputs, found.gradients, found.known = kept["outputs"], gradients, kept["known"]
        found._inverse = (kept["inverse_a"], kept["inverse_b"]) if "inverse_a" in kept else None
        return found


_TENSORS = ("outputs", "gradients", "known", "_examples", "_columns", "_values", "_total")


def _diagonal(factor: Tensor) -> Tensor:
    return factor if factor.dim() == 1 else factor.diagonal()


def _slots(labels: Tensor, num_classes: int, each: int) -> Tensor:
    """A place for every example among ``each`` of its class, ``[M]``; examples of a larger class share theirs."""
    counts = torch.zeros(num_classes, dtype=torch.long, device=labels.device).index_add(
        0, labels, torch.ones_like(labels)
    )
    order = labels.argsort(stable=True)
    rank = torch.empty_like(labels)
    rank[order] = torch.arange(len(labels), device=labels.device) - (counts.cumsum(0) - counts)[labels[order]]
    return labels * each + rank % each


def _largest_columns(columns: Tensor, sizes: Tensor, count: int) -> Tensor:
    """The columns with the largest sums of sizes, each once: ``[n, L]`` and ``[n, L]`` to ``[n, count]``.

    Sizes are not negative, and each row names at least so many different columns.
    """
    columns, order = columns.sort(1)
    is_last = torch.ones_like(columns, dtype=torch.bool)  # of those alike
    is_last[:, :-1] = columns[:, 1:] != columns[:, :-1]
    totals = sizes.gather(1, order).cumsum(1)
    before = torch.zeros_like(totals)  # the total where the last of the column before stands
    before[:, 1:] = totals.masked_fill(~is_last, 0.0).cummax(1).values[:, :-1]
    top = (totals - before).masked_fill(~is_last, -1.0).topk(count, 1)
    return columns.gather(1, top.indices)
