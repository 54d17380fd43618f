"""Generators that a dataset keeps for itself are as found after a read, wherever it keeps them."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset

import sgoif
from sgoif.influence import HoldOut
from sgoif.rng import find_generators

MAKERS = {
    "torch": (lambda: torch.Generator().manual_seed(0), lambda g: torch.rand((), generator=g).item()),
    "numpy": (lambda: np.random.default_rng(0), lambda g: g.random()),
    "numpy, legacy": (lambda: np.random.RandomState(0), lambda g: g.rand()),
    "python": (lambda: random.Random(0), lambda g: g.random()),
}


class Jitter:
    def __init__(self, name):
        make, self.draw = MAKERS[name]
        self.generator = make()

    def __call__(self, pixels):
        return pixels + self.draw(self.generator)


class Compose:
    def __init__(self, *transforms):
        self.transforms = list(transforms)

    def __call__(self, pixels):
        for transform in self.transforms:
            pixels = transform(pixels)
        return pixels


class Augmented(Dataset):
    def __init__(self, name):
        self.transform = Compose(Jitter(name))

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return self.transform(torch.zeros(3)), index % 3


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("wrap", [lambda d: d, lambda d: sgoif.with_ids(Subset(d, range(6))), DataLoader])
def test_a_dataset_draws_on_as_if_it_had_not_been_read(name, wrap):
    read, left = Augmented(name), Augmented(name)
    held = HoldOut(wrap(read))
    held.inputs(torch.arange(3))
    assert torch.equal(read[0][0], left[0][0])


def test_long_containers_and_circles_end():
    values = [object() for _ in range(100_000)]
    items = [{"self": None, "values": values} for _ in range(1000)]
    items[0]["self"] = items
    generator = random.Random()
    assert find_generators(items, {"deep": [(generator,)]}) == [generator]
