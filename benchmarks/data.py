"""Image data for benchmarks and tests: where it lives, how it is decoded, and which part serves which purpose.

Pixels are ``uint8`` in NHWC order, labels ``int64`` counted from 0, both in the original order of the dataset. An
example is known by its id, the position in the original split, and keeps it through every subset.

CIFAR-10 is divided once for all benchmarks: the first 20,000 train images are for development (:func:`development`) and
never reported on; reported numbers come from seeded subsets of the other 30,000 (:func:`reported`) or the whole set.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks import cache

# Channel means and standard deviations of the train pixels, scaled to [0, 1]: ``normalise(pixels, *CIFAR10_STATS)``.
CIFAR10_STATS = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
CIFAR100_STATS = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
MNIST_STATS = ((0.1307,), (0.3081,))
FASHION_MNIST_STATS = ((0.2860,), (0.3530,))

NUM_DEVELOPMENT = 20_000  # the first so many CIFAR-10 train images are tuned on, and never reported on

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FASHION_CLASSES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)


class DataMissing(FileNotFoundError):
    """The image data, or one file of it, is not where it is looked for."""


@dataclass(frozen=True, slots=True)
class Images:
    """Decoded images with their labels, class names and dataset ids."""

    pixels: NDArray[np.uint8]  # [N, H, W, C]
    labels: NDArray[np.int64]  # [N]
    class_names: tuple[str, ...]
    ids: NDArray[np.int64]  # [N], positions in the original split

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    def take(self, positions: NDArray[np.integer] | slice) -> Images:
        """Select by position, keeping the ids."""
        return Images(self.pixels[positions], self.labels[positions], self.class_names, self.ids[positions])

    def relabel(self, labels: NDArray[np.integer]) -> Images:
        """Give the same images other labels."""
        if len(labels) != len(self):
            raise ValueError(f"expected {len(self)} labels, got {len(labels)}")
        return replace(self, labels=labels.astype(np.int64))


@dataclass(frozen=True, slots=True)
class Split:
    """What one experiment uses: images to train on, images held back from training, and a trusted hold-out.

    Labels are the clean ones. Noise is drawn over ``train`` and ``held`` together, in that order
    (:func:`benchmarks.noise.apply_to_split`), since a user's hold-out comes from the same noisy source.
    """

    train: Images
    held: Images
    trusted: Images


def data_root() -> Path:
    """Find the folder of the image data: ``SGOIF_DATA``, else ``../shared/data`` beside the checkout."""
    named = os.environ.get("SGOIF_DATA")
    root = Path(named) if named else Path(__file__).resolve().parents[2] / "shared" / "data"
    if not root.is_dir():
        source = "SGOIF_DATA names" if named else "SGOIF_DATA is not set, and the default is"
        raise DataMissing(
            f"no image data: {source} '{root}', which is not a folder. "
            "Set SGOIF_DATA to the folder that holds cifar10/, mnist/ and the others."
        )
    return root


def cifar10(split: str = "train", limit: int | None = None) -> Images:
    """Load CIFAR-10 ``train`` (50,000) or ``test`` (10,000), exact pixels; at most the first ``limit``."""
    path = _file("cifar10", f"{_check_split(split)}_lossless.parquet")
    pixels = _cached(path, "cifar10", limit, lambda count: _decode(path, "webp", count))
    return _images(pixels, _column(path, "label"), CIFAR10_CLASSES)


def cifar100(split: str = "train", limit: int | None = None) -> Images:
    """Load CIFAR-100 ``train`` (50,000) or ``test`` (10,000) with fine labels; pixels went through JPEG."""
    path = _file("cifar100", f"{_check_split(split)}.parquet")
    pixels = _cached(path, "cifar100", limit, lambda count: _decode(path, "jpeg", count))
    return _images(pixels, _column(path, "label"), tuple(row["name"] for row in _cifar100_classes()))


def cifar100_superclasses() -> NDArray[np.int64]:
    """Give the superclass, 0 to 19, of each of the 100 classes: ``[100]``."""
    return np.array([int(row["coarse_label"]) for row in _cifar100_classes()], dtype=np.int64)


def mnist(split: str = "train", limit: int | None = None) -> Images:
    """Load MNIST ``train`` (60,000) or ``test`` (10,000): ``[N, 28, 28, 1]``."""
    return _grey("mnist", split, limit, tuple("0123456789"))


def fashion_mnist(split: str = "train", limit: int | None = None) -> Images:
    """Load Fashion-MNIST ``train`` (60,000) or ``test`` (10,000): ``[N, 28, 28, 1]``."""
    return _grey("fashion_mnist", split, limit, FASHION_CLASSES)


def pictures(folder: str, name: str, column: str = "images") -> NDArray[np.uint8]:
    """Load the pixels of any stored set: a column of a Parquet file, or an array of an .npz."""
    path = _file(folder, name)
    if path.suffix == ".parquet":
        return _cached(path, folder, None, lambda count: _decode(path, column, count))
    with np.load(path) as arrays:
        return np.asarray(arrays[column], dtype=np.uint8)


def human_labels(name: str, dataset: str = "cifar10") -> NDArray[np.int64]:
    """Read the labels that people gave to all 50,000 train images (CIFAR-N), by the name of their set."""
    files = {"cifar10": "cifar10n_labels.npz", "cifar100": "cifar100n_labels.npz"}
    if dataset not in files:
        raise ValueError(f"human labels exist for {', '.join(files)}, got {dataset!r}")
    return _labels_in(_file(dataset, files[dataset]), name, hidden=("transition_counts",))


def class_conditional_labels(rate: int, sparsity: int) -> NDArray[np.int64]:
    """Read the noisy CIFAR-10 train labels of the confident-learning study, by percent wrong and percent sparse."""
    return _labels_in(_file("cifar10", "cl_noise_labels.npz"), f"noise{rate}_sparsity{sparsity:02d}")


def confident_learning_probabilities(rate: int, sparsity: int) -> NDArray[np.float64]:
    """Read the out-of-sample probabilities, ``[50000, 10]``, that were published with those labels (ResNet-50)."""
    path = _file("cifar10", "cl_noise_crossval_probs.npz")
    with np.load(path) as arrays:
        found: NDArray[np.float64] = arrays[f"noise{rate}_sparsity{sparsity:02d}"].astype(np.float64)
    return found


def normalise(pixels: NDArray[np.uint8], mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Scale ``uint8`` NHWC pixels to [0, 1], then by channel to ``(x - mean) / std``: float32 NCHW."""
    channels = pixels.shape[-1]
    if len(mean) != channels or len(std) != channels:
        raise ValueError(f"pixels have {channels} channels, but mean has {len(mean)} and std {len(std)}")
    scaled = torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))).float().div_(255)
    shape = (1, channels, 1, 1)
    return scaled.sub_(torch.tensor(mean).view(shape)).div_(torch.tensor(std).view(shape))


def development(n: int = NUM_DEVELOPMENT, held: int = 2_000) -> Split:
    """Take the first ``n`` CIFAR-10 train images to tune on, and hold back the ``held`` images after the 20,000th."""
    if n > NUM_DEVELOPMENT:
        raise ValueError(f"the development set has {NUM_DEVELOPMENT} images, got n={n}")
    images = cifar10("train")
    after = slice(NUM_DEVELOPMENT, NUM_DEVELOPMENT + held)
    return Split(images.take(slice(0, n)), images.take(after), trusted_holdout())


def reported(n: int = NUM_DEVELOPMENT, seed: int = 1, held: int = 2_000) -> Split:
    """Draw ``n`` train and ``held`` other images from the 30,000 CIFAR-10 train images outside development.

    The draw is without replacement and depends on ``seed`` alone; both parts are in dataset order.
    """
    images = cifar10("train")
    rest = np.arange(NUM_DEVELOPMENT, len(images))
    if n + held > len(rest):
        raise ValueError(f"{len(rest)} images lie outside development, got n={n} and held={held}")
    order = np.random.default_rng(seed).permutation(rest)
    return Split(images.take(np.sort(order[:n])), images.take(np.sort(order[n : n + held])), trusted_holdout())


def draw(split: str, n: int, seed: int) -> Split:
    """The ``development`` set, or what a seed draws of the ``reported`` one."""
    return development(n) if split == "development" else reported(n, seed)


def reported_cifar100(n: int = 30_000, seed: int = 1, held: int = 3_000) -> Split:
    """Draw ``n`` train and ``held`` other images from CIFAR-100, on which nothing is tuned; 10 trusted per class."""
    images = cifar100("train")
    order = np.random.default_rng(seed).permutation(len(images))
    trusted = trusted_holdout(10, cifar100("test"))
    return Split(images.take(np.sort(order[:n])), images.take(np.sort(order[n : n + held])), trusted)


def trusted_holdout(per_class: int = 100, images: Images | None = None) -> Images:
    """Take the first ``per_class`` test images of each class (of CIFAR-10), with their clean labels, class by class."""
    images = cifar10("test") if images is None else images
    return images.take(first_per_class(images.labels, per_class, images.num_classes))


def as_given_holdout(held: Images, given: NDArray[np.integer], per_class: int = 100) -> Images:
    """Take the first ``per_class`` held images of each *given* class, labelled as given, class by class.

    A class that was given to fewer than ``per_class`` held images contributes all of them.
    """
    return held.relabel(given).take(first_per_class(given, per_class, held.num_classes))


def long_tail(images: Images, ratio: float = 100) -> Images:
    """Keep the first ``ratio^(-c / (C - 1))`` of class ``c``, one image at least: sizes fall exponentially to 1:ratio.

    The long tail of Cui et al. 2019; which class is large depends on its number alone. Images stay in their order.
    """
    last = max(images.num_classes - 1, 1)
    of_class = [np.flatnonzero(images.labels == label) for label in range(images.num_classes)]
    kept = [found[: max(1, round(len(found) * ratio ** (-c / last)))] for c, found in enumerate(of_class)]
    return images.take(np.sort(np.concatenate(kept)))


def first_per_class(labels: NDArray[np.integer], count: int, num_classes: int) -> NDArray[np.int64]:
    """Find the positions of the first ``count`` examples of each class, class by class."""
    return np.concatenate([np.flatnonzero(labels == label)[:count] for label in range(num_classes)]).astype(np.int64)


def _check_split(split: str) -> str:
    if split not in ("train", "test"):
        raise ValueError(f"split must be 'train' or 'test', got {split!r}")
    return split


def _file(*parts: str) -> Path:
    path = data_root().joinpath(*parts)
    if not path.is_file():
        raise DataMissing(f"'{path}' is missing; SGOIF_DATA must name the folder that holds {'/'.join(parts)}")
    return path


def _images(pixels: NDArray[np.uint8], labels: NDArray[np.int64], class_names: tuple[str, ...]) -> Images:
    count = len(pixels)
    return Images(pixels, labels[:count], class_names, np.arange(count, dtype=np.int64))


def _grey(name: str, split: str, limit: int | None, class_names: tuple[str, ...]) -> Images:
    path = _file(name, f"{_check_split(split)}.npz")
    with np.load(path) as arrays:
        labels = arrays["labels"].astype(np.int64)
        pixels = _cached(path, name, limit, lambda count: arrays["images"][:count])
    return _images(pixels, labels, class_names)


def _labels_in(path: Path, name: str, hidden: tuple[str, ...] = ()) -> NDArray[np.int64]:
    with np.load(path) as arrays:
        known = [key for key in arrays.files if key not in hidden]
        if name not in known:
            raise ValueError(f"{path.name} holds {', '.join(known)}, got {name!r}")
        return np.asarray(arrays[name], dtype=np.int64)


def _cifar100_classes() -> list[dict[str, str]]:
    with _file("cifar100", "classes.tsv").open(newline="") as lines:
        return sorted(csv.DictReader(lines, delimiter="\t"), key=lambda row: int(row["label"]))


def _column(path: Path, name: str) -> NDArray[np.int64]:
    import pyarrow.parquet as pq

    return np.asarray(pq.read_table(path, columns=[name])[name].to_numpy(), dtype=np.int64)


def _decode(path: Path, column: str, count: int | None) -> NDArray[np.uint8]:
    import pyarrow.parquet as pq
    from PIL import Image

    encoded = pq.read_table(path, columns=[column])[column].slice(0, count).to_pylist()
    return np.stack([np.asarray(Image.open(io.BytesIO(data)).convert("RGB")) for data in encoded])


def _cached(
    path: Path, dataset: str, limit: int | None, decode: Callable[[int | None], NDArray[np.uint8]]
) -> NDArray[np.uint8]:
    """Read decoded pixels from the cache, filling it first when the whole file is asked for.

    The cache file is named after the dataset, the file and its size, so that a changed file is decoded anew. With a
    ``limit`` and no cache only so many images are decoded, and nothing is written.
    """
    name = f"{dataset}-{path.stem}-{path.stat().st_size}.npy"
    if limit is not None and not (cache.folder() / name).exists():
        return decode(limit)
    return np.array(cache.keep(name, lambda: decode(None))[:limit])
