"""Backbones by name: frozen models that turn pictures or texts into embeddings.

``timm:NAME``, ``hf:NAME``, ``sentence:NAME``, ``torchvision:NAME`` and ``open_clip:NAME`` are models of libraries, with
the transforms that belong to them; ``module:factory`` is code of the user's own. Libraries are imported when a model is
loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from sgoif.backbones.hashed import hashed_text_features
from sgoif.backbones.names import Kind, LibraryState, describe_backbones, describe_forms, is_user_code, split_name
from sgoif.errors import SgoifError

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = [
    "Encoder",
    "Kind",
    "LibraryState",
    "describe_backbones",
    "hashed_text_features",
    "is_user_code",
    "load_encoder",
]


class Encoder(Protocol):
    """A frozen model from pictures or texts to embeddings."""

    @property
    def name(self) -> str:
        """As the user gave it: ``timm:tf_efficientnet_lite0``."""

    @property
    def takes(self) -> Kind:
        """What it embeds."""

    @property
    def side(self) -> int | None:
        """Of the square pictures that the model sees; None for texts."""

    @property
    def fingerprint(self) -> str:
        """Another value when the weights change, or the file of the user's module."""

    def embed(self, items: Sequence[Image] | Sequence[str]) -> NDArray[np.float32]:
        """Embed RGB pictures of any size, or texts: ``[B, D]``."""


def load_encoder(name: str, *, takes: Kind, weights: str | Path | None = None, device: str = "cpu") -> Encoder:
    """Load a backbone.

    Args:
        name: ``timm:NAME``, ``hf:NAME``, ``sentence:NAME``, ``torchvision:NAME``, ``open_clip:NAME/PRETRAINED`` or
            ``module:factory``. The NAME of ``hf`` and ``sentence`` may be a folder.
        takes: what it shall embed.
        weights: a file of its weights, for machines without network: safetensors or a torch state dict.
        device: where the model runs.

    Raises:
        SgoifError: The name is unknown, its library is missing, weights cannot be had or belong to another model; the
            message says what to do.
    """
    library, model = split_name(name)
    if library is not None and takes not in library.takes:
        raise SgoifError(
            f"{library.prefix}: has no models of {takes}; a backbone of {takes} is named {describe_forms(takes)}."
        )
    from sgoif.backbones.encoders import check_device

    check_device(device)
    if library is None:
        from sgoif.backbones.own import load_own

        return load_own(name, takes, weights, device)
    if library.prefix in ("hf", "sentence"):
        from sgoif.backbones import hugging_face

        if library.prefix == "hf":
            return hugging_face.load_hf(name, model, library, takes, weights, device)
        return hugging_face.load_sentence(name, model, library, weights, device)
    from sgoif.backbones import vision

    if library.prefix == "timm":
        return vision.load_timm(name, model, library, weights, device)
    if library.prefix == "torchvision":
        return vision.load_torchvision(name, model, library, weights, device)
    return vision.load_open_clip(name, model, library, takes, weights, device)
