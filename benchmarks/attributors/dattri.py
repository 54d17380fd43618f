"""Attribution by dattri (Deng et al. 2024), with the settings of its own MNIST benchmark.

Its benchmark picks the regularisation with the best figure from a grid; we show several and say which. CG and LiSSA
give the directions by their public methods, and the inner products with dattri's own training gradients are taken
once: its loop would solve every system again for each batch. The rest is its own throughout. Computed in float32.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.attributors.subject import Scores, Subject
from benchmarks.subsets import Digits

__all__ = ["methods"]

BATCH = 500
os.environ.setdefault("TQDM_DISABLE", "1")  # its progress bars would fill the log


def methods(subject: Subject) -> dict[str, Callable[[], Scores]]:
    """The attributors that run in minutes."""
    regularizations = (subject.l2,) if subject.l2 else (0.0, 0.01, 0.1, 1.0)
    found: dict[str, Callable[[], Scores]] = {}
    for amount in regularizations:
        found[f"cg, regularization {amount:g}"] = lambda r=amount: _cg(subject, r, 10)  # type: ignore[misc]
    if subject.l2:
        found[f"cg, regularization {subject.l2:g}, 100 steps"] = lambda: _cg(subject, subject.l2, 100)
    found["lissa, depth 100"] = lambda: _lissa(subject)
    found["arnoldi, regularization 0.01"] = lambda: _arnoldi(subject)
    for amount in (0.0, subject.l2 or 0.01):
        found[f"ekfac, damping {amount:g}"] = lambda d=amount: _ekfac(subject, d)  # type: ignore[misc]
    found[f"tracin, {_checkpoints(subject)}"] = lambda: _tracin(subject)
    for models in (1, 10):
        found[f"trak, {models} half model{'s' * (models > 1)}"] = lambda m=models: _trak(subject, m)  # type: ignore[misc]
    return found


def _checkpoints(subject: Subject) -> str:
    count = len(subject.states)
    return f"{count} checkpoint{'s' * (count > 1)}"


def _cg(subject: Subject, regularization: float, steps: int) -> Scores:
    settings = {"max_iter": steps, "regularization": regularization}
    return _by_directions(subject, _influence().IFAttributorCG(_task(subject), **settings))


def _lissa(subject: Subject) -> Scores:
    torch.manual_seed(0)
    scaling = 50.0  # its default; it damps by damping·scaling
    settings = {"recursion_depth": 100, "batch_size": 100, "scaling": scaling, "damping": subject.l2 / scaling}
    return _by_directions(subject, _influence().IFAttributorLiSSA(_task(subject), **settings))


def _by_directions(subject: Subject, attributor: Any, block: int = 20) -> Scores:
    """``H⁻¹g`` of some test points at a time, then one pass over the training gradients."""
    attributor.cache(_loader(subject.training, len(subject.training.labels)))
    directions = []
    for part in torch.arange(len(subject.test.labels)).split(block):
        few = subject.test.take(part)
        rep = attributor.generate_test_rep(0, (few.pixels[None], few.labels[None]))
        directions.append(attributor.transform_test_rep(0, rep).detach())
    stacked = torch.cat(directions)  # [V, P]
    products = [
        attributor.generate_train_rep(0, (pixels[None], labels[None])).detach() @ stacked.T
        for pixels, labels in _loader(subject.training, BATCH)
    ]
    return -torch.cat(products).double().numpy()


def _arnoldi(subject: Subject) -> Scores:
    attributor = _influence().IFAttributorArnoldi(_task(subject), max_iter=50, regularization=0.01)
    return _whole(subject, attributor)


def _ekfac(subject: Subject, damping: float) -> Scores:
    torch.manual_seed(0)
    return _whole(subject, _influence().IFAttributorEKFAC(_task(subject), damping=damping))


def _whole(subject: Subject, attributor: Any) -> Scores:
    attributor.cache(_loader(subject.training, len(subject.training.labels)))
    found = attributor.attribute(_loader(subject.training, BATCH), _loader(subject.test, len(subject.test.labels)))
    return -found.detach().double().numpy()


def _tracin(subject: Subject) -> Scores:
    """Its own throughout, with its default projection."""
    weights = torch.full((len(subject.states),), subject.learning_rate)
    task = _task(subject, states=subject.states, lone=True)
    attributor = import_module("dattri.algorithm.tracin").TracInAttributor(
        task, weight_list=weights, normalized_grad=False
    )
    found = attributor.attribute(_loader(subject.training, BATCH), _loader(subject.test, len(subject.test.labels)))
    return -found.detach().double().numpy()


def _trak(subject: Subject, models: int) -> Scores:
    """Random projections of 512 dimensions, of models trained on halves; the cost of training them is included."""
    model = subject.make()

    def log_odds(params: Any, example: Any) -> Tensor:
        log_p = -_lone_loss(model, params, example)
        return log_p - torch.log(-torch.expm1(log_p))  # its example's 1 - exp(log p) is 0 in float32 where p is near 1

    def p_correct(params: Any, example: Any) -> Tensor:
        return torch.exp(-_lone_loss(model, params, example))

    task = import_module("dattri.task").AttributionTask(
        loss_func=log_odds, model=model, checkpoints=subject.ensemble(models)
    )
    attributor = import_module("dattri.algorithm.trak").TRAKAttributor(
        task, correct_probability_func=p_correct, projector_kwargs={"proj_dim": 512, "device": "cpu"}
    )
    attributor.cache(_loader(subject.training, BATCH))
    found = attributor.attribute(_loader(subject.test, len(subject.test.labels)))
    return -found.detach().double().numpy()


def _task(subject: Subject, states: Any = None, lone: bool = False) -> Any:
    """The task as dattri wants it told; ``lone`` for attributors that hand over an example without its batch axis."""
    model = subject.make()

    def loss(params: Any, batch: Any) -> Tensor:
        if lone:
            return _lone_loss(model, params, batch)
        pixels, labels = batch
        return F.cross_entropy(functional_call(model, params, (pixels,)), labels.long())

    make = import_module("dattri.task").AttributionTask
    return make(loss_func=loss, model=model, checkpoints=states or [subject.states[-1]])


def _lone_loss(model: torch.nn.Module, params: Any, example: Any) -> Tensor:
    pixels, label = example
    return F.cross_entropy(functional_call(model, params, (pixels[None],)), label[None].long())


def _loader(examples: Digits, size: int) -> DataLoader[Any]:
    return DataLoader(TensorDataset(examples.pixels, examples.labels), batch_size=size)


def _influence() -> Any:
    return import_module("dattri.algorithm.influence_function")
