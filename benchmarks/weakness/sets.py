"""The data of the cells: features that say little of the classes, and some that say enough.

Pictures: the first 3,000 train images of CIFAR-10 for development, 3,000 from 20,000 on for reports, through an
ImageNet EfficientNet-Lite0 at 96 pixels (``cifar10``), 20 random columns of that (``-columns``), cat and dog alone
(``-two``); test images 0 to 4,000 and 4,000 to 8,000 as a PCA of pixels (``-pca``) or through random convolutions
(``-convolutions``); test images from 2,000 on (``-test``, reported). Pixels of Fashion-MNIST and MNIST: two parts of
the train set. 20 classes of CIFAR-100 test images, others for every seed: of 5,000 images, among them all 2,235 whose
labels somebody suspected, or only of the rest (``-unsuspected``). Banking77 and CLINC150: hashed words of so many
intents times so many texts, drawn by the seed. ``drawn``: labels drawn from a logistic model of the features, so that
none is wrong and no model can be right. The rest are made tables, and those of scikit-learn.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import cache, data, frozen
from benchmarks.data import data_root
from benchmarks.noise import CIFAR10_PAIRS, MNIST_PAIRS
from benchmarks.trust.sets import FASHION_PAIRS, SIDE, Pool
from benchmarks.weakness import made
from sgoif.backbones import hashed_text_features

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

CAT, DOG = 3, 5
_CIFAR100 = 5_000  # test images that are embedded


def load_pool(name: str, rng: np.random.Generator, seed: int, *, is_dev: bool) -> Pool:
    """Load what a cell draws from: pictures chosen by ``rng``, texts and tables made anew for every seed."""
    base, _, kind = name.partition("-")
    made_seed = seed if is_dev else seed + 1_000
    if base == "cifar10":
        return _cifar10(kind, rng, is_dev=is_dev)
    if base == "cifar100":
        count, _, rest = kind.partition("-")
        chooser = np.random.default_rng([made_seed, 5]) if rest else rng
        return _cifar100(chooser.permutation(100)[: int(count)], is_unsuspected=bool(rest))
    if kind == "pixels":
        return _grey(base, is_dev=is_dev)
    if base in ("banking", "clinc"):
        num_classes, per_class = map(int, kind.split("x"))
        return _texts(base, num_classes, per_class, np.random.default_rng(made_seed))
    rows, labels = made.make(name, made_seed) if name in made.TABLES else _scikit(name)
    pairs = np.roll(np.arange(labels.max() + 1), -1)
    if name == "digits":
        pairs = _pairs(MNIST_PAIRS)
    elif name == "friedman":
        pairs = np.array([1, 2, 1])  # the next third
    return Pool(rows.astype(np.float32), labels.astype(np.int64), pairs)


def _pairs(mapping: Mapping[int, int]) -> Ints:
    found = np.full(10, -1, np.int64)
    found[list(mapping)] = list(mapping.values())
    return found


def _cifar10(kind: str, rng: np.random.Generator, *, is_dev: bool) -> Pool:
    pairs = _pairs(CIFAR10_PAIRS)
    if kind in ("pca", "convolutions"):
        rows, labels = (_pca if kind == "pca" else _convolutions)(is_dev)
        return Pool(rows, labels, pairs)
    if kind == "test":
        if is_dev:
            raise ValueError("cifar10-test is reported only")
        return Pool(_embedded("cifar10", "test", 2_000, 10_000), data.cifar10("test").labels[2_000:], pairs)
    start = 0 if is_dev else 20_000
    mine = slice(start, start + 3_000)
    rows, labels = _embedded("cifar10", "train", mine.start, mine.stop), data.cifar10("train").labels[mine]
    if kind == "columns":
        rows = rows[:, rng.permutation(rows.shape[1])[:20]]
    pool = Pool(rows, labels, pairs, data.human_labels("worst")[mine])
    if kind == "two":
        pool = pool.take(np.flatnonzero(np.isin(labels, (CAT, DOG))))
        return Pool(pool.rows, (pool.labels == DOG).astype(np.int64), np.array([1, 0]))
    return pool


@lru_cache(maxsize=2)
def _embedded(dataset: str, split: str, start: int, stop: int) -> Floats:
    """Features of some pictures that stand together."""
    load = {"cifar10": data.cifar10, "cifar100": data.cifar100}[dataset]
    name = f"{dataset}-{split}-{start}-{stop}-efficientnet-lite0-{SIDE}px-float32.npy"
    return cache.keep(name, lambda: frozen.embed(load(split).pixels[start:stop], side=SIDE, is_exact=True))


@lru_cache(maxsize=2)
def _test_pictures(is_dev: bool) -> data.Images:
    return data.cifar10("test").take(slice(0, 4_000) if is_dev else slice(4_000, 8_000))


@lru_cache(maxsize=2)
def _pca(is_dev: bool) -> tuple[Floats, Ints]:
    from sklearn.decomposition import PCA

    images = _test_pictures(is_dev)
    flat = images.pixels.reshape(len(images), -1).astype(np.float32) / 255
    return PCA(64, random_state=0).fit_transform(flat).astype(np.float32), images.labels


@lru_cache(maxsize=2)
def _convolutions(is_dev: bool) -> tuple[Floats, Ints]:
    """128 patches of 6 x 6 pixels of the pictures themselves as filters, and a mean over each quarter."""
    images, generator = _test_pictures(is_dev), torch.Generator().manual_seed(0)
    pictures = torch.from_numpy(images.pixels).permute(0, 3, 1, 2).float() / 255
    pictures = (pictures - pictures.mean((0, 2, 3), keepdim=True)) / pictures.std((0, 2, 3), keepdim=True)

    def patch() -> torch.Tensor:
        image, top, left = (int(torch.randint(0, most, (1,), generator=generator)) for most in (len(pictures), 26, 26))
        return pictures[image, :, top : top + 6, left : left + 6]

    filters = torch.stack([patch() for _ in range(128)])
    filters = filters - filters.mean((1, 2, 3), keepdim=True)
    filters = filters / filters.flatten(1).norm(dim=1)[:, None, None, None]
    found = []
    for some in pictures.split(500):
        maps = torch.relu(torch.nn.functional.conv2d(some, filters) - 1.0)
        found.append(torch.nn.functional.adaptive_avg_pool2d(maps, 2).flatten(1))
    return torch.cat(found).numpy(), images.labels


def _grey(name: str, *, is_dev: bool) -> Pool:
    load, half = (data.fashion_mnist, 20_000) if name == "fashion" else (data.mnist, 30_000)
    images = load("train").take(slice(0, half) if is_dev else slice(half, 2 * half))
    rows = (images.pixels.reshape(half, -1) / np.float32(255)).astype(np.float32)
    return Pool(rows, images.labels, _pairs(FASHION_PAIRS if name == "fashion" else MNIST_PAIRS))


def _cifar100(classes: Ints, *, is_unsuspected: bool) -> Pool:
    labels = data.cifar100("test").labels
    with (data_root() / "cifar100/test_label_errors.csv").open(newline="") as lines:
        suspected = np.unique([int(row["index"]) for row in csv.DictReader(lines)])
    others = np.setdiff1d(np.arange(len(labels)), suspected)[: _CIFAR100 - len(suspected)]
    embedded = np.sort(np.concatenate([suspected, others]))

    def embed() -> Floats:
        return frozen.embed(data.cifar100("test").pixels[embedded], side=SIDE, is_exact=True)

    rows = cache.keep(f"cifar100-test-{len(embedded)}-suspected-efficientnet-lite0-{SIDE}px-float32.npy", embed)
    is_mine = np.isin(labels[embedded], classes)
    if is_unsuspected:
        is_mine &= ~np.isin(embedded, suspected)
    codes = np.searchsorted(np.sort(classes), labels[embedded][is_mine])
    return Pool(rows[is_mine], codes, _nearest(rows[is_mine], codes, len(classes)))


def _nearest(rows: Floats, labels: Ints, num_classes: int) -> Ints:
    """The class of the nearest mean, by angle."""
    means = np.stack([rows[labels == label].mean(0) for label in range(num_classes)])
    means /= np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-9)
    return np.asarray((means @ means.T - 2 * np.eye(num_classes)).argmax(1), dtype=np.int64)


def _texts(name: str, num_classes: int, per_class: int, rng: np.random.Generator) -> Pool:
    whole = _banking() if name == "banking" else _clinc()
    chosen = rng.choice(sorted({intent for _, intent in whole}), num_classes, replace=False)
    intents = chosen.tolist() if name == "banking" else sorted(chosen.tolist())
    texts, labels = [], []
    for label, intent in enumerate(intents):
        mine = [text for text, other in whole if other == intent]
        count = min(per_class, len(mine))
        some = rng.permutation(mine)[:count] if name == "banking" else rng.choice(mine, count, replace=False)
        texts += [str(text) for text in some]
        labels += [label] * count
    order = rng.permutation(len(texts))
    mixed, codes = [texts[place] for place in order], np.array(labels, np.int64)[order]
    rows = hashed_text_features(lambda: mixed, len(mixed))
    return Pool(rows, codes, _nearest(rows, codes, num_classes))


def _banking() -> list[tuple[str, str]]:
    with (data_root() / "text/banking77/train.csv").open(newline="") as lines:
        return [(row["text"], row["category"]) for row in csv.DictReader(lines)]


def _clinc() -> list[tuple[str, str]]:
    whole = json.loads((data_root() / "text/clinc150/data_full.json").read_text())
    return [(text, intent) for text, intent in whole["train"]]


def _scikit(name: str) -> tuple[NDArray[np.float64], Ints]:
    from sklearn import datasets

    found = getattr(datasets, f"load_{name}")()
    return found.data, found.target.astype(np.int64)
