"""A name for a model's weights, by which a snapshot knows that it is used with the model that it was made from."""

from __future__ import annotations

import hashlib

import torch
from torch import nn

from sgoif.errors import SgoifError

__all__ = ["check_weights", "hash_weights"]

_SHOWN = 12  # characters in messages


def hash_weights(model: nn.Module) -> str:
    """Hash names, types, shapes and values of all parameters and persistent buffers: BLAKE2b, 32 characters.

    Values are compared to the bit, wherever they lie and in whatever memory format.
    """
    digest = hashlib.blake2b(digest_size=16)
    for name, value in sorted(model.state_dict().items()):
        if not isinstance(value, torch.Tensor):  # what a module adds by get_extra_state
            continue
        plain = value.detach().cpu().contiguous()
        digest.update(f"{name} {plain.dtype} {tuple(plain.shape)};".encode())
        if plain.numel():
            digest.update(plain.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def check_weights(model: nn.Module, wanted: str, step: int | None, kind: str = "snapshot") -> None:
    """Refuse a model with other weights than the snapshot's, or another file's that was made from one.

    Raises:
        SgoifError: They differ.
    """
    found = hash_weights(model)
    if found != wanted:
        when = "" if step is None else f", taken at step {step:,}"
        raise SgoifError(
            f"the model's weights are not those of the {kind}{when}: their hash is {found[:_SHOWN]}…, the "
            f"{kind}'s {wanted[:_SHOWN]}…. Load the checkpoint of that moment into the model; buffers such as "
            "BatchNorm's running statistics and the names of parameters count too."
        )
