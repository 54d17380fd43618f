"""The losses that training sequences have once a model has also learnt the evaluation sequences.

Harm is a first order: ``-g_v · H⁻¹ g_i`` tells how the loss of sequence i rises as the model begins to step towards a
lower loss of the evaluation sequences. Here the steps are taken. What the evaluation sequences contradict becomes hard
to predict, even where the model had memorised it; what they confirm does not. And as ``H`` holds the model where its
training sequences have put it, so do completions of theirs that it drew itself: without them it forgets what the
evaluation sequences do not ask for, and that would look wrong.

How far to go is asked of the evaluation sequences themselves: the model is tuned on half of them with several learning
rates, and the one is used that makes the other half easiest to predict. Where none does, there is nothing to learn from
them, and there are no such losses. The model has its own weights back afterwards, to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sgoif.gradients import Layer
from sgoif.influence.groups import AnchorGroups, Forward
from sgoif.influence.sequence_sets import SequenceSet
from sgoif.tasks.sequences import count_tokens, next_tokens, sample_targets, sequence_losses, token_losses

__all__ = ["Tuning", "sequence_means", "tune"]

_MOST = 2000  # evaluation sequences that are learnt
_LEAST = 8  # fewer cannot be halved
_PASSES = 4  # over them
_STEP = 32  # sequences of a step
_PIECE = 4  # of one group that are read together
_KEPT = 16  # training sequences that are added to a step, with completions as the model drew them
_MOST_KEPT = 1000  # different ones
# Of their loss. Where half of the groups are known, so that the model could forget the others, 0, 0.3 and 1 find 51, 58
# and 58 AP, the loss without tuning 55; where all are known, 77, 74, 71 and 65 (near intents of Banking77, seed 0).
_KEEP = 0.3
_NUMBERS = 2**28  # parameters that are tuned; each takes four more numbers
_FIRST_RATE, _FACTOR, _RATES = 3e-4, 10**0.5, (1e-6, 2e-2)

Batch = Mapping[str, Any]
Piece = tuple[int, list[int]]  # a group and positions in it
Part = tuple[Batch, Tensor]  # sequences, and the tokens that they are to predict


@dataclass(frozen=True, slots=True)
class Tuning:
    """How evaluation sequences are learnt, and what half of them does for the other half."""

    learning_rate: float
    num_sequences: int
    loss_before: float  # mean per token of the half that was not learnt
    loss_after: float
    is_whole: bool  # all parameters that are trained, or those of the scored layers alone


@contextmanager
def tune(
    model: nn.Module,
    forward: Forward,
    groups: AnchorGroups,
    examples: SequenceSet,
    layers: Sequence[Layer],
    *,
    is_causal: bool,
    batch_size: int,
    seed: int = 0,
) -> Iterator[Tuning | str]:
    """Inside, the model has learnt the evaluation sequences, or there is a reason why not; on leaving it is as it was.

    Args:
        model: in eval mode.
        forward: a batch to logits.
        groups: the evaluation sequences.
        examples: the training sequences.
        layers: the scored ones, which alone are tuned where the model is too large.
        is_causal: whether the model shifts its labels.
        batch_size: sequences that are read together at most.
        seed: of the order and of the halves.
    """
    weights = _Weights(model, layers)
    generator = torch.Generator().manual_seed(seed)
    learner = _Learner(forward, groups, examples, weights, is_causal, batch_size, generator)
    try:
        yield learner.learn()
    finally:
        weights.restore()


class _Weights:
    """The parameters that are tuned, with copies in at least float32 and their own values."""

    def __init__(self, model: nn.Module, layers: Sequence[Layer]) -> None:
        scored = {id(value): value for layer in layers for value in layer.parameters.values()}
        trained = [value for value in model.parameters() if value.requires_grad]
        self.is_whole = sum(value.numel() for value in trained) <= _NUMBERS
        self.tuned: list[Tensor] = list(trained if self.is_whole else scored.values())
        self._own = [value.detach().clone() for value in self.tuned]
        self.fine: list[nn.Parameter] = []

    def start(self) -> None:
        """Begin from the model's own values."""
        self._set(self._own)
        self.fine = [nn.Parameter(_at_least_float32(value)) for value in self._own]

    def take(self, optimizer: torch.optim.Optimizer, gradients: Sequence[Tensor | None]) -> None:
        """Make one step; weights in half precision are rounded once, not at every addition."""
        for fine, gradient in zip(self.fine, gradients):
            fine.grad = None if gradient is None else gradient.to(fine.dtype)
        optimizer.step()
        self._set(self.fine)

    def restore(self) -> None:
        """Put everything back."""
        self._set(self._own)
        self.fine = []

    @torch.no_grad()
    def _set(self, values: Sequence[Tensor]) -> None:
        for value, new in zip(self.tuned, values):
            value.copy_(new)


def _at_least_float32(value: Tensor) -> Tensor:
    return value.clone() if value.dtype in (torch.float32, torch.float64) else value.float()


class _Learner:
    """Learns evaluation sequences, always from the model's own weights on.

    The arguments are those of :func:`tune`.
    """

    def __init__(
        self,
        forward: Forward,
        groups: AnchorGroups,
        examples: SequenceSet,
        weights: _Weights,
        is_causal: bool,
        batch_size: int,
        generator: torch.Generator,
    ) -> None:
        self._forward, self._groups, self._examples, self._weights = forward, groups, examples, weights
        self._is_causal, self._batch_size, self._generator = is_causal, batch_size, generator
        self._kept: list[list[Part]] = []  # for one step each: training sequences, with what the model drew

    def learn(self) -> Tuning | str:
        """Find the learning rate by halves, then learn all; or why not."""
        chosen = self._choose()
        every = [(group, [place]) for group, places in chosen for place in places]
        halves = [_together(every[start::2]) for start in (0, 1)]
        if min(sum(len(places) for _, places in half) for half in halves) < _LEAST // 2:
            return f"fewer than {_LEAST} evaluation sequences"
        self._kept = self._draw_kept()
        before = self._judge(halves[1])
        found = self._search(halves)
        rate = min(found, key=lambda one: found[one])
        if not found[rate] < before:
            return (
                "half of the evaluation sequences do not help the model to predict the other half; they may be too "
                "few, too unlike one another, or partly wrong"
            )
        self._pass_over(chosen, rate)
        count = sum(len(places) for _, places in chosen)
        return Tuning(rate, count, before, found[rate], self._weights.is_whole)

    def _choose(self) -> list[Piece]:
        """At most so many of each group, by its share, in random order."""
        share = min(1.0, _MOST / sum(self._groups.sizes))
        return [
            (group, torch.randperm(size, generator=self._generator)[: max(2, round(share * size))].tolist())
            for group, size in enumerate(self._groups.sizes)
        ]

    @torch.no_grad()
    def _draw_kept(self) -> list[list[Part]]:
        """Some training sequences with tokens that the model draws, given those before them."""
        order = torch.randperm(len(self._examples), generator=self._generator)[:_MOST_KEPT]
        kept: list[list[Part]] = []
        for step in order.split(_KEPT):
            batches = (self._examples.read(places.tolist())[1] for places in step.split(self._batch_size))
            parts = [(batch, next_tokens(batch["labels"], is_causal=self._is_causal)) for batch in batches]
            kept.append([(b, sample_targets(self._forward(b), t, self._generator)) for b, t in parts])
        return kept

    def _search(self, halves: Sequence[Sequence[Piece]]) -> dict[float, float]:
        """The loss of the second half by learning rate of the first: up and down from a usual one, while it falls."""
        found: dict[float, float] = {}

        def judge(rate: float) -> float:
            self._pass_over(halves[0], rate)
            found[rate] = self._judge(halves[1])
            return found[rate]

        best = judge(_FIRST_RATE)
        for factor in (_FACTOR, 1 / _FACTOR) if math.isfinite(best) else (1 / _FACTOR,):
            rate = _FIRST_RATE * factor
            while _RATES[0] < rate < _RATES[1] and (judge(rate) < best or math.isinf(best)):
                best, rate = found[rate], rate * factor
            if best < found[_FIRST_RATE]:
                break  # it falls to this side
        return found

    def _pass_over(self, half: Sequence[Piece], rate: float) -> None:
        """Learn some sequences from the model's own weights on, with Adam and a rate that falls to zero."""
        self._weights.start()
        optimizer = torch.optim.Adam(self._weights.fine, lr=rate)
        generator = torch.Generator().manual_seed(self._generator.initial_seed())
        steps = [step for _ in range(_PASSES) for step in self._steps(half, generator)]
        for number, step in enumerate(steps):
            for group in optimizer.param_groups:
                group["lr"] = rate * (1 - number / len(steps))
            kept = self._kept[number % len(self._kept)]
            if (gradients := self._differentiate(step, kept)) is not None:
                self._weights.take(optimizer, gradients)

    def _steps(self, half: Sequence[Piece], generator: torch.Generator) -> list[list[Piece]]:
        """The sequences in random order, a few of a group together."""
        pieces: list[Piece] = []
        for group, places in half:
            order = [places[at] for at in torch.randperm(len(places), generator=generator).tolist()]
            pieces += [(group, order[start : start + _PIECE]) for start in range(0, len(order), _PIECE)]
        order = torch.randperm(len(pieces), generator=generator).tolist()
        each = _STEP // _PIECE
        return [_together([pieces[at] for at in order[start : start + each]]) for start in range(0, len(order), each)]

    def _differentiate(self, step: Sequence[Piece], kept: Sequence[Part]) -> list[Tensor | None] | None:
        """The gradient of the mean loss per token, with that of what is kept; None where it is not finite."""
        asked = [(batch, next_tokens(batch["labels"], is_causal=self._is_causal)) for batch in self._read(step)]
        total: list[Tensor | None] = [None] * len(self._weights.tuned)
        for parts, weight in ((asked, 1.0), (kept, _KEEP)):
            tokens = sum(int(count_tokens(targets).sum()) for _, targets in parts)
            for batch, targets in parts:
                with torch.enable_grad():
                    loss = weight / max(tokens, 1) * token_losses(self._forward(batch), targets).sum()
                found = torch.autograd.grad(loss, self._weights.tuned, allow_unused=True)
                total = [a if b is None else b if a is None else a + b for a, b in zip(total, found)]
        is_sound = all(part is None or bool(part.isfinite().all()) for part in total)
        return total if is_sound else None

    def _read(self, pieces: Sequence[Piece]) -> Iterator[Batch]:
        for group, places in pieces:
            most = min(_STEP, self._batch_size)
            for start in range(0, len(places), most):
                yield self._groups.read(group, places[start : start + most])

    @torch.no_grad()
    def _judge(self, half: Sequence[Piece]) -> float:
        """Mean loss per token; infinite where that is unknown."""
        total, tokens = 0.0, 0
        for batch in self._read(half):
            losses, counts = _losses(self._forward, batch, self._is_causal)
            total, tokens = total + float(losses.sum()), tokens + int(counts.sum())
        return total / tokens if tokens and math.isfinite(total) else math.inf


def _together(pieces: Sequence[Piece]) -> list[Piece]:
    """Pieces of the same group as one."""
    found: dict[int, list[int]] = {}
    for group, places in pieces:
        found.setdefault(group, []).extend(places)
    return list(found.items())


def _losses(forward: Forward, batch: Batch, is_causal: bool) -> tuple[Tensor, Tensor]:
    """Losses of sequences, sums over tokens, and how many these are, ``[B]``."""
    targets = next_tokens(batch["labels"], is_causal=is_causal)
    return sequence_losses(token_losses(forward(batch), targets)), count_tokens(targets)


@torch.no_grad()
def sequence_means(forward: Forward, batch: Batch, *, is_causal: bool) -> Tensor:
    """The mean loss per token of every sequence of a batch, ``[B]``; NaN without a token to predict."""
    losses, tokens = _losses(forward, batch, is_causal)
    return (losses / tokens).masked_fill(tokens == 0, torch.nan)
