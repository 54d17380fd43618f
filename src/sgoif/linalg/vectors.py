"""Parameter vectors kept per layer, ``{layer: [..., G, O, I]}``, and the few operations that treat them as one vector.

A leading axis, where there is one, counts anchors: ``[K, G, O, I]`` is ``K`` vectors at once, and ``dot`` or ``norm``
then give ``[K]``. Solvers want columns ``[P, K]``: :func:`flatten` and :func:`unflatten` translate, always in the order
of ``shapes``, so that two dictionaries filled in different orders mean the same vector. Sums run in float32 or wider.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from sgoif.errors import LinalgError
from sgoif.records import BlockShape

__all__ = ["dot", "flatten", "norm", "unflatten"]


def dot(x: Mapping[str, Tensor], y: Mapping[str, Tensor]) -> Tensor:
    """Return ``Σ_layers ⟨x, y⟩``, one number per leading index.

    >>> dot({"fc": torch.ones(2, 1, 1, 3)}, {"fc": torch.ones(1, 1, 3)})
    tensor([3., 3.])
    """
    _require_same_layers(x, y)
    parts = [(_widen(x[name]) * _widen(y[name])).sum(dim=(-3, -2, -1)) for name in sorted(x)]
    return torch.stack(parts).sum(dim=0)


def norm(x: Mapping[str, Tensor]) -> Tensor:
    """Return the Euclidean norm over all layers, one number per leading index.

    >>> norm({"fc": torch.full((1, 1, 4), 2.0)})
    tensor(4.)
    """
    return dot(x, x).sqrt()


def flatten(vector: Mapping[str, Tensor], shapes: Mapping[str, BlockShape]) -> Tensor:
    """Return columns ``[P, K]``, layers stacked in the order of ``shapes``; without a leading axis ``K = 1``.

    The result is the transpose of a contiguous ``[K, P]``, the layout that Kronecker products read without a copy.

    Raises:
        LinalgError: layers are missing or unknown, or a block has another shape than ``shapes`` says.

    >>> flatten({"fc": torch.arange(4.0).reshape(2, 1, 1, 2)}, {"fc": BlockShape(1, 1, 2, False)})
    tensor([[0., 2.],
            [1., 3.]])
    """
    _require_same_layers(vector, shapes)
    rows = []
    for name, shape in shapes.items():
        block = vector[name]
        if block.ndim not in (3, 4) or tuple(block.shape[-3:]) != shape.dims:
            raise LinalgError(
                f"layer {name!r} needs blocks [K, *{shape.dims}] or {shape.dims}, got {tuple(block.shape)}; "
                f"reshape it to [groups, outputs, inputs] with the bias as last input."
            )
        rows.append(block.reshape(-1, shape.numel))
    counts = {row.shape[0] for row in rows}
    if len(counts) > 1:
        found = {name: row.shape[0] for name, row in zip(shapes, rows, strict=True)}
        raise LinalgError(
            f"all layers need the same number of vectors, got {found}; give every layer the same anchors."
        )
    return torch.cat(rows, dim=1).mT


def unflatten(columns: Tensor, shapes: Mapping[str, BlockShape]) -> dict[str, Tensor]:
    """Return ``{layer: [K, G, O, I]}`` from columns ``[P, K]``; the inverse of :func:`flatten`.

    Raises:
        LinalgError: the columns are not as long as ``shapes`` says.
    """
    size = sum(shape.numel for shape in shapes.values())
    if columns.ndim != 2 or columns.shape[0] != size:
        raise LinalgError(
            f"columns need shape [{size}, K] for these layers, got {tuple(columns.shape)}; transpose or add an axis."
        )
    parts = torch.split(columns.mT, [shape.numel for shape in shapes.values()], dim=1)
    return {
        name: part.reshape(columns.shape[1], *shape.dims)
        for (name, shape), part in zip(shapes.items(), parts, strict=True)
    }


def _require_same_layers(x: Mapping[str, object], y: Mapping[str, object]) -> None:
    if not x or x.keys() != y.keys():
        difference = sorted(set(x) ^ set(y)) or "no layers at all"
        raise LinalgError(
            f"both vectors need the same layers, they differ in {difference}; fill missing layers with zeros."
        )


def _widen(block: Tensor) -> Tensor:
    return block if block.dtype in (torch.float32, torch.float64) else block.float()
