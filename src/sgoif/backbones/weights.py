"""Weights from a file on this machine: safetensors or a torch state dict, neither of which runs code when loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sgoif.errors import SgoifError

__all__ = ["load_weights"]

_NESTED = ("state_dict_ema", "model_ema", "state_dict", "model")  # where trainings keep the weights of a checkpoint
_WRAPPED = ("module.", "_orig_mod.")  # what data parallelism and torch.compile put before names
_NAMED = 3  # tensors in a message


def _never(key: str) -> bool:
    return False


def load_weights(
    model: nn.Module,
    path: str | Path,
    name: str,
    *,
    prefix: str = "",
    is_head: Callable[[str], bool] = _never,
    may_lack: Callable[[str], bool] = _never,
) -> list[str]:
    """Load a file into a model; every tensor of the model must be there with its shape.

    Args:
        model: without its classifier.
        path: ``.safetensors``, or what ``torch.save`` wrote of a state dict.
        name: of the backbone, for messages.
        prefix: that names may have in the file, as of a model inside a classifier; then the other names are its head's.
        is_head: tells tensors of the file that belong to a classifier, which is not used.
        may_lack: tells tensors of the model that the file need not have.

    Returns:
        Tensors that the file may lack and does.

    Raises:
        SgoifError: The file cannot be read, or belongs to another model.
    """
    found = _read(Path(path))
    if prefix and any(key.startswith(prefix) for key in found):
        found = {key.removeprefix(prefix): value for key, value in found.items() if key.startswith(prefix)}
    wanted = model.state_dict()
    lacking = [key for key in wanted if key not in found]
    missing = [key for key in lacking if not may_lack(key)]
    other = [key for key in wanted if key in found and found[key].shape != wanted[key].shape]
    unknown = [key for key in found if key not in wanted and not is_head(key)]
    parts = [
        f"{len(keys)} {what} ({', '.join(keys[:_NAMED])}{', …' if len(keys) > _NAMED else ''})"
        for keys, what in (
            (missing, "are missing"),
            (other, "have another shape"),
            (unknown, "do not belong to it"),
        )
        if keys
    ]
    if parts:
        raise SgoifError(
            f"'{path}' does not fit {name}: of {len(wanted)} tensors {'; '.join(parts)}. Pass a file saved from this "
            "very model with --weights FILE."
        )
    model.load_state_dict({key: value for key, value in found.items() if key in wanted}, strict=False)
    return lacking


def _read(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a file by name."""
    if not path.is_file():
        raise SgoifError(f"there is no file '{path}'; --weights takes .safetensors or a torch state dict.")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            loaded: Any = load_file(path)
        else:
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # pickles that want to run code, damaged files, files of another kind
        text = (str(error).strip().splitlines() or [""])[0][:200]
        raise SgoifError(
            f"'{path}' cannot be read as weights: {type(error).__name__}: {text}. Save them with "
            "safetensors.torch.save_file(model.state_dict(), FILE) or torch.save(model.state_dict(), FILE)."
        ) from error
    for key in _NESTED:
        if isinstance(loaded, Mapping) and isinstance(loaded.get(key), Mapping):
            loaded = loaded[key]
            break
    tensors = {str(key): value for key, value in loaded.items() if isinstance(value, Tensor)} if _is_map(loaded) else {}
    if not tensors:
        raise SgoifError(f"'{path}' holds no tensors by name, but a {type(loaded).__name__}; save model.state_dict().")
    for wrapped in _WRAPPED:
        if all(key.startswith(wrapped) for key in tensors):
            tensors = {key.removeprefix(wrapped): value for key, value in tensors.items()}
    return tensors


def _is_map(value: Any) -> bool:
    return isinstance(value, Mapping)
