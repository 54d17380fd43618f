"""Backbones of the user's own, by ``module:factory``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from sgoif.backbones.encoders import PictureEncoder, TextEncoder, make_fingerprint
from sgoif.backbones.names import Kind, describe_forms, suggest_prefix
from sgoif.errors import SgoifError
from sgoif.gradients.fingerprint import hash_weights
from sgoif.pictures.decode import square
from sgoif.usercode import describe_error, import_named, is_named

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["load_own"]

_SIDE = 224  # pixels, where the model names none


def load_own(name: str, takes: Kind, weights: str | Path | None, device: str) -> PictureEncoder | TextEncoder:
    """Call ``module:factory`` without arguments and wrap what it makes: a frozen model to embeddings.

    A model of pictures is called with float32 ``[B, 3, S, S]`` in [0, 1], without gradients; where it has an attribute
    ``input_size`` they have that side, else 224. It normalises them itself, and returns ``[B, D]``, or ``[B, tokens,
    D]`` or ``[B, D, H, W]``, which are averaged over positions. A model of texts is called with a list of strings and
    returns ``[B, D]``, as a tensor or an array.

    Raises:
        SgoifError: It cannot be found, the factory raises, or what it makes cannot be called.
    """
    made = _make(name, takes)
    if weights is not None:
        raise SgoifError(f"{name!r} takes no --weights: the factory loads its own.")
    fingerprint = make_fingerprint(name, takes, _hash_module(name))
    if isinstance(made, nn.Module):
        made.eval()
        fingerprint = make_fingerprint(fingerprint, hash_weights(made))
        made.to(device)
    if takes == "texts":
        return TextEncoder(name, fingerprint, made)
    side = int(getattr(made, "input_size", _SIDE))

    def prepare(pictures: Sequence[Image]) -> Tensor:
        pixels = torch.from_numpy(np.stack([square(picture, side) for picture in pictures]))
        return pixels.permute(0, 3, 1, 2).float().div_(255)

    return PictureEncoder(name, side, fingerprint, prepare, made, device, " in [0, 1]")


def _make(name: str, takes: Kind) -> Any:
    if not is_named(name):
        raise SgoifError(f"a backbone of {takes} is named {describe_forms(takes)}; got {name!r}.{suggest_prefix(name)}")
    try:
        factory = import_named(name, "the backbone")
    except SgoifError as error:
        cause = error.__cause__
        if not isinstance(cause, ModuleNotFoundError) or cause.name != name.partition(":")[0].partition(".")[0]:
            raise
        forms = f"Backbones of {takes} are named {describe_forms(takes)}."
        raise SgoifError(f"{error} {forms}{suggest_prefix(name)}") from error
    try:
        made = factory()
    except Exception as error:  # the user's code may raise anything
        raise SgoifError(f"the backbone {name!r}, called without arguments, raised {describe_error(error)}.") from error
    if not callable(made):
        expected = "pictures [B, 3, S, S]" if takes == "pictures" else "a list of texts"
        raise SgoifError(
            f"the backbone {name!r} made a {type(made).__name__}; expected a function or module from {expected} to "
            "embeddings [B, D]."
        )
    return made


def _hash_module(name: str) -> str:
    """Hash the file of the user's module; what it imports in turn is not looked at."""
    file = getattr(sys.modules.get(name.partition(":")[0]), "__file__", None)
    try:
        return make_fingerprint(Path(file).read_bytes().hex()) if file else ""
    except OSError:
        return ""
