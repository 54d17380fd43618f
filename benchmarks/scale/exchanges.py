"""What a rank exchanges between two refreshes, for a head of any size: by the functions that do it, on zeros.

That asks for no model and no training, so that the head of a network with 10,000 classes can be asked about. A test
compares it with a whole training among declared ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, log2

import numpy as np
import torch

from benchmarks.scale.peers import Declared
from sgoif.curvature import Statistic
from sgoif.influence import AnchorDraw
from sgoif.records import GradientRows
from sgoif.training.exchange import gather_draw, gather_scores, reduce_curvature
from sgoif.training.schedule import Plan
from sgoif.training.visits import STANDARDISED

__all__ = ["Exchanges", "exchanges_of"]


@dataclass(frozen=True, slots=True)
class Exchanges:
    """Buffers of one rank and how often they are exchanged, per step on average."""

    ranks: int
    bytes: dict[str, float]  # by kind: small, summed, gathered
    count: dict[str, float]

    def seconds(self, bytes_per_s: float, message_s: float) -> float:
        """How long they take: few numbers are sent in every round, a sum twice in all, what is gathered once."""
        rounds = ceil(log2(self.ranks))
        sent = rounds * self.bytes["small"] + 2 * self.bytes["summed"] + self.bytes["gathered"]
        messages = rounds * (self.count["small"] + 2 * self.count["summed"] + self.count["gathered"])
        return sent / bytes_per_s + message_s * messages

    def ring_seconds(self, bytes_per_s: float, message_s: float) -> float:
        """How long they would take around a ring, as gloo's own exchanges go."""
        sent = 2 * self.bytes["small"] + 2 * self.bytes["summed"] + self.bytes["gathered"]
        hops = (self.ranks - 1) * (2 * self.count["small"] + 2 * self.count["summed"] + self.count["gathered"])
        return sent / bytes_per_s + message_s * hops


def exchanges_of(plan: Plan, inputs: int, outputs: int, batch: int, ranks: int) -> Exchanges:
    """Count one period of a plan.

    Args:
        plan: what is done when.
        inputs: of the head, bias column included.
        outputs: of the head.
        batch: examples of a rank's step.
        ranks: how many are declared.
    """
    observed = plan.refresh_every // plan.observe_every
    pieces = [
        (observed, _counted(ranks, lambda peers: peers.check_in_sync(0, True, False))),
        (observed, _counted(ranks, lambda peers: _observe(peers, inputs, outputs, batch))),
        (1, _counted(ranks, lambda peers: _refresh(peers, plan, inputs, outputs, batch))),
    ]
    moved, count = Counter[str](), Counter[str]()
    for times, peers in pieces:
        for kind in ("small", "summed", "gathered"):
            moved[kind] += times * peers.moved[kind]
            count[kind] += times * peers.exchanges[kind]
    period = plan.refresh_every
    return Exchanges(ranks, {k: v / period for k, v in moved.items()}, {k: v / period for k, v in count.items()})


def _counted(ranks: int, run: Callable[[Declared], None]) -> Declared:
    peers = Declared(ranks)
    run(peers)
    return peers


def _observe(peers: Declared, inputs: int, outputs: int, batch: int) -> None:
    factors = {"inputs": torch.zeros(1, inputs, inputs), "outputs": torch.zeros(1, outputs, outputs)}
    reduce_curvature(peers, {name: Statistic(value, batch, "mean", True) for name, value in factors.items()})


def _refresh(peers: Declared, plan: Plan, inputs: int, outputs: int, batch: int) -> None:
    peers.check_in_sync(0)
    positions = torch.arange(plan.examples_per_refresh)
    mine = len(peers.share_of(positions))
    rows = GradientRows("head", torch.zeros(mine, 1, inputs, 1), torch.zeros(mine, 1, outputs, 1))
    draw = AnchorDraw(positions[:mine], positions[:mine], torch.zeros(mine, outputs), {"head": rows})
    gather_draw(peers, draw, positions, positions)
    scores = {name: np.zeros(batch, np.float32) for name in STANDARDISED}
    gather_scores(peers, [(batch, scores)] * (plan.refresh_every // plan.stride), STANDARDISED)
