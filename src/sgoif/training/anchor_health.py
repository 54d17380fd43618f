"""How sound the anchors are at each refresh: one row per anchor, for the run's ``anchors`` table.

Whether they say different things, whether they see the examples, and against which H: three numbers, all from what a
refresh has at hand. With one anchor per class the directions are dependent by their nature (the gradients of all
classes nearly sum to zero), so a small eigenvalue is a fact to report and no alarm.

The error terms of a score ``φ_v · g_i`` are there, relative to ``|g_v| |g_i|`` or to the score itself: ``residual`` is
``E_solver / |g_i|`` over ``|g_v|``, ``1 - confidence`` is ``E_conf`` over ``|φ_v · g_i|``, and ``curvature_gap`` is
``E_curv``: how far the surrogate's product with ``φ_v`` is from that of the true Gauss-Newton matrix at the head, on
the examples that the refresh has just seen. ``1 - coverage`` is ``E_proj``, and ``drift`` is ``E_lin``: how far ``g_v``
moved since the last refresh beyond its sampling noise, over ``|g_v|``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sgoif.gradients.contractions import dots, norm2, pool_positions, widen
from sgoif.influence import AnchorDraw
from sgoif.linalg import flatten
from sgoif.linalg.factor import factor_dtype
from sgoif.training.engine import Engine
from sgoif.training.replacement import most_dependent

__all__ = ["anchor_rows", "coverage", "curvature_gap", "gram_health"]

_LARGE = 1 << 22  # parameters of one direction; above it the health is not looked at, for its cost
_READING = ("residual", "noise", "tau", "confidence", "beta", "gamma")
_HEALTH = ("curvature_gap", "coverage", "smallest_eigenvalue", "largest_cosine")


def anchor_rows(engine: Engine, draw: AnchorDraw, step: int) -> dict[str, NDArray[Any]]:
    """Rows for the table, from the examples that a refresh has just seen; none before the first reading.

    Waits for the device.
    """
    reading = engine.reading
    if reading is None:
        return {}
    count = engine.anchors.num_anchors
    classes = np.arange(count) if count > 1 else np.full(1, -1)  # one anchor for all classes
    sizes = engine.holdout.counts.numpy()
    measured = {
        "g_norm": engine.gradient_size,
        **{name: getattr(reading, name) for name in _READING},
        "drift": engine.anchors.drift,
        "resets": engine.tracker.resets,
        "refinements": engine.refinement.count,
        "replacements": engine.replacement.count,
        **_measure_health(engine, draw),
    }
    joined = torch.stack([value.detach().to(engine.dtype).expand(count) for value in measured.values()])
    columns = dict(zip(measured, joined.cpu().double().numpy()))  # in one transfer
    return {
        "refresh_step": np.full(count, step),
        "anchor": np.arange(count),
        "class": classes,
        "m": sizes if count > 1 else sizes.sum(keepdims=True),
        **columns,
        **{name: columns[name].astype(np.int64) for name in ("resets", "refinements", "replacements")},
    }


def _measure_health(engine: Engine, draw: AnchorDraw) -> dict[str, Tensor]:
    """Judge the directions by the examples of a draw; NaN before there are any, and where they are too large.

    A cosine above 0.98 between two anchors says that they are one anchor twice.
    """
    shapes = {name: space.shape for name, space in engine.spaces.items()}
    if not engine.tracker.is_ready or sum(shape.numel for shape in shapes.values()) > _LARGE:
        return dict.fromkeys(_HEALTH, engine.gradient_size.new_full((), float("nan")))
    by_layer = engine.directions()
    columns = flatten(by_layer, shapes)
    smallest, cosine = gram_health(columns)
    along = torch.stack([dots(rows, by_layer[name]) for name, rows in draw.rows.items()]).sum(0)
    sizes2 = torch.stack([norm2(rows) for rows in draw.rows.values()]).sum(0)
    seen = coverage(along, sizes2, columns)
    head = engine.head.name
    directions = by_layer[head]  # [K, 1, C, I]
    flat = directions.flatten(1).mT
    products = (engine.curvature.operator(head) @ flat).mT.view_as(directions)
    features = pool_positions(draw.rows[head])[0].to(directions.dtype)
    sizes = torch.linalg.vector_norm(engine.anchors.gradients[head].flatten(1), dim=1)
    gap = curvature_gap(features, widen(draw.outputs), directions[:, 0], products[:, 0], sizes)
    return dict(zip(_HEALTH, (gap, seen, smallest, cosine)))


def gram_health(directions: Tensor) -> tuple[Tensor, Tensor]:
    """Return the smallest eigenvalue and the largest cosine between two of the normalised directions, ``[P, K]``.

    >>> smallest, cosine = gram_health(torch.tensor([[1.0, 1.0], [0.0, 1.0]]))
    >>> round(float(cosine), 3), round(float(smallest), 3)
    (0.707, 0.293)
    """
    smallest, _ = most_dependent(directions)
    sizes = torch.linalg.vector_norm(directions, dim=0).clamp_min(torch.finfo(directions.dtype).tiny)
    unit = directions / sizes
    gram = unit.mT @ unit
    return smallest.to(gram.dtype), (gram - torch.diag_embed(gram.diagonal())).max()


def coverage(dots: Tensor, sizes2: Tensor, directions: Tensor) -> Tensor:
    """Return the mean share of ``|g_z|²`` that lies in the span of the directions.

    ``1 - |g_z - P g_z|² / |g_z|²`` with ``|P g|² = dᵀ (ΦᵀΦ)⁻¹ d`` for ``d = Φᵀ g``, so that no gradient is ever made.

    Args:
        dots: ``φ_v · g_z``, ``[B, K]``.
        sizes2: ``|g_z|²``, ``[B]``.
        directions: ``Φ``, ``[P, K]``.

    >>> coverage(torch.tensor([[2.0]]), torch.tensor([8.0]), torch.tensor([[1.0], [0.0]]))
    tensor(0.5000)
    """
    wide = factor_dtype(directions.device)
    gram, dots = (directions.mT @ directions).to(wide), dots.to(wide)
    inverse = torch.linalg.pinv(gram, hermitian=True, rtol=gram.new_full((), 1e-6))
    seen = torch.einsum("bk,kl,bl->b", dots, inverse, dots)
    known = sizes2 > 0
    share = torch.where(known, seen / torch.where(known, sizes2, 1.0), torch.zeros_like(seen)).clamp(0, 1)
    return (share.sum() / known.sum().clamp_min(1)).to(directions.dtype)


def curvature_gap(features: Tensor, outputs: Tensor, directions: Tensor, products: Tensor, sizes: Tensor) -> Tensor:
    """Return ``|(H_true - H_t) φ_v| / |g_v|`` at a linear head, with the Gauss-Newton matrix of some examples as truth.

    For cross-entropy ``H_true φ = mean_i (diag(p_i) - p_i p_iᵀ) Φ a_i a_iᵀ``: exact at the head, from features and
    outputs alone.

    Args:
        features: ``a``, ``[R, I]``, with the bias column.
        outputs: logits, ``[R, C]``.
        directions: ``Φ_v``, ``[K, C, I]``.
        products: ``H_t Φ_v``, the surrogate's, ``[K, C, I]``.
        sizes: ``|g_v|``, ``[K]``.
    """
    p = outputs.softmax(1).to(features.dtype)
    pushed = torch.einsum("kci,ri->krc", directions, features)
    curved = p * (pushed - (p * pushed).sum(2, keepdim=True))
    true = torch.einsum("krc,ri->kci", curved, features) / len(features)
    gap: Tensor = torch.linalg.vector_norm((true - products).flatten(1), dim=1)
    return gap / sizes.clamp_min(torch.finfo(gap.dtype).tiny)
