"""Errors that nobody planted: test labels of CIFAR-10, CIFAR-100 and MNIST that people judged.

The study of label errors in test sets (Northcutt, Athalye, Mueller, 2021) showed people the examples that confident
learning had flagged. A label is called wrong where fewer than three voters kept it. Every method judges the whole test
set out of fold; only the judged examples count, so this tests the order among them. The study's own probabilities,
where they were published, stand beside the others under the name ``published``; they chose the candidates.

``mnist-pixels`` takes pixels instead of the features of an ImageNet network; ``+train`` puts 20,000 train examples
beside the test set, for all methods alike.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import data, frozen
from benchmarks.data import data_root
from benchmarks.experiment import FROZEN, Experiment, option
from benchmarks.metrics import average_precision, precision_at
from benchmarks.trust import ours, tables
from benchmarks.trust.rivals import Finding, find_all, make_folds, score_by_cleanlab
from benchmarks.trust.sets import SIDE

SETS = ("mnist", "mnist-pixels", "mnist-pixels+train", "cifar10", "cifar10+train", "cifar100", "cifar100+train")
BESIDE = slice(20_000, 40_000)  # of the train set; the first 20,000 are for development
KEPT = 3  # votes for the given label that keep it


@dataclass(frozen=True, slots=True)
class Judged:
    """Test labels, and which of them people looked at."""

    labels: NDArray[np.int64]
    index: NDArray[np.int64]  # judged examples
    wrong: NDArray[np.bool_]  # of these
    published: NDArray[np.float64] | None  # the study's probabilities

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return int(self.labels.max()) + 1


def load(name: str) -> Judged:
    """Read a set's test labels, verdicts and, where there are any, published probabilities."""
    labels = _images(name, "test").labels
    with (data_root() / name / "test_label_errors.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    index = np.array([int(row["index"]) for row in rows])
    differ = labels[index] != np.array([int(row["given_label"]) for row in rows])
    if differ.any():
        raise ValueError(f"{differ.sum()} verdicts on {name} are about other labels than the test set has")
    file = data_root() / f"label_errors/{name}_test_probabilities.npy"
    published = np.load(file).astype(np.float64) if file.is_file() else None
    if published is not None:
        published = published / published.sum(1, keepdims=True)  # rounded to 16 bits as stored
    return Judged(labels, index, np.array([int(row["votes_given"]) < KEPT for row in rows]), published)


def _images(name: str, split: str) -> data.Images:
    load: dict[str, Callable[..., data.Images]]
    load = {"mnist": data.mnist, "cifar10": data.cifar10, "cifar100": data.cifar100}
    return load[name](split)


def load_rows(setting: str) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Features and labels that a method is given, the test set first."""
    features, _, beside = setting.partition("+")
    name, _, kind = features.partition("-")

    def read(split: str) -> NDArray[np.float32]:
        if kind == "pixels":
            pixels = _images(name, split).pixels
            return (pixels.reshape(len(pixels), -1) / np.float32(255)).astype(np.float32)
        embedded = {"cifar10": 50_000, "cifar100": 40_000}  # the same files as the cells of the grid
        return frozen.embeddings(split, dataset=name, side=SIDE, first=embedded.get(name) if split == "train" else None)

    rows, labels = read("test"), _images(name, "test").labels
    if beside:
        rows = np.concatenate([rows, read("train")[BESIDE]])
        labels = np.concatenate([labels, _images(name, "train").labels[BESIDE]])
    return rows, labels


def measure(found: Finding, judged: Judged) -> dict[str, Any]:
    """Figures among the judged examples, in percent."""
    score = found.score[judged.index]
    share = judged.wrong.mean()
    report = {
        "ap": 100 * average_precision(score, judged.wrong),
        "r-precision": 100 * precision_at(score, judged.wrong, share),
        "seconds": round(found.seconds, 2),
        "total": found.total,
        "reason": found.reason,
    }
    if found.flagged is not None:
        flagged = found.flagged[judged.index]
        report |= {"num_flagged": int(found.flagged.sum()), "num_judged_flagged": int(flagged.sum())}
        report["flag_recall"] = 100 * float(flagged[judged.wrong].mean())
        if flagged.any():
            report["flag_precision"] = 100 * float(judged.wrong[flagged].mean())
    return report


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One test set; the seed is that of the folds, nothing else is drawn."""

    data: str = option("mnist", SETS)
    method: str = tables.NEW
    seed: int = 1


def examine(setup: Setup) -> dict[str, Any]:
    """Run our method, or all rivals, on one test set."""
    np.random.seed(setup.seed)
    judged = load(setup.data.partition("+")[0].partition("-")[0])
    rows, labels = load_rows(setup.data)
    if setup.method == tables.RIVALS:
        found = find_all(rows, labels, judged.num_classes, make_folds(labels, setup.seed))
        if judged.published is not None:
            found |= score_by_cleanlab(judged.labels, judged.published, "published")
    else:
        found = {"ours": ours.find(rows, labels, judged.num_classes, setup.seed)}
    return {
        "examples": len(judged.index),
        "errors": int(judged.wrong.sum()),
        "report": {key: measure(item, judged) for key, item in found.items()},
    }


EXPERIMENT = Experiment(
    name="trust_real",
    settings=Setup,
    run=examine,
    tables={"trust_real": tables.real},
    file=tables.REAL_FILE,
    full={"data": SETS, "method": (tables.NEW, tables.RIVALS), "seed": (1, 2, 3)},
    needs=(*FROZEN, "cleanlab"),
    describe=lambda row: ", ".join(f"{name} AP {found['ap']:.1f}" for name, found in row["report"].items()),
)
