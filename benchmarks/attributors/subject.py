"""What every attributor is given: a trained model and examples. And what it is judged by: the truth by retraining.

Two subjects on MNIST, 5,000 training images and the first 100 test images. *convex*: a softmax regression at its
minimum, where exact influence, leave-one-out and random halves are all known. *mlp*: a small network
(:mod:`benchmarks.subsets`), where random halves are the only truth, and noisy.

An attribution is an array ``I(i, v)``, ``[n, V]``, positive where training example i harms test point v.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks import cache, subsets
from benchmarks.agreement import pearson, spearman
from benchmarks.exactness import Removals, Subsets, Truth, remove, retrain_subsets
from benchmarks.faithfulness import L2, mnist_problem
from benchmarks.subsets import SETTINGS, Digits, State, digits

__all__ = ["Judge", "Scores", "Subject", "convex", "mlp"]

Row = dict[str, Any]
Scores = NDArray[np.float64]
Judge = Callable[[Scores], Row]
TRAIN, TEST = 5000, 100
ENSEMBLE_SEED = 1  # of the halves that an ensemble is trained on; those of the truth are drawn with 0


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


# --- the network ---


def mlp() -> tuple[Subject, Judge, Row]:
    """The network, its judge, and what is known about the truth."""
    training, test = digits("train", TRAIN), digits("test", 500)
    members = random_halves(SETTINGS["halves"], TRAIN, seed=0)
    losses = subsets.half_losses(training, test, members, SETTINGS["repeats"])[:, :, :TEST]
    states = subsets.train(training, seed=77, checkpoints=SETTINGS["checkpoints"])

    def ensemble(count: int) -> list[State]:
        halves = [torch.from_numpy(np.flatnonzero(row)) for row in random_halves(count, TRAIN, ENSEMBLE_SEED)]
        return [subsets.train(training.take(half), seed=500 + k)[-1] for k, half in enumerate(halves)]

    subject = Subject(
        "mlp",
        subsets.network,
        states,
        ensemble,
        training,
        test.take(torch.arange(TEST)),
        learning_rate=float(subsets.RECIPE["lr"]),
    )
    truth = Subsets(members, losses.mean(0))
    return subject, lambda scores: lds_row(truth, scores), {"ceiling": subsets.ceiling(losses)}


def random_halves(count: int, size: int, seed: int) -> NDArray[np.bool_]:
    rng = np.random.default_rng(seed)
    members = np.zeros((count, size), dtype=bool)
    for row in members:
        row[rng.choice(size, size // 2, replace=False)] = True
    return members


def lds_row(truth: Subsets, scores: Scores) -> Row:
    """The LDS, its standard error over test points, and how many points could not be attributed: they count as 0."""
    usable = np.isfinite(scores).all(0)  # CG on an indefinite Hessian may overflow
    lds = np.where(usable, truth.lds(np.where(usable, scores, 0.0)), 0.0)
    error = lds.std(ddof=1) / np.sqrt(len(lds))
    return {"lds": float(lds.mean()), "lds_se": float(error), "failed": int((~usable).sum())}


# --- the softmax regression ---


def convex() -> tuple[Subject, Judge, Row]:
    """The softmax regression, its judge, and what is known about the truth."""
    found = _convex_truth()
    training, test = digits("train", TRAIN), digits("test", TEST)

    def ensemble(count: int) -> list[State]:
        assert count <= found["ensemble"].shape[1], "the cache holds fewer models; empty it"
        return [_state(torch.from_numpy(theta)) for theta in found["ensemble"].T[:count]]

    subject = Subject(
        "convex",
        softmax_network,
        [_state(torch.from_numpy(found["theta"]))],
        ensemble,
        training,
        test,
        learning_rate=1.0,
        l2=L2,
    )
    removals = Removals(found["removed"], 1.0, found["changes"])
    halves = Subsets(found["members"], found["losses"])

    def judge(scores: Scores) -> Row:
        usable = np.where(np.isfinite(scores).all(0), scores, 0.0)
        return {
            "pearson": float(pearson(usable, found["scores"]).mean()),
            "spearman": float(spearman(usable, found["scores"]).mean()),
            "loo": float(removals.agreement(usable[removals.examples]).mean()),
            **lds_row(halves, scores),
        }

    return subject, judge, {"exact": judge(found["scores"])}


def softmax_network() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 10))


def _state(theta: Tensor) -> State:
    block = theta.reshape(10, -1).float()
    return {"0.weight": block[:, :-1].clone(), "0.bias": block[:, -1].clone()}


def _convex_truth() -> dict[str, NDArray[Any]]:
    """Exact scores, 200 removals, 100 halves and an ensemble of ten; minutes, so kept in the cache."""
    path = cache.folder() / "faithfulness-convex" / f"{TRAIN}-{TEST}-{L2:g}.npz"
    if not path.exists():
        truth = Truth(mnist_problem("train", TRAIN), mnist_problem("test", TEST))
        removals, halves = remove(truth, 200), retrain_subsets(truth, 100, 0.5)
        weights = torch.from_numpy(random_halves(10, TRAIN, ENSEMBLE_SEED).T / (TRAIN // 2))
        start = truth.theta.expand(-1, weights.shape[1])
        found = {
            "theta": truth.theta.numpy(),
            "scores": truth.scores,
            "removed": removals.examples,
            "changes": removals.changes,
            "members": halves.members,
            "losses": halves.losses,
            "ensemble": truth.train.fit(weights, start, truth.inverse).numpy(),
        }
        _write(path, found)
    with np.load(path) as file:
        return dict(file)


def _write(path: Path, arrays: dict[str, NDArray[Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".part")
    with partial.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    partial.replace(path)
