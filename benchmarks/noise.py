"""Noisy labels: flips drawn from a seed, and labels that people gave.

A setting is a short name such as ``pair-20``: the kind of noise and the percentage of **all** examples that it makes
wrong. Every function returns new labels and leaves the old ones alone; the errors are where the two differ. Draws come
from ``numpy.random.default_rng(seed)`` and nothing else, so a setting, a seed and the clean labels fix the noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.data import Split, cifar100_superclasses, class_conditional_labels, human_labels, long_tail

Labels = NDArray[np.int64]

# truck -> automobile, bird -> airplane, deer -> horse, cat <-> dog: the confusions of the asymmetric-noise literature.
CIFAR10_PAIRS: Mapping[int, int] = {9: 1, 2: 0, 4: 7, 3: 5, 5: 3}
MNIST_PAIRS: Mapping[int, int] = {7: 1, 2: 7, 5: 6, 6: 5, 3: 8}


def flip_pairs(labels: Labels, rate: float, seed: int, pairs: Mapping[int, int] = CIFAR10_PAIRS) -> Labels:
    """Flip ``rate`` of all examples, drawn without replacement among the source classes of ``pairs``.

    On balanced CIFAR-10 half of the examples have a source class, so ``2 rate`` of each source class is flipped.
    """
    order = np.random.default_rng(seed).permutation(len(labels))
    candidates = order[np.isin(labels[order], list(pairs))]
    flipped = candidates[: _count(rate, len(labels), len(candidates))]
    target = np.arange(max(int(labels.max(initial=0)), *pairs, *pairs.values()) + 1)
    target[list(pairs)] = list(pairs.values())
    noisy = labels.copy()
    noisy[flipped] = target[labels[flipped]]
    return noisy


def flip_symmetric(labels: Labels, rate: float, num_classes: int, seed: int) -> Labels:
    """Flip ``rate`` of all examples, each to one of the other classes with equal probability."""
    rng = np.random.default_rng(seed)
    flipped = rng.permutation(len(labels))[: _count(rate, len(labels), len(labels))]
    noisy = labels.copy()
    noisy[flipped] = (labels[flipped] + rng.integers(1, num_classes, len(flipped))) % num_classes
    return noisy


def flip_within_superclass(labels: Labels, coarse: NDArray[np.integer], rate: float, seed: int) -> Labels:
    """Flip ``rate`` of all examples, each to the next class of its superclass, the last one to the first.

    ``coarse`` is the superclass of each class, ``[num_classes]``.
    """
    following = next_in_superclass(coarse)
    flipped = np.random.default_rng(seed).permutation(len(labels))[: _count(rate, len(labels), len(labels))]
    noisy = labels.copy()
    noisy[flipped] = following[labels[flipped]]
    return noisy


def next_in_superclass(coarse: NDArray[np.integer]) -> Labels:
    """The class that follows each class within its superclass."""
    following = np.arange(len(coarse))
    for group in np.unique(coarse):
        members = np.flatnonzero(coarse == group)
        if len(members) < 2:
            raise ValueError(f"superclass {group} has one class only, so its examples have nowhere to go")
        following[members] = np.roll(members, -1)
    return following


def flip_by_pixels(labels: Labels, pixels: NDArray[np.uint8], rate: float, num_classes: int, seed: int) -> Labels:
    """Flip each example by what it shows: the instance-dependent generator of Xia et al. 2020 (part-dependent noise).

    An example flips with its own rate, drawn around ``rate`` with deviation 0.1 and kept within [0, 1], so that the
    mean lies a little above ``rate`` where that is near 0 (20.5% for 20%). Where it goes is drawn from a softmax over
    random projections of its standardised pixels, one matrix per class: pictures that look alike go the same way.
    """
    rng = np.random.default_rng(seed)
    flips = rng.random(len(labels)) < _truncated_normal(rng, rate, 0.1, len(labels))
    mean, std = pixels.mean((0, 1, 2)), pixels.std((0, 1, 2)) + 1e-9
    size = int(np.prod(pixels.shape[1:]))
    noisy = labels.copy()
    for label in range(num_classes):
        projection = rng.standard_normal((size, num_classes), dtype=np.float32)
        chosen = np.flatnonzero(flips & (labels == label))
        rows = ((pixels[chosen] - mean) / std).reshape(len(chosen), size).astype(np.float32)
        scores = (rows @ projection).astype(np.float64)
        scores[:, label] = -np.inf
        # the largest of scores with Gumbel noise is a draw from their softmax
        noisy[chosen] = (scores + rng.gumbel(size=scores.shape)).argmax(1)
    return noisy


def _truncated_normal(rng: np.random.Generator, mean: float, std: float, count: int) -> NDArray[np.float64]:
    """Draw from a normal distribution cut off at 0 and 1, drawing again what falls outside."""
    values = rng.normal(mean, std, count)
    while (outside := (values < 0) | (values > 1)).any():
        values[outside] = rng.normal(mean, std, int(outside.sum()))
    return values


HUMAN = {"cifar10": ("aggre", "worst", "random1", "random2", "random3"), "cifar100": ("noisy",)}


def settings(dataset: str = "cifar10") -> tuple[str, ...]:
    """List the settings of a dataset, with R for a percentage and S for a sparsity."""
    published = ("cl-R-S",) if dataset == "cifar10" else ()
    return ("clean", "pair-R", "sym-R", "idn-R", "tail-R", *published, *HUMAN.get(dataset, ()))


def apply(
    setting: str,
    labels: Labels,
    *,
    seed: int = 0,
    dataset: str = "cifar10",
    num_classes: int = 10,
    ids: NDArray[np.integer] | None = None,
    coarse: NDArray[np.integer] | None = None,
    pixels: NDArray[np.uint8] | None = None,
) -> Labels:
    """Make the noisy labels of a setting from clean ones.

    ``clean``, ``pair-R``, ``sym-R``, ``idn-R`` (needs ``pixels``), ``tail-R`` (as ``sym-R``, on a long tail of
    classes), ``cl-R-S`` (rate in percent, sparsity as in ``cl-40-.6``), or a set of human labels such as ``worst``.
    Published labels are those of ``ids``, else of the first examples, whatever the seed; ``coarse`` serves pairs on
    cifar100.
    """
    kind, _, rest = setting.partition("-")
    if setting == "clean":
        return labels.copy()
    if setting in HUMAN.get(dataset, ()):
        return _of_ids(human_labels(setting, dataset), ids, len(labels))
    if kind == "tail" and _is_percentage(rest):
        _check_tail(setting, labels, num_classes)
    if kind in ("sym", "tail") and _is_percentage(rest):
        return flip_symmetric(labels, float(rest) / 100, num_classes, seed)
    if kind == "idn" and _is_percentage(rest):
        if pixels is None:
            raise ValueError("instance-dependent noise needs `pixels`; pass those of the examples")
        return flip_by_pixels(labels, pixels, float(rest) / 100, num_classes, seed)
    if kind == "pair" and _is_percentage(rest):
        if dataset == "cifar100":
            if coarse is None:
                raise ValueError("pair noise on cifar100 needs `coarse`; pass benchmarks.data.cifar100_superclasses()")
            return flip_within_superclass(labels, coarse, float(rest) / 100, seed)
        pairs = {"cifar10": CIFAR10_PAIRS, "mnist": MNIST_PAIRS}
        if dataset in pairs:
            return flip_pairs(labels, float(rest) / 100, seed, pairs[dataset])
    rate, _, sparsity = rest.partition("-")
    if kind == "cl" and dataset == "cifar10" and rate.isdecimal() and _is_number(sparsity):
        return _of_ids(class_conditional_labels(int(rate), round(100 * float(sparsity))), ids, len(labels))
    raise ValueError(f"unknown noise setting {setting!r} for {dataset}; known: {', '.join(settings(dataset))}")


def thin_classes(setting: str, split: Split) -> Split:
    """Give a split the class sizes of a setting: ``tail-R`` thins train and held images 100:1, others leave both."""
    if not setting.startswith("tail-"):
        return split
    return Split(long_tail(split.train), long_tail(split.held), split.trusted)


def apply_to_split(setting: str, split: Split, seed: int = 0, dataset: str = "cifar10") -> tuple[Labels, Labels]:
    """Draw a setting's labels for the train and held images of a split, in one draw over both.

    For ``tail-R`` the split must have been :func:`thin_classes` first.
    """
    coarse = cifar100_superclasses() if dataset == "cifar100" else None
    pixels = np.concatenate([split.train.pixels, split.held.pixels]) if setting.startswith("idn-") else None
    clean = np.concatenate([split.train.labels, split.held.labels])
    ids = np.concatenate([split.train.ids, split.held.ids])
    what: dict[str, Any] = {"seed": seed, "dataset": dataset, "num_classes": split.train.num_classes}
    noisy = apply(setting, clean, **what, ids=ids, coarse=coarse, pixels=pixels)
    return noisy[: len(split.train)], noisy[len(split.train) :]


def _count(rate: float, total: int, available: int) -> int:
    count = round(rate * total)
    if not 0 <= count <= available:
        raise ValueError(f"rate {rate} asks for {count} flips, but {available} of {total} examples can be flipped")
    return count


def _check_tail(setting: str, labels: Labels, num_classes: int) -> None:
    sizes = np.bincount(labels, minlength=num_classes)
    if sizes.max() < 10 * sizes.min():
        raise ValueError(
            f"{setting} needs a long tail, but the largest class has {sizes.max()} examples and the smallest "
            f"{sizes.min()}; pass the split through benchmarks.noise.thin_classes first"
        )


def _of_ids(labels: Labels, ids: NDArray[np.integer] | None, count: int) -> Labels:
    if ids is not None and len(ids) != count:
        raise ValueError(f"expected one id per label, got {len(ids)} ids for {count} labels")
    return labels[:count] if ids is None else labels[ids]


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdecimal()


def _is_percentage(text: str) -> bool:
    return _is_number(text) and float(text) <= 100
