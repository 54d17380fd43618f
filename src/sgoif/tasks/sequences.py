"""Language models: which token each position is to predict, and the loss of whole sequences.

The loss of a sequence is the *sum* of its tokens' cross-entropies. That is its share of the objective whether tokens
are averaged over a batch or not, so its gradient tells what training on it more often would do; divided by the number
of tokens it compares sequences of different lengths.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgoif.gradients.segments import Segments

__all__ = [
    "IGNORED",
    "count_tokens",
    "is_causal",
    "next_tokens",
    "sample_targets",
    "sequence_losses",
    "token_losses",
]

IGNORED = -100  # label of a position that no loss counts
_AT_ONCE = 2**19  # logits: they stay in a core's cache. A device is given more, as every piece is a launch


def is_causal(model: nn.Module) -> bool:
    """Whether a model predicts the next token and shifts its labels itself.

    Encoder-decoders are given labels in their place, and so are masked models, which are recognised by the name of
    their class as Transformers writes it; everything else is causal.
    """
    if bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False)):
        return False
    get = getattr(model, "get_base_model", None)
    inner = get() if callable(get) else model
    return not type(inner).__name__.endswith("ForMaskedLM")


def next_tokens(labels: Tensor, *, is_causal: bool) -> Tensor:
    """The token that each position is to predict, ``[B, T] -> [B, T]``; :data:`IGNORED` where there is none.

    Causal models take labels in the place of their own tokens and shift them; masked models and decoders that are
    given their inputs shifted do not.

    >>> next_tokens(torch.tensor([[-100, 5, 6]]), is_causal=True).tolist()
    [[5, 6, -100]]
    """
    return F.pad(labels[:, 1:], (0, 1), value=IGNORED) if is_causal else labels


def token_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy at every position ``[B, T]`` in at least float32, zero where there is no target.

    A vocabulary is wide. Where most positions have no target, the others alone are computed; and only some of them at a
    time, so that no second tensor of the logits' size is made.
    """
    rows, wanted = logits.flatten(0, 1), targets.flatten()
    places = (wanted != IGNORED).nonzero()[:, 0]
    if 2 * len(places) > len(wanted):
        return _cross_entropies(rows, wanted).view(targets.shape)
    found = _cross_entropies(rows.index_select(0, places), wanted[places])
    return found.new_zeros(len(wanted)).index_copy(0, places, found).view(targets.shape)


def _cross_entropies(rows: Tensor, targets: Tensor) -> Tensor:
    """By row, zero where a row has no target."""
    at_once = max(1, (_AT_ONCE if rows.device.type == "cpu" else 64 * _AT_ONCE) // max(rows.shape[1], 1))
    found = []
    for some, wanted in zip(rows.split(at_once), targets.split(at_once)):
        some = some.float() if some.dtype in (torch.bfloat16, torch.float16) else some
        found.append(F.cross_entropy(some, wanted, reduction="none", ignore_index=IGNORED))
    return torch.cat(found)


def sample_targets(logits: Tensor, targets: Tensor, generator: torch.Generator) -> Tensor:
    """Tokens drawn from the model's own distribution where there is a target, by a generator on the CPU."""
    wanted = targets != IGNORED
    probabilities = logits[wanted].float().softmax(-1).cpu()
    drawn = torch.multinomial(probabilities, 1, generator=generator)[:, 0]
    return targets.masked_scatter(wanted, drawn.to(targets))


def sequence_losses(losses: Tensor, segments: Segments | None = None) -> Tensor:
    """Losses of tokens ``[B, T]`` added up by sequence: one per row ``[B]``, or one per packed sequence ``[S]``."""
    return losses.sum(1) if segments is None else segments.sum(losses)


def count_tokens(targets: Tensor, segments: Segments | None = None) -> Tensor:
    """How many tokens each sequence is to predict, ``[B]`` or ``[S]``."""
    wanted = targets != IGNORED
    return wanted.sum(1) if segments is None else segments.sum(wanted.long())
