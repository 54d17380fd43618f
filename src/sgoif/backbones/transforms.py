"""From a picture to what a model takes: scaled, cropped and normalised as the model's own configuration says.

Everything is done on PIL pictures, with the arithmetic of torchvision's transforms but without torchvision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from sgoif.errors import SgoifError

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["PictureTransform"]

_INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "box", "hamming", "lanczos")


@dataclass(frozen=True, slots=True)
class PictureTransform:
    """Scale, crop or pad to a square, and normalise.

    ``fit`` says which side is scaled to ``resize`` pixels: the ``shortest``, then the middle is cut out; the
    ``longest``, then the rest is filled; or both (``squash``), which changes the ratio of the sides.
    """

    side: int
    resize: int
    fit: Literal["shortest", "longest", "squash"]
    interpolation: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    fill: tuple[int, ...] = (0, 0, 0)

    def __post_init__(self) -> None:
        if self.interpolation not in _INTERPOLATIONS:
            raise SgoifError(
                f"the model's configuration scales pictures by {self.interpolation!r}; known are "
                f"{', '.join(_INTERPOLATIONS)}. Use it through module:factory."
            )

    def stack(self, pictures: Sequence[Image]) -> torch.Tensor:
        """Transform pictures to float32 ``[B, 3, S, S]``."""
        return torch.from_numpy(np.stack([self.apply(picture) for picture in pictures]))

    def apply(self, picture: Image) -> NDArray[np.float32]:
        """Transform one RGB picture to ``[3, S, S]``."""
        pixels = np.asarray(self._cut(self._scale(picture)), dtype=np.float32).transpose(2, 0, 1) / np.float32(255)
        mean = np.array(self.mean, np.float32)[:, None, None]
        std = np.array(self.std, np.float32)[:, None, None]
        return np.ascontiguousarray((pixels - mean) / std)

    def _scale(self, picture: Image) -> Image:
        from PIL import Image

        width, height = picture.size
        if self.fit == "squash":
            size = (self.resize, self.resize)
        elif self.fit == "longest":
            ratio = max(width, height) / self.resize
            size = (max(1, round(width / ratio)), max(1, round(height / ratio)))
        else:
            short, long = min(width, height), max(width, height)
            longer = int(self.resize * long / short)
            size = (self.resize, longer) if width <= height else (longer, self.resize)
        how: Any = Image.Resampling[self.interpolation.upper()]
        return picture if picture.size == size else picture.resize(size, how)

    def _cut(self, picture: Image) -> Image:
        from PIL import Image

        width, height = picture.size
        if width < self.side or height < self.side:
            paper = Image.new("RGB", (max(width, self.side), max(height, self.side)), self.fill)
            paper.paste(picture, (max(0, self.side - width) // 2, max(0, self.side - height) // 2))
            picture, (width, height) = paper, paper.size
        left, top = round((width - self.side) / 2), round((height - self.side) / 2)
        return picture.crop((left, top, left + self.side, top + self.side))
