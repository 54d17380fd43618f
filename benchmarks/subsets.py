"""What a small network's training examples did, by retraining it on random halves.

MNIST, 784-128-64-10 with ReLU (the network of dattri's benchmark, without its dropout), SGD with momentum. The LDS of
an attribution is, for each test point, the rank correlation over random halves between the summed influence of a
half's members and the loss after training on it. Training is noisy, so even the truth would not reach 1: the *ceiling*
is estimated from how far two repeats of the same halves agree. Every retraining is kept in the cache, so that an
interrupted run goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from benchmarks import cache, data
from benchmarks.agreement import spearman

RECIPE = {"epochs": 20, "batch": 64, "lr": 0.01, "momentum": 0.9}
SETTINGS: dict[str, Any] = {"halves": 50, "repeats": 2, "scored": 100, "checkpoints": 5, **RECIPE}
State = dict[str, Tensor]


@dataclass(frozen=True)
class Digits:
    """Flat images over 255, and their labels."""

    pixels: Tensor  # [n, 784]
    labels: Tensor  # [n]

    def take(self, positions: Tensor) -> Digits:
        return Digits(self.pixels[positions], self.labels[positions])


def digits(split: str, count: int) -> Digits:
    images = data.mnist(split, count)
    pixels = torch.from_numpy(images.pixels.reshape(count, -1)).float() / 255
    return Digits(pixels, torch.from_numpy(images.labels[:count]))


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))


def train(examples: Digits, seed: int, checkpoints: int = 1) -> list[State]:
    """Train once; return so many states, evenly spaced in epochs, the last one at the end."""
    epochs = int(RECIPE["epochs"])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = network()
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=RECIPE["lr"], momentum=RECIPE["momentum"])
    states = []
    for epoch in range(1, epochs + 1):
        for rows in torch.randperm(len(examples.labels), generator=generator).split(int(RECIPE["batch"])):
            optimizer.zero_grad()
            F.cross_entropy(model(examples.pixels[rows]), examples.labels[rows]).backward()
            optimizer.step()
        if epoch * checkpoints % epochs == 0:
            states.append({name: value.detach().clone() for name, value in model.state_dict().items()})
    return states


def half_losses(training: Digits, test: Digits, members: NDArray[np.bool_], repeats: int) -> NDArray[np.float64]:
    """Train ``repeats`` times on every half, unless the cache has it, and return test losses ``[R, S, V]``."""
    found = np.empty((repeats, len(members), len(test.labels)))
    for half, row in enumerate(members):
        for repeat in range(repeats):
            key = np.packbits(row).tobytes() + json.dumps(RECIPE, sort_keys=True).encode()
            name = f"faithfulness-mlp/{hashlib.sha256(key).hexdigest()[:20]}-{repeat}.npy"
            found[repeat, half] = cache.keep(name, partial(_losses, training, test, row, 1000 * repeat + half))
        if half % 10 == 9:
            print(f"  {half + 1} of {len(members)} halves retrained", flush=True)
    return found


def _losses(training: Digits, test: Digits, row: NDArray[np.bool_], seed: int) -> NDArray[np.float32]:
    (state,) = train(training.take(torch.from_numpy(np.flatnonzero(row))), seed=seed)
    with torch.no_grad():
        logits = functional_call(network(), state, (test.pixels,))
        return F.cross_entropy(logits, test.labels, reduction="none").numpy()


def ceiling(losses: NDArray[np.float64]) -> float:
    """Estimate the LDS of a perfect attribution: ``√r``, ``r`` the reliability of the mean over repeats.

    Agreement of two repeats, by Spearman-Brown for the mean of ``R``. Ranks are treated as if they were linear.
    """
    repeats = len(losses)
    pairs = [spearman(losses[a], losses[b]).mean() for a in range(repeats) for b in range(a)]
    agreement = max(float(np.mean(pairs)), 0.0)
    return float(np.sqrt(repeats * agreement / (1 + (repeats - 1) * agreement)))
