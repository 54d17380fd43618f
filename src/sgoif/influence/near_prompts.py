"""How a sequence conflicts with the evaluation sequences whose prompts are like its own.

``conflict_i = -Σ_j w_ij ĝ_i · H⁻¹ ĝ_j / Σ_j w_ij`` with ``ĝ = g / √|g|``, half-way from an influence to a cosine. With
plain gradients and equal weights it is harm. That tells what training does, but is a poor witness of errors:

- the few evaluation sequences that the model gets wrong have the largest gradients and decide for all. Divided by the
  root of its norm, each still counts by its size, but not as much;
- a wrong completion hurts where the same is asked, and may help where its words are the right answer; the sum over all
  evaluation sequences cancels the two. So ``w_ij`` falls with the distance of prompts: that of hidden states, by their
  cosine, at the position that predicts the first token. Sequences without a prompt, as plain texts are, count alike.

A conflict is a mean, and says nothing of how much it is made of: ``coverage_i`` tells that, from 0 where no evaluation
sequence has a prompt like that of i to 1 where many have.

Weights of all pairs would take a direction per evaluation sequence. Prompts are clustered instead, and the sequences of
a cluster share a direction; where there are few, each is a cluster of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sgoif.gradients import Capture, Layer, Space, dot_directions, gradient_norms2, rows_by_layer
from sgoif.gradients.affine import LinearRule
from sgoif.gradients.contractions import combine
from sgoif.influence.groups import Forward, SequencesSeen, differentiate
from sgoif.records import GradientRows
from sgoif.tasks.sequences import IGNORED, next_tokens

__all__ = ["NearPrompts"]

Batches = Callable[[], Iterable[Mapping[str, Any]]]
Solve = Callable[[dict[str, Tensor]], dict[str, Tensor]]

_MOST = 256  # clusters
_NUMBERS = 2**27  # that the directions of all clusters may have together
_SAMPLE = 2000  # prompts whose distances are compared
_WIDTH = 0.25  # of the median distance, over which a weight falls by 1/e; 0.15 to 0.7 find the same within 1 AP
# Coverage is 1.5 times the likeness of the nearest evaluation prompt, at most 1, times n / (n + 10) with the sum n of
# all likenesses. That costs 0.5 AP where all groups have evaluation sequences, and gains 4 to 5 where half have (near
# intents at 20%, seeds 0 and 11 of Banking77 and CLINC150). With 20 evaluation sequences for all intents suspicion is
# 0 to 1 above the loss there; as if all were covered, it was 5, 14 and, of random intents, 46 below it.
_LIKENESS, _ENOUGH = 1.5, 10.0
_ALIKE = 1e-5  # of the size of hidden states, up to which a difference is rounding
_NO_LENGTH = 0.5  # of what should be a unit vector, below which it is none
_SAME = 1e-4  # distance up to which prompts are one
# Layers of decoders that read what the encoder found, by how Transformers names them.
_CROSS_ATTENTION = re.compile(
    r"(EncDecAttention|encoder_attn|cross_?attention|cross_attn)\..*(k|v|key|value)(_proj)?\b"
)


class NearPrompts:
    """Evaluation sequences by their prompts, with a solved direction per cluster.

    Args:
        layers: the scored layers; prompts are read where one of the last gets its inputs.
        spaces: of their gradients.
        is_causal: whether the model shifts its labels.
        dtype: of the directions.
    """

    def __init__(
        self, layers: Sequence[Layer], spaces: Mapping[str, Space], *, is_causal: bool, dtype: torch.dtype
    ) -> None:
        linear = [
            layer
            for layer in layers
            if isinstance(layer.rule, LinearRule) and not _CROSS_ATTENTION.search(layer.module_name)
        ]
        self.layer = _find_hidden(linear) if linear else None
        self._spaces, self._is_causal, self._dtype = dict(spaces), is_causal, dtype
        self._inputs: list[Tensor] = []  # of the layer in the last pass
        self._directions: dict[str, Tensor] = {}  # [C, G, O, I]
        self._sizes = torch.zeros(0)  # sequences of each cluster
        self._center = self._centroids = torch.zeros(0)
        self._width = self._least = 1.0
        self._is_alike = False  # whether most evaluation prompts are the same
        self._are_there = True  # whether most evaluation sequences have a prompt

    def __len__(self) -> int:
        return len(self._sizes)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Notice what the layer is given in the passes inside."""
        assert self.layer is not None

        def keep(_module: nn.Module, inputs: tuple[Any, ...]) -> None:
            if inputs and isinstance(inputs[0], Tensor) and not self._inputs:  # a checkpoint runs its part again
                self._inputs.append(inputs[0].detach())

        handle = self.layer.module.register_forward_pre_hook(keep)
        try:
            yield
        finally:
            handle.remove()
            self._inputs.clear()

    def take(self, batch: Mapping[str, Any]) -> Tensor | None:
        """The hidden states of the prompts of the last pass, ``[B, d]``; None where they were not seen.

        Sequences without a prompt have NaN.
        """
        inputs, targets = list(self._inputs), next_tokens(batch["labels"], is_causal=self._is_causal)
        self._inputs.clear()
        if not inputs or inputs[0].dim() != 3 or inputs[0].shape[:2] != targets.shape:
            return None
        first = (targets != IGNORED).int().argmax(1)
        rows = inputs[0][torch.arange(len(targets), device=first.device), first].to(self._dtype)
        return rows.masked_fill(~self._have_prompts(batch, first)[:, None], torch.nan)

    def _have_prompts(self, batch: Mapping[str, Any], first: Tensor) -> Tensor:
        """Whether a token without a label stands where the first one is predicted, or before it; ``[B]``."""
        if not self._is_causal:
            return torch.ones_like(first, dtype=torch.bool)  # the input is a prompt
        mask = batch.get("attention_mask")
        is_prompt = batch["labels"] == IGNORED
        if isinstance(mask, Tensor) and mask.shape == is_prompt.shape:
            is_prompt = is_prompt & mask.bool()
        places = torch.arange(is_prompt.shape[1], device=first.device)
        found: Tensor = (is_prompt & (places <= first[:, None])).any(1)
        return found

    def fit(self, capture: Capture, forward: Forward, batches: Batches, solve: Solve) -> bool:
        """Cluster the prompts of evaluation sequences and solve for the directions; False where prompts are not seen.

        Args:
            capture: of the scored layers.
            forward: a batch to logits.
            batches: all evaluation sequences, the same at every call; each has a token to predict.
            solve: gradients by layer ``[C, G, O, I]`` to directions.
        """
        if self.layer is None:
            return False
        found: list[Tensor] = []
        with self.reading(), torch.no_grad():
            for batch in batches():
                forward(batch)
                rows = self.take(batch)
                if rows is None:
                    return False
                found.append(rows)
        clusters = self._cluster(torch.cat(found))
        self._directions = solve(self._add_up(capture, forward, batches(), clusters))
        return True

    def _cluster(self, rows: Tensor) -> Tensor:
        """The cluster of every prompt, ``[M]``."""
        self._center = rows.nanmean(0)
        self._least = _ALIKE * float(torch.linalg.vector_norm(rows, dim=1).nanmean())
        unit = self._place(rows)
        some = unit[torch.linspace(0, len(unit) - 1, min(len(unit), _SAMPLE), device=unit.device).long()]
        distances = 1 - some @ some.mT
        apart = distances[distances > _SAME]  # not those of a prompt to itself
        self._width = _WIDTH * float(apart.median()) if len(apart) else 1.0
        size = sum(space.shape.numel for space in self._spaces.values())
        norms = torch.linalg.vector_norm(unit, dim=1)
        self._is_alike = float(norms.median()) < _NO_LENGTH  # most have no prompt, or the same
        self._are_there = float(rows[:, 0].isnan().float().mean()) <= 0.5
        most = 1 if self._is_alike else max(1, min(_MOST, _NUMBERS // size))
        if len(unit) <= most:
            self._centroids = unit
            return torch.arange(len(unit), device=unit.device)
        from sklearn.cluster import KMeans

        made = KMeans(most, n_init=1, max_iter=20, random_state=0).fit(some.double().cpu().numpy())
        centroids = torch.from_numpy(made.cluster_centers_).to(unit)
        centroids = nn.functional.normalize(centroids, dim=1)
        own = (unit @ centroids.mT).argmax(1)
        used = own.unique()
        self._centroids = centroids[used]
        return torch.searchsorted(used, own)

    def _place(self, rows: Tensor) -> Tensor:
        """Unit vectors from the mean prompt; shorter ones where the difference is rounding, 0 without a prompt."""
        apart = (rows - self._center).nan_to_num()
        sizes = torch.linalg.vector_norm(apart, dim=1, keepdim=True)
        placed: Tensor = apart / sizes.clamp_min(self._least)
        return placed.nan_to_num()

    def _add_up(
        self, capture: Capture, forward: Forward, batches: Iterable[Mapping[str, Any]], clusters: Tensor
    ) -> dict[str, Tensor]:
        """``Σ ĝ_j`` of every cluster."""
        count = len(self._centroids)
        like: dict[str, Any] = {"device": clusters.device, "dtype": self._dtype}
        sums = {name: torch.zeros(count, *space.shape.dims, **like) for name, space in self._spaces.items()}
        self._sizes = torch.bincount(clusters, minlength=count).to(self._dtype)
        start = 0
        for batch in batches:
            seen = differentiate(capture, forward, batch, self._is_causal)
            own = clusters[start : start + len(seen.losses)]
            start += len(own)
            shares = self._root_norms(seen).reciprocal()
            for rows in rows_by_layer(seen.calls, self._spaces).values():
                for cluster in own.unique():
                    chosen = own == cluster
                    part = GradientRows(rows.layer, rows.inputs[chosen], rows.output_grads[chosen])
                    sums[rows.layer][cluster] += combine(part, shares[chosen, None])[0].to(self._dtype)
        return sums

    def _root_norms(self, seen: SequencesSeen) -> Tensor:
        """``√|g|``, ``[S]``."""
        return gradient_norms2(seen.calls, self._spaces).clamp_min(torch.finfo(self._dtype).tiny).pow(0.25)

    def score(self, seen: SequencesSeen, prompts: Tensor) -> tuple[Tensor, Tensor]:
        """The conflict of every sequence, and how far evaluation sequences cover its prompt, ``[S]`` each.

        Where those have no prompts nothing tells what they cover, and coverage is NaN.
        """
        placed = self._place(prompts)
        cosines = placed @ self._centroids.mT
        nearest = cosines.amax(1, keepdim=True)
        weights = ((cosines - nearest) / self._width).exp()
        products = dot_directions(seen.calls, self._spaces, self._directions)
        conflicts = -(weights * products).sum(1) / (weights @ self._sizes) / self._root_norms(seen)
        likeness = ((nearest[:, 0] - 1) / self._width).exp()
        if self._is_alike:  # as that of the evaluation sequences, or not
            likeness = (torch.linalg.vector_norm(placed, dim=1) < _NO_LENGTH).to(likeness)
        number = likeness * (weights @ self._sizes)
        coverage = (_LIKENESS * likeness).clamp_max(1) * number / (number + _ENOUGH)
        return conflicts, coverage if self._are_there else torch.full_like(coverage, torch.nan)


def _find_hidden(layers: Sequence[Layer]) -> Layer:
    """The last layer that reads hidden states: not the narrow ones of an adapter, nor the wide ones inside a block."""
    widths = [layer.shape.inputs - layer.shape.has_bias for layer in layers]
    usual = sorted(widths)[len(widths) // 2]
    return next(layer for layer, width in zip(reversed(layers), reversed(widths)) if width == usual)
