"""From a recipe to what is trained on: which pictures serve which purpose, cropped, flipped and normalised."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset

from benchmarks import data, noise
from benchmarks.large.datasets import DATASETS, Pictures, Stored
from benchmarks.large.recipe import Recipe

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGENET_STATS = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_STATS = {"cifar10": data.CIFAR10_STATS, "cifar100": data.CIFAR100_STATS}
_PADDING = 4  # pixels around a small picture, of which a crop is taken
_CENTRE = 224 / 256  # the share of the shorter side that a large picture is judged by


@dataclass(frozen=True, slots=True)
class Parts:
    """What one training uses; no picture is in two of them."""

    train: Pictures
    held: Pictures
    test: Pictures


def divide(recipe: Recipe, root: Path, setting: str, seed: int, examples: int | None = None) -> Parts:
    """Load the dataset of a recipe, draw its noise and set the hold-out apart; ``examples`` trains on so many alone."""
    known = DATASETS[recipe.dataset]
    train = known.load(root, "train")
    if known.is_clean:
        train = draw_noise(recipe.dataset, train, setting, seed)
    if examples is not None:
        order = np.random.default_rng((seed, examples)).permutation(len(train))  # not the order that noise is drawn in
        train = train.take(np.sort(order[:examples]))
    pool = known.load(root, known.held)
    pool = pool.take(np.flatnonzero(~pool.is_wrong))
    source = pool if recipe.holdout == "trusted" else train
    chosen = data.first_per_class(source.given, recipe.held_per_class, len(source.class_names))
    rest = np.setdiff1d(np.arange(len(source)), chosen)
    held = source.take(chosen)
    if recipe.holdout == "as-given":
        train = train.take(rest)
    if known.test != known.held:
        return Parts(train, held, known.load(root, known.test))
    return Parts(train, held, pool.take(rest) if recipe.holdout == "trusted" else pool)


def draw_noise(dataset: str, pictures: Pictures, setting: str, seed: int) -> Pictures:
    """Take the published labels as clean, and those of a noise setting as given; ``none`` changes none."""
    clean = pictures.given
    given = clean
    if setting != "none":
        given = noise.apply(
            setting,
            clean,
            seed=seed,
            dataset=dataset,
            num_classes=len(pictures.class_names),
            coarse=data.cifar100_superclasses() if dataset == "cifar100" else None,
            pixels=pictures.pixels if isinstance(pictures, Stored) else None,
        )
    return replace(pictures, given=given, clean=clean)


@dataclass(slots=True)
class Prepared(Dataset[tuple[Tensor, int]]):
    """Pictures as a network takes them: the whole of a small one, the centre of a large one."""

    pictures: Pictures
    recipe: Recipe

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, position: int) -> tuple[Tensor, int]:
        picture, label, _ = self.pictures[position]
        width, height = picture.size
        side = min(width, height) * _CENTRE
        left, top = (width - side) / 2, (height - side) / 2
        box = None if self.recipe.stem == "small" else (left, top, left + side, top + side)
        return to_tensor(resize(picture, self.recipe.image, box), self.recipe.dataset), label


@dataclass(slots=True)
class Augmented(Dataset[tuple[Tensor, int, str]]):
    """Pictures to train on, with their ids; crops and flips depend on seed, epoch and picture alone."""

    pictures: Pictures
    recipe: Recipe
    seed: int
    epoch: int = 0

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, position: int) -> tuple[Tensor, int, str]:
        from PIL import ImageOps

        rng = np.random.default_rng((self.seed, self.epoch, position))
        picture, label, name = self.pictures[position]
        crop = crop_shifted if self.recipe.stem == "small" else crop_scaled
        picture = crop(picture, self.recipe.image, rng)
        if rng.random() < 0.5:
            picture = ImageOps.mirror(picture)
        return to_tensor(picture, self.recipe.dataset), label, name


def crop_shifted(picture: Image, side: int, rng: np.random.Generator) -> Image:
    """Shift a picture by up to four pixels each way; what comes in is black."""
    from PIL import ImageOps

    left, top = (int(number) for number in rng.integers(0, 2 * _PADDING + 1, 2))
    return ImageOps.expand(resize(picture, side), _PADDING).crop((left, top, left + side, top + side))


def crop_scaled(picture: Image, side: int, rng: np.random.Generator) -> Image:
    """Take 8 to 100% of a picture's area, 3:4 to 4:3, as is usual for ImageNet."""
    width, height = picture.size
    area, ratio = width * height * rng.uniform(0.08, 1.0), np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3)))
    wide, high = min(np.sqrt(area * ratio), width), min(np.sqrt(area / ratio), height)
    left, top = rng.uniform(0, width - wide), rng.uniform(0, height - high)
    return resize(picture, side, (left, top, left + wide, top + high))


def resize(picture: Image, side: int, box: tuple[float, float, float, float] | None = None) -> Image:
    """Scale a part of a picture, or all of it, to a square."""
    from PIL import Image

    if box is None and picture.size == (side, side):
        return picture
    return picture.resize((side, side), Image.Resampling.BILINEAR, box=box)


def to_tensor(picture: Image, dataset: str) -> Tensor:
    """Normalise by the usual channel means and standard deviations: ``[3, H, W]``."""
    return data.normalise(np.asarray(picture)[None], *_STATS.get(dataset, IMAGENET_STATS))[0]
