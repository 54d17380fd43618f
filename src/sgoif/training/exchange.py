"""What processes exchange, each at its one place in a step: curvature, draws of the hold-out, scores to measure by.

All of it is small beside the training's own gradients, and none of it grows with the training set. A process alone
gets back what it gave.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sgoif.curvature import Statistic
from sgoif.distributed import Peers
from sgoif.gradients.contractions import materialise
from sgoif.influence import AnchorDraw
from sgoif.records import GradientRows

__all__ = ["StepScores", "gather_draw", "gather_scores", "reduce_curvature"]

# Scores of a step that all processes together send for its median. The standard error of a median of so many is 2% of
# a standard deviation, and steps are averaged besides.
_MOST_SCORES = 4096


@dataclass(frozen=True, slots=True)
class StepScores:
    """What all processes together saw in one micro-step."""

    num_visits: int
    scores: Mapping[str, NDArray[np.floating[Any]]]  # by signal; a sample of them where they are many


def reduce_curvature(peers: Peers, statistics: Mapping[str, Statistic]) -> dict[str, Statistic]:
    """Combine the statistics of all processes into those of the union of their batches, whatever the sizes of these."""
    if peers.is_alone:
        return dict(statistics)
    found = _reduce_means(peers, {name: s for name, s in statistics.items() if s.reduction == "mean"})
    for name, statistic in statistics.items():
        if statistic.reduction == "concat":
            found[name] = _join_columns(peers, statistic)
    return found


def _reduce_means(peers: Peers, statistics: Mapping[str, Statistic]) -> dict[str, Statistic]:
    if not statistics:
        return {}
    kept = {name: _half(statistic) for name, statistic in statistics.items()}
    first = next(iter(kept.values()))
    counts = torch.stack([torch.as_tensor(s.count, dtype=first.dtype) for s in statistics.values()])
    weighed = [kept[name] * statistic.count for name, statistic in statistics.items()]
    totals, *sums = peers.all_reduce_sum([counts.to(first.device), *weighed])
    found = {}
    for (name, statistic), total, summed in zip(statistics.items(), totals, sums):
        mean = _whole(summed / total.clamp_min(1), statistic)
        found[name] = Statistic(mean, total, "mean", statistic.is_symmetric)
    return found


def _half(statistic: Statistic) -> Tensor:
    """The entries that need sending: of a symmetric matrix one triangle."""
    tensor = statistic.tensor
    return tensor[..., _triangle(tensor)] if statistic.is_symmetric else tensor


def _whole(sent: Tensor, statistic: Statistic) -> Tensor:
    if not statistic.is_symmetric:
        return sent
    lower = torch.zeros_like(statistic.tensor)
    lower[..., _triangle(lower)] = sent
    return lower + lower.tril(-1).mT


def _triangle(matrix: Tensor) -> Tensor:
    return torch.ones(matrix.shape[-2:], dtype=torch.bool, device=matrix.device).tril()


def _join_columns(peers: Peers, statistic: Statistic) -> Statistic:
    """Columns of all processes side by side. This grows with their number; empty columns add nothing."""
    own = statistic.tensor.shape[-1]
    most = int(peers.all_reduce_max([float(own)])[0])
    columns = torch.nn.functional.pad(statistic.tensor, (0, most - own)).mT
    (count,) = peers.all_reduce_sum([torch.as_tensor(statistic.count, dtype=columns.dtype)])
    return Statistic(peers.all_gather([columns.contiguous()])[0].mT, count, "concat")


def gather_draw(peers: Peers, draw: AnchorDraw, positions: Tensor, labels: Tensor) -> AnchorDraw:
    """Make one draw of the parts that each process has looked at: the same as if one had looked at all of it.

    The draw is that of ``peers.share_of(positions)``; positions and labels ``[R]`` are of the whole.
    """
    if peers.is_alone:
        return draw
    rows = {name: _compact(value) for name, value in draw.rows.items()}
    sides = [side for value in rows.values() for side in (value.inputs, value.output_grads)]
    outputs, *sides = _first_rows(peers, [draw.outputs, *sides], len(positions))
    whole = {name: GradientRows(name, *pair) for name, pair in zip(rows, zip(sides[::2], sides[1::2]))}
    return AnchorDraw(positions, labels, outputs, whole)


def _first_rows(peers: Peers, tensors: Sequence[Tensor], count: int) -> list[Tensor]:
    """The first rows of all processes together; one each where these are many, and then the later ones repeat them.

    Gathering would send every one of those. Sums of rows set among zeros send ``count``, about twice each.
    """
    if peers.size <= 2 * count:
        return [value[:count] for value in peers.all_gather(tensors)]
    placed = [value.new_zeros(count, *value.shape[1:]) for value in tensors]
    if peers.rank < count:
        for zeros, value in zip(placed, tensors):
            zeros[peers.rank] = value[0]
    return peers.all_reduce_sum(placed)


def _compact(rows: GradientRows) -> GradientRows:
    """The same gradients in fewer numbers: written out where there are more positions than inputs."""
    inputs = rows.inputs.shape[2]
    if rows.num_positions <= inputs:
        return rows
    written = materialise(rows)
    eye = torch.eye(inputs, dtype=written.dtype, device=written.device)
    return GradientRows(rows.layer, eye.expand(*written.shape[:2], inputs, inputs), written)


def gather_scores(
    peers: Peers, steps: Sequence[tuple[int, Mapping[str, NDArray[np.floating[Any]]]]], signals: Sequence[str]
) -> list[StepScores]:
    """Gather the scores of some micro-steps, as many in all processes, which then measure alike by them.

    Of each micro-step here: the number of visits, and the scores by signal.
    """
    if not steps:
        return []
    counts = [max(len(scores[name]) for name in signals) for _, scores in steps]
    room = max(int(peers.all_reduce_max([float(max(counts))])[0]), 1)
    room = min(room, max(1, _MOST_SCORES // peers.size))
    dtype = np.result_type(*(values.dtype for _, scores in steps for values in scores.values()))
    block = np.full((1, len(steps), 1 + len(signals) * room), np.nan, dtype)
    for row, (num_visits, scores) in zip(block[0], steps):
        row[0] = num_visits
        for index, name in enumerate(signals):
            sample = scores[name][:: -(-len(scores[name]) // room) or 1]
            row[1 + index * room :][: len(sample)] = sample
    (gathered,) = peers.all_gather([torch.from_numpy(block)])
    whole = gathered.numpy()  # [processes, steps, 1 + signals * room]
    found = []
    for index in range(len(steps)):
        parts = whole[:, index, 1:].reshape(len(whole), len(signals), room)
        scores = {name: parts[:, place].reshape(-1) for place, name in enumerate(signals)}
        found.append(StepScores(int(whole[:, index, 0].sum()), scores))
    return found
