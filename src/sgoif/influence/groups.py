"""Groups of evaluation sequences: what the user cares about, one direction per group.

A refresh takes the next few sequences of every group, in one eval-mode pass that leaves no trace. The gradient of a
group is that of its mean loss per token, averaged over draws with the horizon that anchors of classes have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from sgoif.distributed import Peers, SingleProcess
from sgoif.errors import SgoifError
from sgoif.gradients import Capture, Space, combine_gradients, quiet_eval
from sgoif.influence.anchors import HORIZON
from sgoif.inputs.items import is_map_style, move_to
from sgoif.rng import find_generators, preserve_rng
from sgoif.tasks.sequences import IGNORED, count_tokens, next_tokens, sequence_losses, token_losses

__all__ = ["AnchorGroups", "GroupGradients", "batch_of_one", "pad_items"]

Forward = Callable[[Mapping[str, Any]], Tensor]  # a batch to logits [B, T, V]

_CHUNK = 16  # sequences in one pass
_LISTS = ("input_ids", "labels", "attention_mask", "token_type_ids", "position_ids", "decoder_input_ids")


def pad_items(items: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """Collate items with ``input_ids`` and ``labels``, padded on the right where lengths differ.

    >>> pad_items([{"input_ids": [5, 6], "labels": [-100, 6]}, {"input_ids": [7], "labels": [7]}])["labels"].tolist()
    [[-100, 6], [7, -100]]
    """
    batch: dict[str, Tensor] = {}
    for key in (key for key in _LISTS if key in items[0]):
        parts = [torch.as_tensor(item[key]) for item in items]
        fill = IGNORED if key == "labels" else 0
        batch[key] = nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=fill)
    if "input_ids" in batch and "attention_mask" not in batch:
        ones = [torch.ones(len(item["input_ids"]), dtype=torch.long) for item in items]
        batch["attention_mask"] = nn.utils.rnn.pad_sequence(ones, batch_first=True)
    return batch


def batch_of_one(item: Mapping[str, Any]) -> dict[str, Any]:
    """A batch with one sequence, of an item of a dataset or of such a batch.

    Raises:
        SgoifError: it has no ``input_ids`` and ``labels``, or more than one sequence.
    """
    if not isinstance(item, Mapping) or "input_ids" not in item or "labels" not in item:
        found = ", ".join(map(str, item)) if isinstance(item, Mapping) else type(item).__name__
        raise SgoifError(f"a sequence is a dictionary with input_ids and labels, got {found}.")
    sizes = torch.as_tensor(item["labels"]).shape
    if len(sizes) == 1:
        return dict(pad_items([item]))
    if len(sizes) != 2 or sizes[0] != 1:
        raise SgoifError(f"pass one sequence, with labels [T] or [1, T]; these labels have shape {tuple(sizes)}.")
    return {name: value for name, value in item.items() if name != "id"}


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
                f"got {type(groups).__name__}."
            )
        self.names = [str(name) for name in groups]
        if len(set(self.names)) < len(self.names):
            raise SgoifError(f"anchors= has two groups of one name among {', '.join(self.names)}.")
        self._sets: list[Any] = []
        self._collate: list[Callable[[list[Any]], Any]] = []
        for name, given in zip(self.names, groups.values()):
            dataset: Any = given.dataset if isinstance(given, DataLoader) else given
            collate = given.collate_fn if isinstance(given, DataLoader) else pad_items
            if not is_map_style(dataset) or not len(dataset):
                raise SgoifError(f"anchors={{{name!r}: ...}} must be a map-style dataset with at least one sequence.")
            self._sets.append(dataset)
            self._collate.append(collate)
        self.device = device
        generator = torch.Generator().manual_seed(seed)
        self._orders = [torch.randperm(len(dataset), generator=generator).tolist() for dataset in self._sets]
        self._drawn = [0] * len(self.names)
        with preserve_rng(own=find_generators(*self._sets, *self._collate)):  # a dataset may draw random numbers
            for group, dataset in enumerate(self._sets):  # a mistake is found before the training begins
                self._collated(group, range(min(len(dataset), _CHUNK)))

    def __len__(self) -> int:
        return len(self.names)

    @property
    def sizes(self) -> list[int]:
        """Sequences of each group."""
        return [len(dataset) for dataset in self._sets]

    def draw(self, group: int, count: int) -> list[dict[str, Any]]:
        """The next batches of a group, on the device; a dataset may draw random numbers, so guard them around it."""
        order, start = self._orders[group], self._drawn[group]
        count = min(count, len(order))
        chosen = [order[(start + step) % len(order)] for step in range(count)]
        self._drawn[group] = (start + count) % len(order)
        batches = []
        for at in range(0, count, _CHUNK):
            batches.append(self._collated(group, chosen[at : at + _CHUNK]))
        return batches

    def _collated(self, group: int, places: Sequence[int]) -> dict[str, Any]:
        batch = dict(self._collate[group]([self._sets[group][place] for place in places]))
        batch.pop("id", None)
        labels = batch.get("labels")
        if not isinstance(labels, Tensor) or labels.dim() != 2:
            raise SgoifError(
                f"the sequences of anchors={{{self.names[group]!r}: ...}} have no labels [sequences, positions]; give "
                f"every item `labels`, {IGNORED} where no token is to be predicted."
            )
        if not bool((labels != IGNORED).any()):
            raise SgoifError(f"no sequence of anchors={{{self.names[group]!r}: ...}} has a token to predict.")
        moved: dict[str, Any] = move_to(batch, self.device)
        return moved

    def state_dict(self) -> dict[str, Any]:
        """How far each group has been drawn."""
        return {"drawn": list(self._drawn)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where other groups stood."""
        self._drawn = [int(place) for place in state["drawn"]]


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
        """Draw from every group and take its gradient in; returns the number of sequences."""
        each = max(1, per_refresh // len(self.groups))
        seen = 0
        with quiet_eval(model):
            for group in range(len(self.groups)):
                batches = self.groups.draw(group, each)
                count = sum(len(batch["labels"]) for batch in batches)
                self._take_in(group, count, *self._average(*self._differentiate(capture, forward, batches)))
                seen += count
        return seen

    def _differentiate(
        self, capture: Capture, forward: Forward, batches: Sequence[Mapping[str, Any]]
    ) -> tuple[dict[str, Tensor], Tensor]:
        """The gradient and the value of the mean loss per token."""
        total: dict[str, Tensor] = {}
        tokens = sum(count_tokens(self._targets(batch)).sum() for batch in batches)
        value = torch.zeros((), device=self.groups.device, dtype=self.losses.dtype)
        for batch in batches:
            targets = self._targets(batch)
            capture.scale, capture.num_examples = 1.0, len(targets)
            with capture:
                logits = capture.forward(partial(forward, batch))
                with torch.enable_grad():
                    loss = sequence_losses(token_losses(logits, targets)).sum() / tokens
                capture.differentiate(loss)
            value += loss.detach()
            ones = torch.ones(len(targets), 1, device=targets.device)
            for name, part in combine_gradients(capture.calls, self._spaces, ones).items():
                total[name] = total[name] + part[0] if name in total else part[0]
            capture.clear()
        return total, value

    def _average(self, gradients: Mapping[str, Tensor], loss: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """The means over the processes, so that all of them hold the same directions to the bit."""
        names = sorted(gradients)
        loss, *parts = self._peers.all_reduce_sum([loss, *(gradients[name] for name in names)])
        return {name: part / self._peers.size for name, part in zip(names, parts)}, loss / self._peers.size

    def _targets(self, batch: Mapping[str, Any]) -> Tensor:
        return next_tokens(batch["labels"], is_causal=self._is_causal)

    def _take_in(self, group: int, count: int, gradients: Mapping[str, Tensor], loss: Tensor) -> None:
        """Average a draw in, unless it has a number that is none: that would be in every later average."""
        ok = torch.stack([part.isfinite().all() for part in gradients.values()]).all() & loss.isfinite()
        share = min(1.0, count / HORIZON)
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
