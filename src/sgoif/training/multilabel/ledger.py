"""Canaries of tags: hold-out pairs scored under both bits at every refresh, fold against fold, for free.

Up to 64 tags every tag of a hold-out example is tried; above, those that it has, the absent ones that the model most
believes in when it is first looked at, and some drawn at random, which stand for the others. What a training pair goes
through, a canary goes through: under the bit 0 it counts only where it would have been noticed among the absent tags.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sgoif.evidence import Canaries, fold_of
from sgoif.evidence.sides import side_canaries
from sgoif.influence.multilabel import MOST_PRESENT, MultilabelJudge, group_gradients
from sgoif.records import TAG_SIGNALS
from sgoif.tasks.multilabel import bits_of
from sgoif.training.multilabel.engine import MultilabelDraw, MultilabelEngine
from sgoif.types import Floats

__all__ = ["MultilabelLedger"]

_MOST_TRIED = 64  # tags of a hold-out example
_MOST_BELIEVED = 16  # of its absent ones that are not drawn at random


class MultilabelLedger:
    """Sums of every hold-out pair's signals under both bits, ``[m, T, 2, S]``, weighted as training visits are.

    Args:
        engine: whose hold-out it is.
        trusted: whether the hold-out's tags are verified.
        seed: of the tags that are tried, where there are too many.
    """

    def __init__(self, engine: MultilabelEngine, *, trusted: bool = False, seed: int = 0) -> None:
        count, tags = len(engine.holdout), engine.holdout.num_tags
        self.trusted, self.num_tags, self._seed = trusted, tags, seed
        self.targets = engine.holdout.targets.cpu().numpy()
        self.fold = fold_of(np.asarray(engine.holdout.ids))
        width = min(tags, _MOST_TRIED)
        self._tried = np.full((count, width), -1, np.int64)  # known when an example is first looked at
        self._stands_for = np.ones((count, width))  # pairs
        self._total = np.zeros((count, width, 2, len(TAG_SIGNALS)))
        self._mass = np.zeros((count, width, 2))
        self._judges: dict[int, tuple[MultilabelJudge, Tensor]] = {}  # of the last look, by the fold that they judge

    def add(self, draw: MultilabelDraw, engine: MultilabelEngine, trust: float) -> None:
        """Score what a refresh has just seen, against directions and a head made from the other fold."""
        rows = draw.positions.cpu().numpy()
        fold = torch.from_numpy(self.fold).to(draw.features.device)
        drawn = fold[draw.positions]
        self._choose(rows, draw.logits)
        targets = engine.holdout.targets[draw.positions]
        for side in (0, 1):
            scored, makers = drawn == side, drawn != side
            if not scored.any() or not makers.any():
                continue
            gradients, counts = group_gradients(draw.features[makers], draw.logits[makers], targets[makers])
            judge = MultilabelJudge(engine.solve(gradients), gradients, engine.refit(without=fold == side))
            mine = rows[scored.cpu().numpy()]
            part = draw.features[scored], draw.logits[scored], targets[scored]
            new = (judge, (counts > 0).all(0))
            # Training pairs are judged by directions that are up to a refresh old, so half of a look is by the last
            # ones. That did not explain why the influence of canaries is larger (development set: still twice).
            for by, known in (new, self._judges.get(side, new)):
                values, counted = self._score_both_bits(by, *part, mine, known, engine.most_absent)
                self._total[mine] += trust / 2 * np.where(counted[..., None], values, 0.0)
                self._mass[mine] += trust / 2 * counted
            self._judges[side] = new

    def _score_both_bits(
        self,
        judge: MultilabelJudge,
        features: Tensor,
        logits: Tensor,
        targets: Tensor,
        rows: NDArray[np.int64],
        known: Tensor,
        most_absent: int,
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Signals ``[r, T, 2, S]`` and which of them count ``[r, T, 2]``."""
        tags = torch.from_numpy(self._tried[rows]).to(logits.device)
        products = judge.products(features)
        chosen = products.gather(2, tags[:, None].expand(-1, products.shape[1], -1))
        at = logits.gather(1, tags)
        no, yes = torch.zeros_like(tags, dtype=torch.bool), torch.ones_like(tags, dtype=torch.bool)
        values = torch.stack([MultilabelJudge.signals(at, chosen, bit) for bit in (no, yes)], 2)
        present, absent = bits_of(targets)
        is_known = (present | absent).gather(1, tags) & known[tags]
        would_be_noticed = is_known
        if most_absent < logits.shape[1]:
            least = logits.masked_fill(~absent, float("-inf")).topk(most_absent, 1).values[:, -1:]
            would_be_noticed = is_known & (at >= least)
        counted = torch.stack([would_be_noticed, is_known], 2) & torch.isfinite(values).all(3)
        return values.cpu().double().numpy(), counted.cpu().numpy()

    def _choose(self, rows: NDArray[np.int64], logits: Tensor) -> None:
        """Fix the tags that examples are tried under when they are first seen."""
        new = self._tried[rows, 0] < 0
        width = self._tried.shape[1]
        if width == self.num_tags:
            self._tried[rows[new]] = np.arange(width)
            return
        for row, believed in zip(rows[new], logits.cpu().double().numpy()[new], strict=True):
            self._tried[row], self._stands_for[row] = _tags_to_try(
                self.targets[row], believed, width, np.random.default_rng((self._seed, row))
            )

    def canaries(self, bit: int, belief: Floats | None = None) -> Canaries:  # belief [m, C], full by default
        """The canaries of a side: pairs tried as absent (0) or as present (1), each hold-out bit believed so far."""
        row, place = np.nonzero(self._mass[:, :, bit] > 0)
        tag = self._tried[row, place]
        own = (self.targets[row, tag] > 0.5).astype(np.int64)
        signals = self._total[row, place, bit] / self._mass[row, place, bit, None]
        believed = np.ones(len(row)) if belief is None else belief[row, tag]
        found = side_canaries(row, self.fold[row], tag, own != bit, believed, signals, self.num_tags)
        return replace(found, weight=found.weight * self._stands_for[row, place])

    def share_noticed(self) -> float:
        """Of the tags that examples have, the share that would be noticed if it were missing, by weight."""
        row, place = np.nonzero(self._mass[:, :, 1] > 0)
        has = self.targets[row, self._tried[row, place]] > 0.5
        mass = self._mass[row[has], place[has]].sum(0)
        return float(mass[0] / mass[1]) if len(mass) and mass[1] > 0 else float("nan")

    def state_dict(self) -> dict[str, Any]:
        """What was added up so far."""
        judges = {side: (by.solved, by.plain, by.probe, known) for side, (by, known) in self._judges.items()}
        return {"judges": judges, **{name: getattr(self, name).copy() for name in _STATE}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where another ledger stood."""
        for name in _STATE:
            setattr(self, name, state[name].copy())
        self._judges = {side: (MultilabelJudge(*parts[:3]), parts[3]) for side, parts in state["judges"].items()}


_STATE = ("_tried", "_stands_for", "_total", "_mass")


def _tags_to_try(
    targets: NDArray[Any], believed: NDArray[np.float64], width: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Tags ``[width]`` of one example, and how many pairs each stands for."""
    has, others = np.flatnonzero(targets > 0.5), np.flatnonzero(~(targets > 0.5))
    order = others[np.argsort(-believed[others], kind="stable")]
    top, rest = order[:_MOST_BELIEVED], order[_MOST_BELIEVED:]
    num_has = min(len(has), max(MOST_PRESENT, width - len(others)))
    room = width - num_has - len(top)
    weights = np.ones(width)
    weights[width - room :] = len(rest) / max(room, 1)
    return np.concatenate([has[:num_has], top, rng.choice(rest, room, replace=False)]), weights
