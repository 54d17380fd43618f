"""Draws of a set with issues planted in them, and where they are.

A draw has 2,000 examples. `clean` leaves them as they are, which is not free of issues: what is found there is counted,
and a person looks at it on the whole sets (:mod:`benchmarks.checks.real`). `examples` plants issues of single examples
side by side, none in an example that has another; the other draws plant one issue of the whole set each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.checks.sets import Pool

__all__ = ["PLANTED", "Draw", "draw", "reduce_rows"]

SIZE = 2_000
_WRONG, _COPIES, _FOREIGN, _ODD = 100, 20, 40, 20
_DIMENSIONS = 64


@dataclass(frozen=True, slots=True)
class Draw:
    """A dataset, what was planted, and which examples it is."""

    features: NDArray[np.float32]  # standardised, 64 principal directions
    labels: NDArray[np.int64]
    num_classes: int
    pictures: tuple[NDArray[np.uint8], ...] = ()  # each [H, W, 3], of any size
    truth: dict[str, NDArray[np.int64]] = field(default_factory=dict)  # rows by kind
    is_planted: str = ""  # an issue of the whole set
    failing: NDArray[np.int64] | None = None  # rows whose predictions are to fail

    def take(self, rows: NDArray[np.int64]) -> Draw:
        """Some rows, in this order; nothing is planted yet."""
        pictures = tuple(self.pictures[i] for i in rows.tolist()) if self.pictures else ()
        return replace(self, features=self.features[rows], labels=self.labels[rows], pictures=pictures)


def draw(pool: Pool, planted: str, seed: int) -> Draw:
    """Draw examples and plant an issue, or several of single examples."""
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(len(pool.labels))[:SIZE]
    rows = reduce_rows(np.concatenate([pool.rows[chosen], pool.foreign[rng.permutation(len(pool.foreign))[:_FOREIGN]]]))
    pictures = () if pool.pixels is None else tuple(pool.pixels[chosen])
    clean = Draw(rows[:SIZE], pool.labels[chosen], len(pool.class_names), pictures)
    if planted == "examples":
        return _plant_examples(clean, rows[SIZE:], rng)
    return PLANTED[planted](clean, rng)


def reduce_rows(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Standardise rows and project them onto their 64 leading directions."""
    centred = (rows - rows.mean(0)) / (rows.std(0) + 1e-6)
    _, values, directions = np.linalg.svd(centred, full_matrices=False)
    del values
    return (centred @ directions[:_DIMENSIONS].T).astype(np.float32)


def _plant_examples(clean: Draw, foreign: NDArray[np.float32], rng: np.random.Generator) -> Draw:
    order = rng.permutation(SIZE)
    parts = np.split(order, np.cumsum([_WRONG, _COPIES, _COPIES, _FOREIGN, *[_ODD] * 4])[:8])
    wrong, copies, conflicts, outside, dark, bright, blurry, blank = parts[:8]
    sources = parts[8]
    features, labels, pictures = clean.features.copy(), clean.labels.copy(), list(clean.pictures)
    labels[wrong] = (labels[wrong] + rng.integers(1, clean.num_classes, _WRONG)) % clean.num_classes
    for place, source in zip(
        np.concatenate([copies, conflicts]).tolist(), sources[: 2 * _COPIES].tolist(), strict=True
    ):
        features[place], labels[place] = features[source], labels[source]
        if pictures:
            pictures[place] = pictures[source]
    labels[conflicts] = (labels[conflicts] + 1) % clean.num_classes
    features[outside] = foreign
    truth = {
        "label_errors": np.concatenate([wrong, conflicts]),
        "exact_duplicates": np.concatenate([copies, conflicts]),
        "conflicting_duplicates": conflicts,
        "outliers": outside,
    }
    if pictures:
        odd = {"dark_pictures": dark, "bright_pictures": bright, "blurry_pictures": blurry, "low_information": blank}
        for kind, rows in odd.items():
            for row in rows.tolist():
                pictures[row] = _spoil(pictures[row], kind, rng)
        truth |= odd
    return replace(clean, features=features, labels=labels, pictures=tuple(pictures), truth=truth)


def _spoil(picture: NDArray[np.uint8], kind: str, rng: np.random.Generator) -> NDArray[np.uint8]:
    from PIL import Image, ImageFilter

    if kind == "dark_pictures":
        return (picture * 0.1).astype(np.uint8)
    if kind == "bright_pictures":
        return (255 - (255 - picture) * 0.04).astype(np.uint8)
    if kind == "blurry_pictures":
        return np.asarray(Image.fromarray(np.ascontiguousarray(picture)).filter(ImageFilter.GaussianBlur(2.5)))
    return np.full_like(picture, rng.integers(60, 200))


def _without_pictures(clean: Draw) -> Draw:
    """An issue that pictures do not show is planted in the features alone, which saves Datalab the reading of them."""
    return replace(clean, pictures=())


def _rare_class(clean: Draw, rng: np.random.Generator) -> Draw:
    label = int(rng.integers(clean.num_classes))
    mine = np.flatnonzero(clean.labels == label)
    left = max(1, len(mine) // 20)
    kept = np.setdiff1d(np.arange(SIZE), mine[left:])
    return replace(_without_pictures(clean).take(kept), is_planted="class_imbalance")


def _sorted(clean: Draw, rng: np.random.Generator) -> Draw:
    del rng
    order = np.argsort(clean.labels, kind="stable")
    return replace(_without_pictures(clean).take(order), is_planted="label_order")


def _drift(clean: Draw, rng: np.random.Generator) -> Draw:
    """A random order, but for one that follows a direction of the features: a tenth of its variance."""
    direction = clean.features[:, 1] / clean.features[:, 1].std()
    kept = np.argsort(direction + 3 * rng.standard_normal(SIZE), kind="stable")
    return replace(_without_pictures(clean).take(kept), is_planted="order_within_classes")


def _sorted_drift(clean: Draw, rng: np.random.Generator) -> Draw:
    drifting = _drift(clean, rng)
    return replace(drifting.take(np.argsort(drifting.labels, kind="stable")), is_planted="order_within_classes")


def _weak_region(clean: Draw, rng: np.random.Generator) -> Draw:
    """Predictions fail for half of the 8% of examples around one of them."""
    centre = clean.features[int(rng.integers(SIZE))]
    region = np.argsort(((clean.features - centre) ** 2).sum(1))[: SIZE * 8 // 100]
    failing = rng.permutation(region)[: len(region) // 2]
    return replace(_without_pictures(clean), failing=failing, is_planted="underperforming_group")


def _dim_class(clean: Draw, rng: np.random.Generator) -> Draw:
    """All pictures of one class are taken in bad light: a third of the brightness."""
    label = int(rng.integers(clean.num_classes))
    pictures = tuple(
        (picture * 0.33).astype(np.uint8) if mine == label else picture
        for picture, mine in zip(clean.pictures, clean.labels.tolist(), strict=True)
    )
    return replace(clean, pictures=pictures, is_planted="spurious_correlation")


PLANTED: dict[str, Callable[[Draw, np.random.Generator], Draw]] = {
    "clean": lambda clean, rng: clean,
    "rare class": _rare_class,
    "sorted by class": _sorted,
    "drift": _drift,
    "drift in a sorted file": _sorted_drift,
    "weak region": _weak_region,
    "one class dim": _dim_class,
}
