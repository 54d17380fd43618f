"""What every backbone becomes: an encoder of pictures or of texts, whose mistakes are reported under its name."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sgoif.backbones.names import Library, find_broken_torchvision
from sgoif.devices import send
from sgoif.errors import SgoifError
from sgoif.usercode import describe_error

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["PictureEncoder", "TextEncoder", "check_device", "count_truncated", "explain_loading", "make_fingerprint"]

Floats = NDArray[np.float32]

_VERSION = 1  # of what encoders compute; raised when the same weights would give other embeddings


@dataclass(frozen=True, slots=True)
class PictureEncoder:
    """A frozen model from pictures to embeddings."""

    name: str
    side: int
    fingerprint: str
    prepare: Callable[[Sequence[Image]], Tensor]  # to float32 [B, 3, S, S]
    forward: Callable[[Tensor], Any]
    device: str = "cpu"
    values: str = ""  # what the pixels are, for messages
    takes: Literal["pictures"] = "pictures"

    def embed(self, items: Sequence[Any]) -> Floats:
        """Embed pictures as ``[B, D]``; positions of a sequence or a map are averaged.

        Raises:
            SgoifError: The model raises, or returns something else.
        """
        inputs = self.prepare(items).contiguous(memory_format=torch.channels_last)
        given = f"the backbone {self.name!r}, given float32 pictures {list(inputs.shape)}{self.values},"
        return _run(lambda: self.forward(send(inputs, self.device)), len(items), given)


@dataclass(slots=True)
class TextEncoder:
    """A frozen model from texts to embeddings."""

    name: str
    fingerprint: str
    forward: Callable[[list[str]], Any]
    count_long: Callable[[Sequence[str]], int] = lambda texts: 0  # how many are longer than the model reads
    takes: Literal["texts"] = "texts"
    side: None = None
    num_truncated: int = field(default=0, init=False)  # texts so far of which only the beginning was read

    def embed(self, items: Sequence[Any]) -> Floats:
        """Embed texts as ``[B, D]``.

        Raises:
            SgoifError: The model raises, or returns something else.
        """
        texts = list(items)
        rows = _run(lambda: self.forward(texts), len(texts), f"the backbone {self.name!r}, given {len(texts)} texts,")
        self.num_truncated += self.count_long(texts)
        return rows


def _run(forward: Callable[[], Any], count: int, given: str) -> Floats:
    try:
        with torch.inference_mode():
            out = forward()
    except Exception as error:  # the user's code may raise anything
        raise SgoifError(f"{given} raised {describe_error(error)}.") from error
    if isinstance(out, np.ndarray) and out.dtype.kind in "buif":
        out = torch.from_numpy(np.asarray(out, dtype=np.float32))
    if not isinstance(out, Tensor) or out.dim() not in (2, 3, 4) or len(out) != count:
        found = f"a {type(out).__name__}"
        if isinstance(out, Tensor | np.ndarray):
            found = f"{'a tensor' if isinstance(out, Tensor) else 'an array'} {list(out.shape)}"
        raise SgoifError(f"{given} returned {found}; expected [{count}, D], [B, tokens, D] or [B, D, H, W].")
    out = out.float().cpu()
    if out.dim() == 4:  # [B, D, H, W]
        out = out.mean((2, 3))
    elif out.dim() == 3:  # [B, tokens, D]
        out = out.mean(1)
    return np.asarray(out.numpy(), dtype=np.float32)


def make_fingerprint(*parts: object) -> str:
    """Hash what an encoder's embeddings depend on."""
    digest = hashlib.blake2b(f"{_VERSION}".encode(), digest_size=16)
    for part in parts:
        digest.update(f"\0{part}".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def count_truncated(tokenizer: Any, texts: Sequence[str], limit: int | None) -> int:
    """Count texts of more tokens than a model reads; short ones need not be counted out, a token has a byte or more."""
    if limit is None:
        return 0
    long = [text for text in texts if len(text.encode("utf-8", "replace")) + 8 > limit]
    if not long:
        return 0
    tokens = tokenizer(long, truncation=False, add_special_tokens=True, verbose=False)["input_ids"]
    return sum(len(row) > limit for row in tokens)


def check_device(device: str) -> None:
    """Refuse a device that is not here.

    Raises:
        SgoifError: torch cannot put a tensor on it.
    """
    try:
        torch.zeros(1, device=device)
    except Exception as error:  # each backend raises its own
        text = (str(error).strip().splitlines() or [""])[0][:200].rstrip(".")
        raise SgoifError(f"the device {device!r} cannot be used: {text}. Pass cpu, cuda, cuda:1 or mps.") from error


@contextmanager
def explain_loading(name: str, library: Library, way_out: str) -> Iterator[None]:
    """Turn whatever a library raises while it loads a model into words, with a way out for machines without network."""
    try:
        yield
    except SgoifError:
        raise
    except Exception as error:
        if isinstance(error, ImportError) and find_broken_torchvision() is not None:
            raise library.explain(error) from error
        text = (str(error).strip().splitlines() or [""])[0][:300].rstrip(". ")
        raise SgoifError(
            f"the backbone {name!r} cannot be loaded: {type(error).__name__}: {text}. If it is not on this machine and "
            f"cannot be downloaded, {way_out}."
        ) from error
