"""The influence of training examples on queries, on a finished model: made in blocks of queries.

``I(i, v) = -g_vᵀ H⁻¹ g_i`` as in :mod:`sgoif.influence.scoring`: positive where example i harms query v, and removing i
changes the loss of v by ``-I/n`` to first order. One pass over the training examples per block of queries, and never
more than a block's directions in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sgoif.curvature import Statistic, create, reduce_statistics
from sgoif.errors import SgoifError
from sgoif.gradients import (
    Capture,
    ExactSpace,
    Layer,
    LayerCapture,
    Space,
    capture_calls,
    dot_directions,
    quiet_eval,
)
from sgoif.gradients.contractions import pool_positions
from sgoif.influence import GaussNewton, HoldOut
from sgoif.linalg import ConjugateGradient, Damped, flatten, unflatten

__all__ = ["GAUSS_NEWTON", "FeatureBatch", "Pairs", "iterate_features", "mean_direction"]

GAUSS_NEWTON = "gauss-newton"  # a curvature beside the registered ones: by products, not by an estimate
BLOCK_BYTES = 256 * 2**20  # of the directions of a block of queries

Vectors = dict[str, Tensor]  # {layer: [K, G, O, I]}
Solve = Callable[[Vectors], Vectors]  # g to H⁻¹g


@dataclass(frozen=True, slots=True)
class Pairs:
    """A finished model, its training examples, and the queries whose losses they may have moved."""

    model: nn.Module
    layers: Sequence[Layer]
    forward: Callable[[Any], Tensor]  # inputs to outputs
    losses: Callable[[Tensor, Tensor], Tensor]  # outputs and labels to per-example losses
    examples: HoldOut
    queries: HoldOut
    batch_size: int = 256

    @property
    def spaces(self) -> dict[str, Space]:
        return {layer.name: ExactSpace(layer) for layer in self.layers}

    @property
    def dtype(self) -> torch.dtype:
        return torch.float64 if self._parameter.dtype == torch.float64 else torch.float32

    @property
    def _parameter(self) -> Tensor:
        return next(iter(self.layers[0].parameters.values()))

    def influence(self, solve: Solve) -> NDArray[np.floating[Any]]:
        """``I(i, v)``, ``[n, V]``, in float32; in float64 where the model is."""
        like: Any = np.float64 if self.dtype == torch.float64 else np.float32
        found = np.empty((len(self.examples), len(self.queries)), like)
        for rows, columns, part in self._blocks(solve):
            found[int(rows[0]) : int(rows[-1]) + 1, int(columns[0]) : int(columns[-1]) + 1] = part.cpu().numpy()
        return found

    def strongest(self, solve: Solve, top: int, weigh: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """For each query the examples of the largest ``weigh(I)``, largest first: positions and ``I``, ``[V, top]``.

        Memory is that of the answer and a batch, however many examples there are.
        """
        top = min(top, len(self.examples))
        positions = torch.zeros(len(self.queries), top, dtype=torch.int64)
        found = torch.zeros(len(self.queries), top, dtype=self.dtype)
        held: tuple[Tensor, Tensor] | None = None
        for rows, columns, part in self._blocks(solve):
            values, places = part.mT, rows.to(part.device).expand(part.shape[1], -1)
            if held is not None:
                values, places = torch.cat([held[0], values], 1), torch.cat([held[1], places], 1)
            # NaN, of an example that cannot be scored, comes last
            order = weigh(values).nan_to_num(nan=-torch.inf).sort(dim=1, descending=True, stable=True).indices[:, :top]
            held = values.gather(1, order), places.gather(1, order)
            if int(rows[-1]) + 1 == len(self.examples):
                found[columns], positions[columns] = held[0].cpu().to(self.dtype), held[1].cpu()
                held = None
        return positions, found

    def query_losses(self) -> Tensor:
        """The loss of every query, ``[V]``, in eval mode."""
        found = []
        with quiet_eval(self.model), torch.no_grad():
            for rows in torch.arange(len(self.queries)).split(self.batch_size):
                losses = self.losses(self.forward(self.queries.inputs(rows)), self.queries.labels[rows])
                found.append(losses.cpu().double())
        return torch.cat(found)

    def _blocks(self, solve: Solve) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Positions of examples and queries, and ``I`` between them: all examples for one block of queries, then on."""
        width = 8 if self.dtype == torch.float64 else 4
        size, spaces = sum(layer.shape.numel for layer in self.layers) * width, self.spaces
        for columns in torch.arange(len(self.queries)).split(max(1, BLOCK_BYTES // size)):
            directions = solve(self.query_gradients(columns))
            for rows in self._ranges():
                calls = self.calls(self.examples, rows)
                with torch.no_grad():
                    yield rows, columns, -dot_directions(calls, spaces, directions)

    def solver(self, curvature: str, settings: Mapping[str, Any], num_observed: int) -> Solve:
        """``H⁻¹`` by a curvature's name: one of the registered estimates, or :data:`GAUSS_NEWTON` by CG.

        Args:
            curvature: the name.
            settings: its keyword arguments; for Gauss-Newton ``damping``, ``products`` (the steps of CG at most) and
                ``tolerance`` (the relative residual at which it stops).
            num_observed: training examples that an estimate is made from, evenly spaced over the set.
        """
        if curvature == GAUSS_NEWTON:
            return self._by_products(**settings)
        shapes, spaces = {layer.name: layer.shape for layer in self.layers}, self.spaces
        estimate = create(curvature, shapes, device=self._parameter.device, dtype=self.dtype, **settings)
        count = min(num_observed, len(self.examples))
        sample = torch.linspace(0, len(self.examples) - 1, count, dtype=torch.float64).round().long()
        for _ in range(2 if settings.get("eigenvalue_corrected") else 1):  # the basis first, then eigenvalues in it
            total: dict[str, Statistic] = {}
            for rows in sample.split(self.batch_size):
                calls = self.calls(self.examples, rows)
                with torch.no_grad():
                    seen = estimate.measure([spaces[call.layer].rows(call) for call in calls])
                    total = reduce_statistics([total, seen]) if total else seen
            estimate.absorb(total)
        return estimate.solve

    def _by_products(self, damping: float = 1e-2, products: int = 30, tolerance: float = 1e-3) -> Solve:
        if self._parameter.dtype != self.dtype:
            raise SgoifError(f"{GAUSS_NEWTON} needs parameters in float32 or float64, got {self._parameter.dtype}.")

        def batches() -> Iterator[tuple[Any, Tensor]]:
            for rows in self._ranges():
                yield self.examples.inputs(rows), self.examples.labels[rows]

        matrix = GaussNewton(self.model, self.layers, self.forward, self.losses, batches, len(self.examples))
        shapes = {layer.name: layer.shape for layer in self.layers}
        solver = ConjugateGradient(max_iterations=products, tolerance=tolerance, check_every=5)
        prepared = solver.prepare(Damped(matrix, damping))
        return lambda rhs: unflatten(solver.solve(prepared, flatten(rhs, shapes)).value, shapes)

    def query_gradients(self, positions: Tensor | None = None) -> Vectors:
        """``g_v`` of some queries, or all, written out; a layer called twice adds both calls."""
        positions = torch.arange(len(self.queries)) if positions is None else positions
        parts: dict[str, list[Tensor]] = {layer.name: [] for layer in self.layers}
        spaces = self.spaces
        for rows in positions.split(self.batch_size):
            found: Vectors = {}
            with torch.no_grad():
                for call in self.calls(self.queries, rows):
                    block = spaces[call.layer].examples(call).to(self.dtype)
                    found[call.layer] = found[call.layer] + block if call.layer in found else block
            for name, block in found.items():
                parts[name].append(block)
        return {name: torch.cat(blocks) for name, blocks in parts.items()}

    def _ranges(self) -> Iterator[Tensor]:
        """Positions of one batch of training examples after another."""
        for start in range(0, len(self.examples), self.batch_size):
            yield torch.arange(start, min(start + self.batch_size, len(self.examples)))

    def calls(self, source: HoldOut, rows: Tensor) -> list[LayerCapture]:
        """What the layers saw of some examples or queries, and the gradients at their outputs."""
        inputs, labels = source.inputs(rows), source.labels[rows]
        return capture_calls(self.model, self.forward, self.losses, Capture(self.layers), inputs, labels)


class FeatureBatch(NamedTuple):
    """A batch as the head sees it."""

    features: NDArray[np.float32]  # [B, D], without the ones that a bias is multiplied with
    influence: NDArray[np.float32]  # [B], I(i, v) on the mean loss of the queries; positive harms them


def mean_direction(pairs: Pairs, num_observed: int) -> Vectors:
    """``H⁻¹ g`` of the mean gradient of the queries, by K-FAC."""
    solve = pairs.solver("kfac", {}, num_observed)
    mean = {name: block.mean(0, keepdim=True) for name, block in pairs.query_gradients().items()}
    return solve(mean)


def iterate_features(
    pairs: Pairs, source: HoldOut, positions: Tensor, direction: Vectors | None = None
) -> Iterator[FeatureBatch]:
    """Extract features of examples batch by batch, and their influence; without a direction it is 0.

    Args:
        pairs: a model, of which the head is the only layer.
        source: the examples or the queries of ``pairs``.
        positions: which of them.
        direction: from :func:`mean_direction`.
    """
    (head,) = pairs.layers
    space, size = ExactSpace(head), head.shape.inputs - head.shape.has_bias
    for rows in positions.split(pairs.batch_size):
        calls = pairs.calls(source, rows)
        with torch.no_grad():
            features = pool_positions(space.rows(calls[0]))[0][:, :size].float().cpu().numpy()
            zero = torch.zeros(len(rows), 1)
            found = zero if direction is None else -dot_directions(calls, pairs.spaces, direction)
        yield FeatureBatch(features, found[:, 0].float().cpu().numpy())
