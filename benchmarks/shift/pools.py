"""What a network sees of the images of all streams, computed once: test images as they are, made worse, and CIFAR-100.

All are lossless, so that no stream is told by its compression but the one that is compressed.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import data
from benchmarks.ood.subjects import BATCH, Subject, prepare
from benchmarks.shift.corruptions import CORRUPTIONS, corrupted
from sgoif.features.extraction import HeadFeatures, concatenate_features, extract_features, find_layers
from sgoif.gradients import quiet_eval

__all__ = ["CLEAN", "NUM_CORRUPTED", "OTHER", "Pools", "names"]

CLEAN, OTHER = "clean", "CIFAR-100"
NUM_CORRUPTED = 5_000  # the first test images


def names() -> list[str]:
    """All pools; a corruption's is called by its kind and strength."""
    made_worse = [f"{kind} {strength:g}" for kind, strengths in CORRUPTIONS.items() for strength in strengths]
    return [CLEAN, OTHER, *made_worse]


class Pools:
    """What one network of the out-of-distribution benchmark sees, read from the cache or computed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._subject: Subject | None = None
        root = Path(os.environ.get("SGOIF_CACHE") or Path.home() / ".cache" / "sgoif")
        self._folder = root / "shift" / f"cifar10-{seed}"

    @property
    def subject(self) -> Subject:
        if self._subject is None:
            self._subject = prepare("cifar10", self.seed)
        return self._subject

    def seen(self, name: str) -> HeadFeatures:
        path = self._folder / f"{name.replace(' ', '-')}.pt"
        if not path.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            found = self._look(_pixels(name))
            partial = path.with_suffix(f".{os.getpid()}.part")
            torch.save((found.features, found.logits, dict(found.pooled)), partial)
            os.replace(partial, path)
        return HeadFeatures(*torch.load(path, weights_only=True))

    def _look(self, pixels: NDArray[np.uint8]) -> HeadFeatures:
        model, inputs = self.subject.model, self.subject.inputs(pixels)
        head, layers = find_layers(model, model, inputs[:8], None)
        with quiet_eval(model):
            return concatenate_features(
                [extract_features(model, model, part, head, layers) for part in inputs.split(BATCH)]
            )


def _pixels(name: str) -> NDArray[np.uint8]:
    if name == OTHER:
        return data.pictures("cifar100", "test_lossless_first2000.parquet", "webp")
    test = data.cifar10("test").pixels
    if name == CLEAN:
        return test
    kind, strength = name.split(" ")
    return corrupted(test[:NUM_CORRUPTED], kind, float(strength))


def main() -> None:
    parser = argparse.ArgumentParser(description="Look at all images ahead of the measurement.")
    parser.add_argument("--seeds", default="1,2,3")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for seed in map(int, options.seeds.split(",")):
        pools = Pools(seed)
        for name in names():
            started = time.perf_counter()
            pools.seen(name)
            print(f"{seed} {name}: {time.perf_counter() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
