"""Groups of evaluation sequences: what the user cares about, one direction per group.

A refresh takes the next few sequences of every group, in one eval-mode pass that leaves no trace. The gradient of a
group is that of its mean loss per token, averaged over draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sgoif.distributed import Peers, SingleProcess, keep_sharded
from sgoif.errors import SgoifError
from sgoif.gradients import Capture, LayerCapture, Space, combine_gradients, quiet_eval
from sgoif.influence.sequence_sets import SequenceSet
from sgoif.rng import preserve_rng
from sgoif.tasks.sequences import count_tokens, next_tokens, sample_targets, sequence_losses, token_losses

__all__ = ["AVERAGED", "AnchorGroups", "Forward", "GroupGradients", "SequencesSeen", "differentiate"]

Forward = Callable[[Mapping[str, Any]], Tensor]  # a batch to logits [B, T, V]

_CHUNK = 16  # sequences in one pass
AVERAGED = 100  # sequences of a group that are averaged over, fewer where it has fewer


@dataclass(frozen=True, slots=True)
class SequencesSeen:
    """What a forward and backward pass showed, one row per sequence."""

    calls: list[LayerCapture]
    losses: Tensor  # sums over tokens, [S]
    num_tokens: Tensor  # [S]


def differentiate(
    capture: Capture,
    forward: Forward,
    batch: Mapping[str, Any],
    is_causal: bool,
    sample: torch.Generator | None = None,
) -> SequencesSeen:
    """Run a batch forward and the losses of its sequences back to the captured layers, in the model's present mode.

    Args:
        capture: of the layers.
        forward: a batch to logits.
        batch: with ``labels``.
        is_causal: whether the model shifts them.
        sample: draws the tokens to predict from the model itself, as the Fisher matrix needs them.
    """
    targets = next_tokens(batch["labels"], is_causal=is_causal)
    capture.scale, capture.num_examples = 1.0, len(targets)
    with capture:
        logits = capture.forward(partial(forward, batch))
        if sample is not None:
            targets = sample_targets(logits.detach(), targets, sample)
        with torch.enable_grad():
            losses = sequence_losses(token_losses(logits, targets))
            total = losses.sum()
        capture.differentiate(total)
    calls = list(capture.calls)
    capture.clear()
    return SequencesSeen(calls, losses.detach(), count_tokens(targets))


class AnchorGroups:
    """The evaluation sequences by group, drawn in a fixed random order, round after round.

    Args:
        groups: by name: a map-style dataset of dictionaries with ``input_ids`` and ``labels``, or a ``DataLoader``
            over one, whose collator is used.
        device: where the model is.
        seed: of the order.
    """

    def __init__(self, groups: Any, *, device: torch.device, seed: int = 0) -> None:
        if not isinstance(groups, Mapping) or not groups:
            raise SgoifError(
                "task='sequences' needs anchors={name: dataset, ...}, one dataset of evaluation sequences per group, "
                f"got {'an empty one' if isinstance(groups, Mapping) else type(groups).__name__}."
            )
        self.names = [str(name) for name in groups]
        if len(set(self.names)) < len(self.names):
            raise SgoifError(f"anchors= has two groups of one name among {', '.join(self.names)}.")
        self._sets = [
            SequenceSet(given, role=f"anchors={{{name!r}: ...}}", device=device)
            for name, given in zip(self.names, groups.values())
        ]
        self.device = device
        self._places: list[Sequence[int]] = [range(len(sequences)) for sequences in self._sets]  # those that are used
        self._seed = seed
        self._orders = self._make_orders()
        self.drawn = [0] * len(self.names)  # how far each has been

    def _make_orders(self) -> list[list[int]]:
        generator = torch.Generator().manual_seed(self._seed)
        return [torch.randperm(size, generator=generator).tolist() for size in self.sizes]

    def __len__(self) -> int:
        return len(self.names)

    @property
    def sizes(self) -> list[int]:
        """Sequences of each group."""
        return [len(places) for places in self._places]

    @property
    def shares(self) -> dict[str, float]:
        """How much of all evaluation sequences each group is, by name."""
        total = sum(self.sizes)
        return {name: size / total for name, size in zip(self.names, self.sizes)}

    @property
    def generators(self) -> list[Any]:
        """Generators of random numbers that the datasets and their collators own."""
        return [generator for sequences in self._sets for generator in sequences.generators]

    def draw(self, group: int, count: int) -> list[dict[str, Any]]:
        """The next batches of a group, on the device; a dataset may draw random numbers, so guard them around it."""
        order, start = self._orders[group], self.drawn[group]
        count = min(count, len(order))
        chosen = [order[(start + step) % len(order)] for step in range(count)]
        self.drawn[group] = (start + count) % len(order)
        chunks = (chosen[at : at + _CHUNK] for at in range(0, count, _CHUNK))
        return [self.read(group, chunk) for chunk in chunks]

    def read_all(self) -> Iterator[dict[str, Any]]:
        """All batches of all groups in the order of their datasets; draws go on where they were."""
        for group, size in enumerate(self.sizes):
            for start in range(0, size, _CHUNK):
                yield self.read(group, range(start, min(start + _CHUNK, size)))

    def read(self, group: int, places: Sequence[int]) -> dict[str, Any]:
        """The batch of some sequences of a group, on the device."""
        return self._sets[group].read([self._places[group][place] for place in places])[1]

    def drop_empty(self, *, is_causal: bool) -> int:
        """Leave out sequences without a token to predict, before any is drawn; returns how many these are."""
        before = sum(self.sizes)
        with preserve_rng(own=self.generators):
            for group, size in enumerate(self.sizes):
                chunks = [range(start, min(start + _CHUNK, size)) for start in range(0, size, _CHUNK)]
                labels = (self.read(group, chunk)["labels"] for chunk in chunks)
                counts = torch.cat([count_tokens(next_tokens(given, is_causal=is_causal)).cpu() for given in labels])
                if not bool(counts.any()):
                    raise SgoifError(f"no sequence of group {self.names[group]!r} has a token to predict.")
                if not bool(counts.all()):
                    self._places[group] = counts.nonzero()[:, 0].tolist()
        if lost := before - sum(self.sizes):
            self._orders = self._make_orders()
        return lost

    def state_dict(self) -> dict[str, Any]:
        """How far each group has been drawn."""
        return {"drawn": list(self.drawn)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where other groups stood."""
        self.drawn = [int(place) for place in state["drawn"]]


class GroupGradients:
    """``g_v`` of every group over the scored layers, as exponential averages.

    Args:
        groups: where sequences come from.
        spaces: the scored layers.
        is_causal: whether labels are shifted by the model.
        dtype: of the averages.
        peers: the processes that train together. Each draws for itself, and what they found is averaged.
    """

    def __init__(
        self,
        groups: AnchorGroups,
        spaces: Mapping[str, Space],
        *,
        is_causal: bool,
        dtype: torch.dtype,
        peers: Peers | None = None,
    ) -> None:
        self.groups, self._spaces, self._is_causal = groups, dict(spaces), is_causal
        self._peers = peers or SingleProcess()
        like: dict[str, Any] = {"device": groups.device, "dtype": dtype}
        self._sums = {name: torch.zeros(len(groups), *space.shape.dims, **like) for name, space in spaces.items()}
        self._weight = torch.zeros(len(groups), **like)
        self.losses = torch.full((len(groups),), torch.nan, **like)  # mean per token in the last draw

    def refresh(self, model: nn.Module, capture: Capture, forward: Forward, per_refresh: int) -> int:
        """Draw from every group and take its gradient in; returns the number of sequences.

        All processes draw as many: the pass of a sharded model is a collective of the training's own, which nobody
        begins unless all have what they pass.
        """
        each = max(1, per_refresh // len(self.groups))
        seen = 0
        with keep_sharded(model), quiet_eval(model):
            draws: Iterable[list[dict[str, Any]]] = (self.groups.draw(group, each) for group in range(len(self.groups)))
            if not self._peers.is_alone:
                draws = list(draws)
                self._peers.check_in_sync(*self.groups.drawn)
            for group, batches in enumerate(draws):
                count = sum(len(batch["labels"]) for batch in batches)
                self._take_in(group, *self._average(count, *self._differentiate(capture, forward, batches)))
                seen += count
        return seen

    def _differentiate(
        self, capture: Capture, forward: Forward, batches: Sequence[Mapping[str, Any]]
    ) -> tuple[dict[str, Tensor], Tensor]:
        """The gradient and the value of the mean loss per token."""
        total: dict[str, Tensor] = {}
        value = tokens = self.losses.new_zeros(())
        for batch in batches:
            seen = differentiate(capture, forward, batch, self._is_causal)
            value, tokens = value + seen.losses.sum(), tokens + seen.num_tokens.sum()
            ones = torch.ones(len(seen.losses), 1, device=seen.losses.device)
            for name, part in combine_gradients(seen.calls, self._spaces, ones).items():
                total[name] = total[name] + part[0] if name in total else part[0]
        return {name: part / tokens for name, part in total.items()}, value / tokens

    def _average(
        self, count: int, gradients: Mapping[str, Tensor], loss: Tensor
    ) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """The means over the processes, so that all of them hold the same directions to the bit."""
        names = sorted(gradients)
        own = [self._weight.new_tensor(float(count)), loss, *(gradients[name] for name in names)]
        drawn, loss, *parts = (part / self._peers.size for part in self._peers.all_reduce_sum(own))
        return drawn, dict(zip(names, parts)), loss

    def _take_in(self, group: int, count: Tensor, gradients: Mapping[str, Tensor], loss: Tensor) -> None:
        """Average a draw in, unless it has a number that is none: that would be in every later average."""
        ok = torch.stack([part.isfinite().all() for part in gradients.values()]).all() & loss.isfinite()
        share = (count / min(AVERAGED, self.groups.sizes[group])).clamp_max(1.0)  # a group that is drawn whole is known
        for name, part in gradients.items():
            old = self._sums[name][group]
            self._sums[name][group] = torch.where(ok, torch.lerp(old, part.to(old.dtype), share), old)
        weight = self._weight[group]
        self._weight[group] = torch.where(ok, weight + share * (1 - weight), weight)
        self.losses[group] = loss

    @property
    def is_known(self) -> Tensor:
        """Which groups have a gradient, ``[K]``."""
        return self._weight > 0

    @property
    def means(self) -> dict[str, Tensor]:
        """``g_v`` by layer, ``[K, G, O, I]``; zero for a group without any."""
        weight = self._weight.clamp_min(torch.finfo(self._weight.dtype).tiny)
        return {name: part / weight.view(-1, 1, 1, 1) for name, part in self._sums.items()}

    def state_dict(self) -> dict[str, Any]:
        """The averages, and how far the groups have been drawn."""
        sums = {name: part.clone() for name, part in self._sums.items()}
        kept = {"weight": self._weight.clone(), "losses": self.losses.clone()}
        return {"sums": sums, **kept, "groups": self.groups.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where other averages stood."""
        self._sums = {name: state["sums"][name].to(old) for name, old in self._sums.items()}
        self._weight, self.losses = state["weight"].to(self._weight), state["losses"].to(self.losses)
        self.groups.load_state_dict(state["groups"])
