"""What each refresh says of the anchors: one row per anchor, for the run's ``anchors`` table.

The error terms of a score ``φ_v · g_i`` are there, relative to ``|g_v| |g_i|`` or to the score itself: ``residual`` is
``E_solver / |g_i|`` over ``|g_v|``, ``1 - confidence`` is ``E_conf`` over ``|φ_v · g_i|``, and ``curvature_gap`` is
``E_curv``: how far the surrogate's product with ``φ_v`` is from that of the true Gauss-Newton matrix at the head, on
the examples that the refresh has just seen.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sgoif.gradients.contractions import dots, norm2, pooled, widen
from sgoif.influence import AnchorDraw, AnchorHealth, coverage, curvature_gap, gram_health
from sgoif.training.engine import Engine

__all__ = ["anchor_health", "anchor_rows"]

_LARGE = 1 << 22  # parameters of one direction; above it the health is not looked at, for its cost


def anchor_health(engine: Engine, draw: AnchorDraw) -> AnchorHealth | None:
    """Judge the directions by the examples that a refresh has just seen; None before there are any."""
    if not engine.tracker.is_ready or engine.tracker.columns.shape[0] > _LARGE:
        return None
    columns = engine.tracker.columns
    smallest, cosine = gram_health(columns)
    by_layer = engine.tracker.directions
    along = torch.stack([dots(rows, by_layer[name]) for name, rows in draw.rows.items()]).sum(0)
    sizes2 = torch.stack([norm2(rows) for rows in draw.rows.values()]).sum(0)
    seen = coverage(along, sizes2, columns)
    head = engine.head.name
    directions = by_layer[head]  # [K, 1, C, I]
    flat = directions.flatten(1).mT
    products = (engine.curvature.operator(head) @ flat).mT.view_as(directions)
    features = pooled(draw.rows[head])[0].to(directions.dtype)
    sizes = torch.linalg.vector_norm(engine.anchors.gradients[head].flatten(1), dim=1)
    gap = curvature_gap(features, widen(draw.outputs), directions[:, 0], products[:, 0], sizes)
    return AnchorHealth(smallest, cosine, seen, gap)


def anchor_rows(engine: Engine, health: AnchorHealth | None, step: int) -> dict[str, NDArray[Any]]:
    """Rows for the table, on the host; none before the first reading. Waits for the device."""
    reading = engine.reading
    if reading is None:
        return {}
    count = engine.anchors.num_anchors
    classes = np.arange(count) if count > 1 else np.full(1, -1)  # one anchor for all classes
    sizes = engine.holdout.counts.cpu().numpy()
    resets = engine.tracker.resets.cpu().numpy()
    columns: dict[str, NDArray[Any]] = {
        "refresh_step": np.full(count, step),
        "anchor": np.arange(count),
        "class": classes,
        "m": sizes if count > 1 else sizes.sum(keepdims=True),
        "g_norm": _host(engine.gradient_size, count),
        **{name: _host(getattr(reading, name), count) for name in ("residual", "noise", "tau", "confidence")},
        **{name: _host(getattr(reading, name), count) for name in ("beta", "gamma")},
        "resets": resets,
    }
    for name in ("curvature_gap", "coverage", "smallest_eigenvalue", "largest_cosine"):
        value = torch.tensor(float("nan")) if health is None else getattr(health, name)
        columns[name] = _host(value, count)
    return columns


def _host(value: Tensor, count: int) -> NDArray[np.float64]:
    return np.array(value.detach().double().cpu().expand(count).numpy())
