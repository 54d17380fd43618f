"""A multi-label set of real pictures: collages of one to four of them at half size, tagged with their classes.

Development draws its pictures from the first 20,000 train images of the source, reported collages from the others, and
the hold-out from the test images: no picture is in two of the three. Wrong tags are planted in the training collages
(and in the hold-out where it is as given).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks import data

SOURCES = {"cifar10": data.cifar10, "fashion": data.fashion_mnist}
NOISES = ("uniform", "swap")
# Who is taken for whom in a swap: the class that looks most alike.
LOOKALIKE = {
    "cifar10": (8, 9, 4, 5, 7, 3, 4, 4, 0, 1),
    "fashion": (6, 3, 4, 1, 2, 7, 0, 9, 3, 7),
}


@dataclass(frozen=True, slots=True)
class Collages:
    """Pictures of ``2 × 2`` cells, some of them empty."""

    pixels: NDArray[np.uint8]  # [N, H, W, channels]
    tags: NDArray[np.bool_]  # [N, C], the true ones
    class_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Noise:
    """Tags as given, and where they are wrong."""

    given: NDArray[np.bool_]  # [N, C]
    wrong: NDArray[np.bool_]


def draw_collages(source: str, part: str, count: int, seed: int) -> Collages:
    """Draw collages: ``part`` is ``development``, ``reported`` or ``held``."""
    images = SOURCES[source]("test" if part == "held" else "train")
    edge = data.NUM_DEVELOPMENT
    pool = {"development": slice(0, edge), "reported": slice(edge, None), "held": slice(None)}[part]
    pixels, labels = _halve(images.pixels[pool]), images.labels[pool]
    rng = np.random.default_rng((seed, len(part)))
    who, filled = rng.integers(0, len(labels), (count, 4)), np.arange(4) < rng.integers(1, 5, (count, 1))
    filled = rng.permuted(filled, axis=1)
    height, width, channels = pixels.shape[1:]
    canvas = np.zeros((count, 2, height, 2, width, channels), np.uint8)
    tags = np.zeros((count, images.num_classes), bool)
    for cell in range(4):
        mine = np.flatnonzero(filled[:, cell])
        canvas[mine, cell // 2, :, cell % 2] = pixels[who[mine, cell]]
        tags[mine, labels[who[mine, cell]]] = True
    return Collages(canvas.reshape(count, 2 * height, 2 * width, channels), tags, images.class_names)


def _halve(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Means of 2 × 2 pixels, so that a collage is as large as one picture was."""
    count, height, width, channels = pixels.shape
    blocks = pixels.reshape(count, height // 2, 2, width // 2, 2, channels)
    return np.rint(blocks.mean((2, 4), dtype=np.float32)).astype(np.uint8)


def plant_errors(noise: str, source: str, tags: NDArray[np.bool_], rate: float, seed: int) -> Noise:
    """Plant wrong tags: ``uniform`` drops a share ``rate`` of the tags and adds as many anywhere; ``swap`` replaces the
    same share by the tag of a class that looks alike, so that one is missing and (mostly) one is extra.
    """
    rng = np.random.default_rng((seed, 7))
    row, tag = np.nonzero(tags)
    chosen = rng.permutation(len(row))[: round(rate * len(row))]
    given = tags.copy()
    given[row[chosen], tag[chosen]] = False
    if noise == "uniform":
        absent = np.flatnonzero(~tags)
        given.flat[rng.choice(absent, len(chosen), replace=False)] = True
    elif noise == "swap":
        given[row[chosen], np.array(LOOKALIKE[source])[tag[chosen]]] = True
    else:
        raise ValueError(f"noise must be one of {', '.join(NOISES)}, got {noise!r}")
    return Noise(given, given != tags)
