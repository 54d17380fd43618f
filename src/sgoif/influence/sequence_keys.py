"""Keys of sequences: equal where the tokens of a prompt, or of prompt and completion, are the same."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sgoif.tasks.sequences import IGNORED

__all__ = ["sequence_keys"]


def sequence_keys(batch: Mapping[str, Any], *, is_causal: bool) -> NDArray[np.int64]:
    """The keys of every prompt, 0 where there is none, and of every sequence, ``[S, 2]``.

    The completion is what is to be predicted. The prompt of a causal model is the tokens without a label before the
    last one with a label, so that padding on the right is none of it; of another model it is the whole input. Sequences
    without tokens to read, such as sounds, and those with nothing to predict have no keys: 0.

    >>> rows = torch.tensor([[5, 6, 7], [5, 6, 8]])
    >>> keys = sequence_keys({"input_ids": rows, "labels": torch.where(rows < 7, -100, rows)}, is_causal=True)
    >>> (keys[0] == keys[1]).tolist()
    [True, False]
    """
    if "input_ids" not in batch:
        return np.zeros((len(batch["labels"]), 2), np.int64)
    tokens, labels = batch["input_ids"].cpu(), batch["labels"].cpu()
    mask = batch.get("attention_mask")
    is_read = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask.cpu().bool()
    if is_causal:
        is_later = (labels != IGNORED).flip(1).cumsum(1).flip(1) > 0
        is_read = is_read & (labels == IGNORED) & is_later
    found = np.zeros((len(tokens), 2), np.int64)
    for row in range(len(tokens)):
        prompt, completion = tokens[row][is_read[row]], labels[row][labels[row] != IGNORED]
        if not len(completion):
            continue
        found[row] = _key(prompt) if len(prompt) else 0, _key(prompt, completion)
    return found


def _key(*parts: Tensor) -> int:
    digest = blake2b(digest_size=8)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part.long().numpy().tobytes())
    return int.from_bytes(digest.digest(), "little", signed=True)
