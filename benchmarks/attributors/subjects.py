"""What every attributor is given: a trained model and examples. And what it is judged by: the truth by retraining.

Two subjects on MNIST, 5,000 training images and the first 100 test images. *convex*: a softmax regression at its
minimum, where exact influence, leave-one-out and random halves are all known. *mlp*: 784-128-64-10 with ReLU (the
network of dattri's benchmark, without its dropout), SGD with momentum, where retraining on random halves is the only
truth, and noisy.

The LDS of an attribution is, for each test point, the rank correlation over random halves between the summed influence
of a half's members and the loss after training on it. Training is noisy, so even the truth would not reach 1: the
*ceiling* is estimated from how far two repeats of the same halves agree. Every retraining is kept in the cache, so that
an interrupted run goes on where it stopped.

An attribution is an array ``I(i, v)``, ``[n, V]``, positive where training example i harms test point v.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from benchmarks import cache, data
from benchmarks.agreement import ceiling, pearson, spearman
from benchmarks.exactness import Removals, Subsets, Truth, draw_members, remove, retrain_subsets
from benchmarks.faithfulness import L2, mnist_problem

RECIPE = {"epochs": 20, "batch": 64, "lr": 0.01, "momentum": 0.9}
HALVES, REPEATS, CHECKPOINTS = 50, 2, 5
TRAIN, TEST = 5000, 100
ENSEMBLE_SEED = 1  # of the halves that an ensemble is trained on; those of the truth are drawn with 0

Row = dict[str, Any]
Scores = NDArray[np.float64]
State = dict[str, Tensor]
Judge = Callable[[Scores], Row]


@dataclass(frozen=True)
class Digits:
    """Flat images over 255, and their labels."""

    pixels: Tensor  # [n, 784]
    labels: Tensor  # [n]

    def take(self, positions: Tensor) -> Digits:
        return Digits(self.pixels[positions], self.labels[positions])


def read_digits(split: str, count: int) -> Digits:
    images = data.mnist(split, count)
    pixels = torch.from_numpy(images.pixels.reshape(count, -1)).float() / 255
    return Digits(pixels, torch.from_numpy(images.labels[:count]))


@dataclass(frozen=True)
class Subject:
    """A trained model and the examples whose influence on the test points is asked."""

    name: str
    make: Callable[[], nn.Module]  # the network, without its training
    states: list[State]  # checkpoints, the last one at the end
    ensemble: Callable[[int], list[State]]  # so many models, each trained on a random half
    training: Digits
    test: Digits
    learning_rate: float
    l2: float = 0.0  # of the objective

    def model(self) -> nn.Module:
        """The trained model, in eval mode."""
        model = self.make()
        model.load_state_dict(self.states[-1])
        return model.eval()


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
        key = hashlib.sha256(np.packbits(row).tobytes() + json.dumps(RECIPE, sort_keys=True).encode()).hexdigest()
        for repeat in range(repeats):

            def retrain(row: NDArray[np.bool_] = row, seed: int = 1000 * repeat + half) -> NDArray[np.float32]:
                (state,) = train(training.take(torch.from_numpy(np.flatnonzero(row))), seed)
                with torch.no_grad():
                    logits = functional_call(network(), state, (test.pixels,))
                    return F.cross_entropy(logits, test.labels, reduction="none").numpy()

            found[repeat, half] = cache.keep(f"faithfulness-mlp/{key[:20]}-{repeat}.npy", retrain)
        if half % 10 == 9:
            print(f"  {half + 1} of {len(members)} halves retrained", flush=True)
    return found


def mlp() -> tuple[Subject, Judge, Row]:
    """The network, its judge, and what is known about the truth."""
    training, test = read_digits("train", TRAIN), read_digits("test", 500)
    members = draw_members(HALVES, TRAIN, TRAIN // 2, seed=0)
    losses = half_losses(training, test, members, REPEATS)[:, :, :TEST]

    def ensemble(count: int) -> list[State]:
        halves = [
            torch.from_numpy(np.flatnonzero(row)) for row in draw_members(count, TRAIN, TRAIN // 2, ENSEMBLE_SEED)
        ]
        return [train(training.take(half), seed=500 + k)[-1] for k, half in enumerate(halves)]

    states = train(training, seed=77, checkpoints=CHECKPOINTS)
    few, rate = test.take(torch.arange(TEST)), float(RECIPE["lr"])
    subject = Subject("mlp", network, states, ensemble, training, few, learning_rate=rate)
    truth = Subsets(members, losses.mean(0))
    return subject, lambda scores: lds_row(truth, scores), {"ceiling": ceiling(losses, spearman)}


def lds_row(truth: Subsets, scores: Scores) -> Row:
    """The LDS, its standard error over test points, and how many points could not be attributed: they count as 0."""
    usable = np.isfinite(scores).all(0)  # CG on an indefinite Hessian may overflow
    lds = np.where(usable, truth.lds(np.where(usable, scores, 0.0)), 0.0)
    error = lds.std(ddof=1) / np.sqrt(len(lds))
    return {"lds": float(lds.mean()), "lds_se": float(error), "failed": int((~usable).sum())}


def convex() -> tuple[Subject, Judge, Row]:
    """The softmax regression, its judge, and what is known about the truth."""
    found = cache.keep(f"faithfulness-convex/{TRAIN}-{TEST}-{L2:g}.npz", _convex_truth)
    training, test = read_digits("train", TRAIN), read_digits("test", TEST)
    states, halves = [_state(found["theta"])], [_state(theta) for theta in found["ensemble"].T]

    def ensemble(count: int) -> list[State]:
        assert count <= len(halves), "the cache holds fewer models; empty it"
        return halves[:count]

    subject = Subject("convex", softmax_network, states, ensemble, training, test, learning_rate=1.0, l2=L2)
    removals, subsets = Removals(found["removed"], 1.0, found["changes"]), Subsets(found["members"], found["losses"])

    def judge(scores: Scores) -> Row:
        usable = np.where(np.isfinite(scores).all(0), scores, 0.0)
        return {
            "pearson": float(pearson(usable, found["scores"]).mean()),
            "spearman": float(spearman(usable, found["scores"]).mean()),
            "loo": float(removals.agreement(usable[removals.examples]).mean()),
            **lds_row(subsets, scores),
        }

    return subject, judge, {"exact": judge(found["scores"])}


def softmax_network() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 10))


def _state(theta: NDArray[np.float64]) -> State:
    block = torch.from_numpy(theta).reshape(10, -1).float()
    return {"0.weight": block[:, :-1].clone(), "0.bias": block[:, -1].clone()}


def _convex_truth() -> dict[str, NDArray[Any]]:
    """Exact scores, 200 removals, 100 halves and an ensemble of ten: minutes."""
    truth = Truth(mnist_problem("train", TRAIN), mnist_problem("test", TEST))
    removals, halves = remove(truth, 200), retrain_subsets(truth, 100, 0.5)
    weights = torch.from_numpy(draw_members(10, TRAIN, TRAIN // 2, ENSEMBLE_SEED).T / (TRAIN // 2))
    start = truth.theta.expand(-1, weights.shape[1])
    return {
        "theta": truth.theta.numpy(),
        "scores": truth.scores,
        "removed": removals.examples,
        "changes": removals.changes,
        "members": halves.members,
        "losses": halves.losses,
        "ensemble": truth.train.fit(weights, start, truth.inverse).numpy(),
    }
