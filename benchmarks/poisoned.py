"""A poisoned training set, the network that learns it, and whether the attack works, for :mod:`benchmarks.poison`.

A share of the training pictures, none of them of the target class, gets a 3×3 checkerboard near a corner and the label
of the target class (BadNets, Gu et al. 2017). CIFAR-10 is learnt by a ResNet-9; Fashion-MNIST by a small network, in
seconds. The first 20,000 train pictures of either are for development; reported seeds draw from the others.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks import cache, context, data, loops, models

CHECKPOINTS = (0.4, 0.7, 1.0)  # shares of the training
TESTED = slice(5_000, None)  # test pictures; queries come from those before

State = dict[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What is trained; the defaults are tier M."""

    dataset: Literal["cifar10", "fashion-mnist"] = "cifar10"
    rate: float = 0.01  # of all training pictures
    split: Literal["development", "reported"] = "reported"
    examples: int = 20_000
    epochs: int = 10
    target: int = 0
    queries: int = 10  # bad predictions to ask with
    retrain: bool = True
    seed: int = 1


@dataclass(frozen=True, slots=True)
class World:
    """The poisoned training set."""

    images: Tensor  # [N, C, H, W]
    labels: Tensor  # [N]
    is_poisoned: NDArray[np.bool_]  # [N]


def add_trigger(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Put the trigger on pictures ``[N, H, W, C]``: black and white, a pixel off the lower right corner."""
    pattern = np.where(np.indices((3, 3)).sum(0) % 2 == 0, 255, 0).astype(np.uint8)
    found = pixels.copy()
    found[:, -4:-1, -4:-1, :] = pattern[:, :, None]
    return found


def make_world(setup: Setup) -> World:
    clean = _train_pictures(setup)
    pixels, labels = clean.pixels.copy(), clean.labels.copy()
    others = np.flatnonzero(labels != setup.target)
    rng = np.random.default_rng(setup.seed + 1000)  # another stream than that which drew the pictures
    rows = rng.choice(others, round(setup.rate * len(labels)), replace=False)
    pixels[rows], labels[rows] = add_trigger(pixels[rows]), setup.target
    is_poisoned = np.isin(np.arange(len(labels)), rows)
    return World(_inputs(pixels, setup), torch.from_numpy(labels), is_poisoned)


def _train_pictures(setup: Setup) -> data.Images:
    if setup.dataset == "cifar10":
        return data.draw(setup.split, setup.examples, setup.seed).train
    images = data.fashion_mnist("train")
    if setup.split == "development":
        return images.take(slice(0, setup.examples))
    rest = np.arange(data.NUM_DEVELOPMENT, len(images))
    return images.take(np.sort(np.random.default_rng(setup.seed).permutation(rest)[: setup.examples]))


def _test_pictures(setup: Setup, part: slice) -> data.Images:
    return (data.cifar10 if setup.dataset == "cifar10" else data.fashion_mnist)("test").take(part)


def _inputs(pixels: NDArray[np.uint8], setup: Setup) -> Tensor:
    stats = data.CIFAR10_STATS if setup.dataset == "cifar10" else data.FASHION_MNIST_STATS
    return data.normalise(pixels, *stats).contiguous(memory_format=torch.channels_last)


def make_recipe(setup: Setup) -> loops.Recipe:
    """Tier M, or what suits a small network."""
    if setup.dataset == "cifar10":
        return loops.Recipe(num_epochs=setup.epochs)
    return loops.Recipe(num_epochs=setup.epochs, batch_size=100, lr=0.1, max_shift=1)


def fresh_model(setup: Setup) -> nn.Module:
    """A network whose last layer is called ``head``."""
    if setup.dataset == "cifar10":
        return models.fresh_model(setup.seed)
    torch.manual_seed(setup.seed)
    body = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 49, 64), nn.ReLU()),
    )
    return nn.Sequential(OrderedDict(body=body, head=nn.Linear(64, 10)))


def train(
    world: World, rows: NDArray[np.int64], setup: Setup, keep: Callable[[int, nn.Module], None] | None = None
) -> nn.Module:
    """Train a fresh network on some of the pictures; ``keep`` is called after every step, counted from 1."""
    model, recipe = fresh_model(setup), make_recipe(setup)
    rows = rows[: len(rows) // recipe.batch_size * recipe.batch_size]  # a batch of one ruins a batch norm

    def after(batch: loops.Batch, _: Tensor) -> None:
        if keep is not None:
            keep(batch.step + 1, model)

    loops.train(model, world.images[rows], world.labels[rows], recipe, setup.seed, after)
    return model


def train_states(world: World, setup: Setup) -> list[State]:
    """The states of the network at the checkpoints, trained once and kept in the cache."""
    settings = asdict(replace(setup, queries=Setup().queries))  # a network does not know what it will be asked
    settings.pop("retrain")
    name = "-".join(str(value) for value in {**settings, **context.changed()}.values())
    steps = setup.epochs * make_recipe(setup).steps_per_epoch(len(world.labels))
    kept = [round(share * steps) for share in CHECKPOINTS]

    def make() -> list[State]:
        states: list[State] = []

        def keep(step: int, model: nn.Module) -> None:
            if step in kept:
                states.append({name: value.clone() for name, value in model.state_dict().items()})

        train(world, np.arange(len(world.labels)), setup, keep)
        return states

    return cache.keep(f"poison/{name}.pt", make)


def measure_attack(model: nn.Module, setup: Setup) -> dict[str, float]:
    """Accuracy on clean test pictures, and the share of those of other classes taken for the target.

    ``attack`` with the trigger on them, ``confused`` without: what no cleaning can be blamed for.
    """
    test, recipe = _test_pictures(setup, TESTED), make_recipe(setup)
    others = test.take(np.flatnonzero(test.labels != setup.target))
    wanted = torch.full((len(others),), setup.target)
    return {
        "accuracy": loops.accuracy(model, _inputs(test.pixels, setup), torch.from_numpy(test.labels), recipe),
        "attack": loops.accuracy(model, _inputs(add_trigger(others.pixels), setup), wanted, recipe),
        "confused": loops.accuracy(model, _inputs(others.pixels, setup), wanted, recipe),
    }


def find_bad_predictions(model: nn.Module, setup: Setup) -> Tensor:
    """The first triggered test pictures of other classes that are taken for the target."""
    test = _test_pictures(setup, slice(0, 500))
    inputs = _inputs(add_trigger(test.pixels[test.labels != setup.target]), setup)
    model.eval()
    with torch.no_grad():
        fooled = model(inputs).argmax(1) == setup.target
    return inputs[fooled][: setup.queries]
