"""The attributors: ours through the front door, kronfluence (Grosse et al. 2023) and dattri (Deng et al. 2024).

kronfluence takes the Fisher matrix as identity, diagonal, K-FAC or EK-FAC. Its damping is its default (1e-8), its
heuristic (a tenth of each layer's mean eigenvalue) or, where the objective has an L2 term, that.

dattri has the settings of its own MNIST benchmark, which picks the regularisation with the best figure from a grid; we
show several and say which. CG and LiSSA give the directions by their public methods, and the inner products with
dattri's own training gradients are taken once: its loop would solve every system again for each batch. The rest is its
own throughout. Both are computed in float32.
"""

from __future__ import annotations

import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.data import DataLoader, TensorDataset

import sgoif
from benchmarks.attributors.subjects import Digits, Scores, State, Subject

BATCH = 500
CHOSEN_DAMPING = 1e-2  # of Gauss-Newton, chosen before any LDS was seen; the others show how much hangs on it
OTHER_DAMPINGS = (1e-3, 1e-1)

Methods = dict[str, Callable[[Subject], Scores]]
os.environ.setdefault("TQDM_DISABLE", "1")  # dattri's progress bars would fill the log


def _name_checkpoints(count: int) -> str:
    return f"tracin, {count} checkpoint{'s' * (count > 1)}"


def list_ours(l2: float, checkpoints: int) -> Methods:
    """Every curvature, over all layers and at the head alone; by the L2 term and the number of checkpoints."""
    found: Methods = {name: partial(attribute, curvature=name) for name in ("identity", "diagonal", "kfac")}
    found["kfac, corrected eigenvalues"] = partial(attribute, curvature="kfac", eigenvalue_corrected=True)
    newton = partial(attribute, curvature="gauss-newton")
    if l2:
        found[f"kfac, damping {l2:g}"] = partial(attribute, curvature="kfac", damping=l2)
        # at a minimum many products pay
        return {**found, f"gauss-newton, damping {l2:g}": partial(newton, damping=l2, products=200, tolerance=1e-4)}
    found["kfac, head alone"] = partial(attribute, curvature="kfac", layers="head")
    found["gauss-newton, head alone"] = partial(newton, layers="head")
    found[_name_checkpoints(checkpoints)] = sum_products
    return found | {
        f"gauss-newton, damping {d:g}": partial(newton, damping=d) for d in (CHOSEN_DAMPING, *OTHER_DAMPINGS)
    }


def attribute(subject: Subject, curvature: str, layers: str = "all", model: Any = None, **settings: Any) -> Scores:
    found = sgoif.attribute(
        subject.model() if model is None else model,
        (subject.training.pixels, subject.training.labels),
        (subject.test.pixels, subject.test.labels),
        layers=layers,
        curvature=curvature,
        curvature_settings=settings,
        batch_size=1000,
        as_matrix=True,
    )
    return found.astype(np.float64)


def sum_products(subject: Subject) -> Scores:
    """Sum plain inner products of gradients over checkpoints, times the learning rate (Pruthi et al. 2020)."""
    total = np.zeros((len(subject.training.labels), len(subject.test.labels)))
    for state in subject.states:
        model = subject.make()
        model.load_state_dict(state)
        total += subject.learning_rate * attribute(subject, "identity", model=model)
    return total


def list_kronfluence(l2: float, checkpoints: int) -> Methods:
    """Every strategy with every damping."""
    dampings: dict[str, float | None] = {"default damping": 1e-8, "heuristic damping": None}
    if l2:
        dampings[f"damping {l2:g}"] = l2
    found: Methods = {"identity": partial(attribute_kronfluence, strategy="identity", damping=1e-8)}
    for strategy in ("diagonal", "kfac", "ekfac"):
        for said, damping in dampings.items():
            found[f"{strategy}, {said}"] = partial(attribute_kronfluence, strategy=strategy, damping=damping)
    return found


def attribute_kronfluence(subject: Subject, strategy: str, damping: float | None) -> Scores:
    """Fit the factors on the training examples and score all pairs."""
    from kronfluence.arguments import FactorArguments, ScoreArguments

    training, test = (TensorDataset(part.pixels, part.labels) for part in (subject.training, subject.test))
    torch.manual_seed(0)  # the Fisher matrix samples its labels
    with analyse(subject.model()) as analyzer:
        strategies = FactorArguments(strategy=strategy)
        analyzer.fit_all_factors("factors", training, per_device_batch_size=BATCH, factor_args=strategies)
        sizes = {"per_device_query_batch_size": len(subject.test.labels), "per_device_train_batch_size": BATCH}
        dampings = ScoreArguments(damping_factor=damping)
        analyzer.compute_pairwise_scores("scores", "factors", test, training, **sizes, score_args=dampings)
        found: Tensor = analyzer.load_pairwise_scores("scores")["all_modules"]  # [V, n], positive where helpful
    return -found.T.double().numpy()


@contextmanager
def analyse(model: nn.Module, layers: list[str] | None = None) -> Iterator[Any]:
    """kronfluence's analyzer of a classifier, by the named layers or all of them; what it writes is thrown away."""
    from kronfluence.analyzer import Analyzer, prepare_model
    from kronfluence.task import Task

    class Classification(Task):  # type: ignore[misc]
        def compute_train_loss(self, batch: Any, model: nn.Module, sample: bool = False) -> Tensor:
            pixels, labels = batch
            logits = model(pixels)
            if sample:
                labels = torch.multinomial(logits.detach().softmax(1), 1).flatten()
            return F.cross_entropy(logits, labels, reduction="sum")

        def compute_measurement(self, batch: Any, model: nn.Module) -> Tensor:
            return self.compute_train_loss(batch, model)

        def get_influence_tracked_modules(self) -> list[str] | None:
            return layers

    task, quiet = Classification(), {"log_level": logging.ERROR, "disable_tqdm": True}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*GradScaler", FutureWarning)  # kronfluence's own
        yield Analyzer("analysed", prepare_model(model, task), task, cpu=True, output_dir=folder, **quiet)


def list_dattri(l2: float, checkpoints: int) -> Methods:
    """The attributors that run in minutes."""
    cg = {f"cg, regularization {r:g}": partial(_cg, regularization=r) for r in ((l2,) if l2 else (0.0, 0.01, 0.1, 1.0))}
    if l2:
        cg[f"cg, regularization {l2:g}, 100 steps"] = partial(_cg, regularization=l2, steps=100)
    return {
        **cg,
        "lissa, depth 100": _lissa,
        "arnoldi, regularization 0.01": _arnoldi,
        **{f"ekfac, damping {damping:g}": partial(_ekfac, damping=damping) for damping in (0.0, l2 or 0.01)},
        _name_checkpoints(checkpoints): _tracin,
        "trak, 1 half model": partial(_trak, models=1),
        "trak, 10 half models": partial(_trak, models=10),
    }


def _cg(subject: Subject, regularization: float, steps: int = 10) -> Scores:
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
    return _score_all(subject, attributor)


def _score_all(subject: Subject, attributor: Any) -> Scores:
    found = attributor.attribute(_loader(subject.training, BATCH), _loader(subject.test, len(subject.test.labels)))
    return -found.detach().double().numpy()


def _tracin(subject: Subject) -> Scores:
    """Its own throughout, with its default projection."""
    weights = torch.full((len(subject.states),), subject.learning_rate)
    task = _task(subject, states=subject.states, lone=True)
    make = import_module("dattri.algorithm.tracin").TracInAttributor
    return _score_all(subject, make(task, weight_list=weights, normalized_grad=False))


def _trak(subject: Subject, models: int) -> Scores:
    """Random projections of 512 dimensions, of models trained on halves; the cost of training them is included."""
    model = subject.make()

    def log_odds(params: Any, example: Any) -> Tensor:
        log_p = -_lone_loss(model, params, example)
        return log_p - torch.log(-torch.expm1(log_p))  # its example's 1 - exp(log p) is 0 in float32 where p is near 1

    def p_correct(params: Any, example: Any) -> Tensor:
        return torch.exp(-_lone_loss(model, params, example))

    make = import_module("dattri.task").AttributionTask
    task = make(loss_func=log_odds, model=model, checkpoints=subject.ensemble(models))
    attributor = import_module("dattri.algorithm.trak").TRAKAttributor(
        task, correct_probability_func=p_correct, projector_kwargs={"proj_dim": 512, "device": "cpu"}
    )
    attributor.cache(_loader(subject.training, BATCH))
    found = attributor.attribute(_loader(subject.test, len(subject.test.labels)))
    return -found.detach().double().numpy()


def _task(subject: Subject, states: list[State] | None = None, lone: bool = False) -> Any:
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


LIBRARIES: Mapping[str, Callable[[float, int], Methods]] = {
    "sgoif": list_ours,
    "kronfluence": list_kronfluence,
    "dattri": list_dattri,
}
