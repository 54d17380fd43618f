"""What a training is given: examples, their clean labels, and the labels that they come with.

Development seeds (0 and 1) and reported ones (2 and more) draw other pictures of CIFAR-10 and Fashion-MNIST: from the
first 20,000 and from the rest. Digits and Banking77 are too small for that: seeds differ in split, noise and start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks import cache, data, noise
from benchmarks.judge.cells import Cell
from benchmarks.text_features import load_texts, make_features

TAIL = 20  # the largest class has so many times the examples of the smallest
FEW = 100  # of the hold-out `hundred`

FASHION_PAIRS: Mapping[int, int] = {0: 6, 6: 0, 2: 4, 4: 2, 7: 9, 5: 7, 9: 7, 3: 1}
DIGIT_PAIRS: Mapping[int, int] = {7: 1, 2: 7, 5: 6, 6: 5, 3: 8, 1: 4, 8: 9, 9: 8}

Labels = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pool:
    """Examples that a seed draws, training examples first."""

    inputs: Tensor
    clean: Labels
    num_held: int  # the last so many are held out
    pairs: Mapping[int, int]  # classes that are taken for each other
    people: Mapping[str, Labels]  # labels that people gave, by the name of their set

    def take(self, chosen: NDArray[np.int64]) -> Pool:
        """Some of them, in this order."""
        held = int((chosen >= len(self.clean) - self.num_held).sum())
        people = {name: labels[chosen] for name, labels in self.people.items()}
        return Pool(self.inputs[torch.from_numpy(chosen)], self.clean[chosen], held, self.pairs, people)


@dataclass(frozen=True, slots=True)
class Drawn:
    """What is trained on and what is held out, with the labels as given and the true ones."""

    inputs: Tensor
    given: Labels
    clean: Labels
    held_inputs: Tensor
    held_given: Labels
    held_clean: Labels
    num_classes: int

    def holdout(self, kind: str) -> tuple[Tensor, Tensor]:
        """The hold-out ``given``, ``trusted``, or the first ``hundred`` as given."""
        count = FEW if kind == "hundred" else len(self.held_given)
        labels = self.held_clean if kind == "trusted" else self.held_given
        return self.held_inputs[:count], torch.from_numpy(labels[:count])


def draw(cell: Cell) -> Drawn:
    """Draw the examples and the noise of a training; noise is drawn over the training set and the hold-out together."""
    pool = _POOLS[cell.data](cell.seed)
    num_classes = int(pool.clean.max()) + 1
    if cell.shape == "tail":
        pool = pool.take(thin(pool.clean, pool.num_held))
    given = _relabel(cell, pool, num_classes)
    n = len(given) - pool.num_held
    parts = pool.inputs[:n], given[:n], pool.clean[:n], pool.inputs[n:], given[n:], pool.clean[n:]
    return Drawn(*parts, num_classes)


def thin(labels: Labels, num_held: int, ratio: float = TAIL) -> NDArray[np.int64]:
    """Keep ``ratio^(-c / (C - 1))`` of each class, of the training set and of the hold-out alike; order stays."""
    last, is_held = int(labels.max()), np.arange(len(labels)) >= len(labels) - num_held
    kept = []
    for label in range(last + 1):
        for part in (False, True):
            mine = np.flatnonzero((labels == label) & (is_held == part))
            kept.append(mine[: max(1, round(len(mine) * ratio ** (-label / last)))])
    return np.sort(np.concatenate(kept))


def _relabel(cell: Cell, pool: Pool, num_classes: int) -> Labels:
    kind, _, percent = cell.noise.partition("-")
    if kind == "clean":
        return pool.clean.copy()
    if kind in pool.people:
        return pool.people[kind]
    if kind == "pair":
        return noise.flip_pairs(pool.clean, float(percent) / 100, cell.seed, pool.pairs)
    return noise.flip_symmetric(pool.clean, float(percent) / 100, num_classes, cell.seed)


def _positions(seed: int, count: int, total: int) -> NDArray[np.int64]:
    """Pictures of a seed, in a random order: seeds below 2 share the first 20,000, others the rest, and none twice."""
    rng = np.random.default_rng(77)
    first, rest = rng.permutation(data.NUM_DEVELOPMENT), rng.permutation(np.arange(data.NUM_DEVELOPMENT, total))
    pool, place = (first, seed) if seed < 2 else (rest, seed - 2)
    return np.asarray(pool[place * count : (place + 1) * count])


def _fashion(seed: int) -> Pool:
    images = data.fashion_mnist("train")
    taken = images.take(_positions(seed, 6_000, len(images)))
    return Pool(data.normalise(taken.pixels, *data.FASHION_MNIST_STATS), taken.labels, 1_000, FASHION_PAIRS, {})


def _cifar10(seed: int) -> Pool:
    images = data.cifar10("train")
    taken = images.take(_positions(seed, 7_000, len(images)))
    inputs = data.normalise(taken.pixels, *data.CIFAR10_STATS).contiguous(memory_format=torch.channels_last)
    people = {name: data.human_labels(name)[taken.ids] for name in ("aggre", "worst")}
    return Pool(inputs, taken.labels, 1_000, noise.CIFAR10_PAIRS, people)


def _digits(seed: int) -> Pool:
    from sklearn.datasets import load_digits

    found = load_digits()
    order = np.random.default_rng(seed).permutation(len(found.target))
    inputs = torch.from_numpy(found.data[order]).float() / 16
    return Pool(inputs, found.target[order].astype(np.int64), 397, DIGIT_PAIRS, {})


def _banking77(seed: int) -> Pool:
    texts, labels = load_texts("banking77")
    rows = cache.keep("judge/banking77-hashed.npy", lambda: make_features("hashed", "banking77", texts)[0])
    rows = (rows - rows.mean(0)) / np.maximum(rows.std(0), 1e-6)
    labels = labels.astype(np.int64)
    order = np.random.default_rng(seed).permutation(len(labels))[:7_500]
    return Pool(torch.from_numpy(rows[order]).float(), labels[order], 1_500, _nearest(rows, labels), {})


def _nearest(rows: NDArray[np.float32], labels: Labels) -> dict[int, int]:
    """For each class the one whose mean points the same way most."""
    means = np.stack([rows[labels == label].mean(0) for label in range(int(labels.max()) + 1)])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    alike = means @ means.T
    np.fill_diagonal(alike, -1)
    return {label: int(other) for label, other in enumerate(alike.argmax(1))}


_POOLS = {"digits": _digits, "fashion": _fashion, "cifar10": _cifar10, "banking77": _banking77}
