"""Trainings that try to bear wrong labels, all by one recipe and at one price: as many passes through a network.

``plain`` knows nothing; a second one leaves out our hold-out. ``ours`` weighs the loss by ``monitor.weights``, ``ours,
sampler`` draws by it, ``ours, class sizes`` weighs all of a class alike: they give up some examples as a hold-out, with
labels as given, and are watched. ``SCE`` is symmetric cross-entropy (Wang et al. 2019), ``mixup`` blends pairs of
pictures and of labels (Zhang et al. 2018), ``co-teaching`` trains two networks, for half the epochs each, that choose
small losses for each other (Han et al. 2018); it is told the share of wrong labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Subset

import sgoif
from benchmarks import loops
from benchmarks.models import fresh_model
from benchmarks.review import World
from sgoif.experimental import InfluenceSampler
from sgoif.training.monitor import Monitor

Predict = Callable[[Tensor], Tensor]  # pictures to logits
Loss = Callable[[Predict, loops.Batch, np.random.Generator], Tensor]
Trained = tuple[Sequence[nn.Module], dict[str, Any]]  # networks, and what is to be told of their training

FORGET_OVER = 0.4  # of the steps, until co-teaching leaves out as many as are wrong


def train_by(method: str, world: World, epochs: int, seed: int) -> Trained:
    """Train from scratch on what is given."""
    torch.set_num_threads(1)
    return METHODS[method](world, epochs, seed)


def _plain(predict: Predict, batch: loops.Batch, rng: np.random.Generator) -> Tensor:
    return F.cross_entropy(predict(batch.images), batch.labels)


def _symmetric(predict: Predict, batch: loops.Batch, rng: np.random.Generator) -> Tensor:
    """0.1 times cross-entropy and once its reverse, with log 0 as log 1e-4: the paper's for CIFAR-10."""
    logits = predict(batch.images)
    p_others = 1 - logits.softmax(1).gather(1, batch.labels[:, None])[:, 0]
    return 0.1 * F.cross_entropy(logits, batch.labels) - (p_others * float(np.log(1e-4))).mean()


def _mixup(alpha: float) -> Loss:
    def loss(predict: Predict, batch: loops.Batch, rng: np.random.Generator) -> Tensor:
        share, other = float(rng.beta(alpha, alpha)), torch.from_numpy(rng.permutation(len(batch.labels)))
        blended = share * batch.images + (1 - share) * batch.images[other]
        logits = predict(blended.contiguous(memory_format=torch.channels_last))
        given, others = (F.cross_entropy(logits, labels) for labels in (batch.labels, batch.labels[other]))
        return share * given + (1 - share) * others

    return loss


def _by_loss(loss: Loss, *, on_all: bool = True) -> Callable[..., Trained]:
    def train(world: World, epochs: int, seed: int) -> Trained:
        images, labels = (tensor if on_all else tensor[~world.held] for tensor in world.dataset.tensors)
        recipe, model, rng = loops.Recipe(num_epochs=epochs), fresh_model(seed), np.random.default_rng(seed)
        optimizer = loops.optimiser(model, recipe)
        scheduler = loops.schedule(optimizer, recipe, len(images))
        model.train()
        for batch in loops.epochs(images, labels, recipe, seed):
            loss(lambda inputs: loops.logits(model, inputs, recipe), batch, rng).backward()
            _step(optimizer, scheduler)
        return [model], {}

    return train


def _co_teaching(world: World, epochs: int, seed: int) -> Trained:
    """Every step each network learns from the examples whose loss is small by the other."""
    images, labels = world.dataset.tensors
    recipe = loops.Recipe(num_epochs=max(1, epochs // 2))
    wrong_share = float((world.given != world.clean).mean())
    models = [fresh_model(seed), fresh_model(seed + 1_000)]
    optimizers = [loops.optimiser(model, recipe) for model in models]
    schedulers = [loops.schedule(optimizer, recipe, len(images)) for optimizer in optimizers]
    ramp = FORGET_OVER * recipe.num_epochs * recipe.steps_per_epoch(len(images))
    for model in models:
        model.train()
    for batch in loops.epochs(images, labels, recipe, seed):
        kept = round(len(batch.labels) * (1 - wrong_share * min(1.0, batch.step / ramp)))
        losses = [
            F.cross_entropy(loops.logits(model, batch.images, recipe), batch.labels, reduction="none")
            for model in models
        ]
        small = [loss.detach().argsort()[:kept] for loss in losses]
        for loss, chosen, optimizer, scheduler in zip(losses, small[::-1], optimizers, schedulers, strict=True):
            loss[chosen].mean().backward()
            _step(optimizer, scheduler)
    return models, {"wrong_share": wrong_share}


def _ours(by: str) -> Callable[..., Trained]:
    def train(world: World, epochs: int, seed: int) -> Trained:
        training, holdout = (Subset(world.dataset, np.flatnonzero(part).tolist()) for part in (~world.held, world.held))
        ids, recipe, model = torch.tensor(training.indices), loops.Recipe(num_epochs=epochs), fresh_model(seed)
        images, labels = (tensor[ids] for tensor in world.dataset.tensors)
        optimizer = loops.optimiser(model, recipe)
        scheduler = loops.schedule(optimizer, recipe, len(images))
        monitor = sgoif.watch(
            model,
            optimizer,
            anchors=sgoif.with_ids(holdout),
            train_size=len(images),
            seed=seed,
            method=sgoif.Method(planned_steps=epochs * recipe.steps_per_epoch(len(images))),
            budget=sgoif.Budget(keep_visits="none"),
        )
        assert isinstance(monitor, Monitor), "SGOIF_DISABLE is set"
        model.train()
        sampler = InfluenceSampler(monitor, ids, seed=seed) if by == "sampler" else None
        drawn = (
            loops.epochs(images, labels, recipe, seed)
            if sampler is None
            else _draw_batches(sampler, images, labels, recipe)
        )
        weigh = _by_class(monitor, ids, labels) if by == "class sizes" else monitor.weights
        for batch in drawn:
            mine = ids[batch.indices]
            weights = weigh(mine) if sampler is None else torch.ones(len(mine))
            with monitor.step(mine, batch.labels, weights=weights):
                losses = F.cross_entropy(loops.logits(model, batch.images, recipe), batch.labels, reduction="none")
                ((weights * losses).sum() / weights.sum()).backward()
            _step(optimizer, scheduler)
        return [model], _describe_weights(monitor, world, ids, weigh(ids))

    return train


def _by_class(monitor: Monitor, ids: Tensor, labels: Tensor) -> Callable[[Tensor], Tensor]:
    """Weigh every example as the mean of its class: what sizes of classes bring without doubting any label."""
    class_of, means, renewals = torch.zeros(int(ids.max()) + 1, dtype=torch.long), torch.ones(int(labels.max()) + 1), 0
    class_of[ids] = labels

    def weigh(mine: Tensor) -> Tensor:
        nonlocal means, renewals
        monitor.weights(mine)  # renews them where that is due
        if len(monitor.facts.get("weights", ())) > renewals:
            renewals = len(monitor.facts["weights"])
            means = torch.bincount(labels, monitor.weights(ids)) / torch.bincount(labels).clamp_min(1)
        return means[class_of[mine]].float()

    return weigh


def _describe_weights(monitor: Monitor, world: World, ids: Tensor, used: Tensor) -> dict[str, Any]:
    """What the weights came to, beside the truth."""
    weights, wrong = used.numpy(), (world.given != world.clean)[ids.numpy()]
    assert not monitor.faults, monitor.faults
    return {
        "weight_of_wrong": float(weights[wrong].mean()) if wrong.any() else None,
        "weight_of_right": float(weights[~wrong].mean()),
        "wrong_share_weighted": float(weights[wrong].sum() / weights.sum()),
        "overhead": monitor.governor.overhead,
        "renewals": monitor.facts.get("weights", []),
    }


def _draw_batches(
    sampler: InfluenceSampler, images: Tensor, labels: Tensor, recipe: loops.Recipe
) -> Iterator[loops.Batch]:
    """The recipe's batches, drawn by a sampler."""
    generator, step = torch.Generator().manual_seed(0), 0
    for epoch in range(recipe.num_epochs):
        for indices in torch.tensor(list(sampler)).split(recipe.batch_size):
            inputs = loops.augment(images[indices], generator, recipe.max_shift)
            yield loops.Batch(step, epoch, indices, inputs, labels[indices])
            step += 1


def _step(optimizer: torch.optim.Optimizer, scheduler: Any) -> None:
    optimizer.step()
    optimizer.zero_grad()
    scheduler.step()


METHODS: Mapping[str, Callable[..., Trained]] = {
    "plain": _by_loss(_plain),
    "plain, without hold-out": _by_loss(_plain, on_all=False),
    "ours": _ours("loss"),
    "SCE": _by_loss(_symmetric),
    "mixup": _by_loss(_mixup(1.0)),
    "mixup, alpha 0.2": _by_loss(_mixup(0.2)),
    "co-teaching": _co_teaching,
    "ours, sampler": _ours("sampler"),
    "ours, class sizes": _ours("class sizes"),
}
