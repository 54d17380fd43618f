"""What a small network's training examples did, by retraining it on random halves: the ``mlp`` part of faithfulness.

MNIST, 784-128-64-10 with ReLU (the network of dattri's benchmark, without its dropout), SGD with momentum. The LDS of
an attribution is, for each test point, the rank correlation over random halves between the summed influence of a
half's members and the loss after training on it. Training is noisy, so even the truth would not reach 1: the *ceiling*
is estimated from how far two repeats of the same halves agree. Every retraining is kept in the cache, so that an
interrupted run goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, vmap

from benchmarks import data
from benchmarks.agreement import spearman
from sgoif.curvature import create, ggn_product
from sgoif.gradients import Capture, ExactSpace, LayerCapture, dot_directions, select_layers
from sgoif.linalg import ConjugateGradient, Damped, LinearOperator, flatten, unflatten

RECIPE = {"epochs": 20, "batch": 64, "lr": 0.01, "momentum": 0.9}
SETTINGS: dict[str, Any] = {"halves": 50, "repeats": 2, "scored": 100, "checkpoints": 5, **RECIPE}
DAMPING = 1e-2  # of ours by CG, chosen before any LDS was seen; the others show how much hangs on it
OTHER_DAMPINGS = (1e-3, 1e-1)
MARGIN = 0.02  # ours may lie so far below dattri's CG

Row = dict[str, Any]
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
            path = _cache_file(row, repeat)
            if not path.exists():
                (state,) = train(training.take(torch.from_numpy(np.flatnonzero(row))), seed=1000 * repeat + half)
                with torch.no_grad():
                    logits = functional_call(network(), state, (test.pixels,))
                    _write(path, F.cross_entropy(logits, test.labels, reduction="none").numpy())
            found[repeat, half] = np.load(path)
        if half % 10 == 9:
            print(f"  {half + 1} of {len(members)} halves retrained", flush=True)
    return found


def _cache_file(members: NDArray[np.bool_], repeat: int) -> Path:
    folder = Path(os.environ.get("SGOIF_CACHE") or Path.home() / ".cache" / "sgoif")
    key = hashlib.sha256(np.packbits(members).tobytes() + json.dumps(RECIPE, sort_keys=True).encode()).hexdigest()
    return folder / "faithfulness-mlp" / f"{key[:20]}-{repeat}.npy"


def _write(path: Path, values: NDArray[np.float32]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.stem}.{os.getpid()}.part")
    with partial.open("wb") as file:
        np.save(file, values)
    os.replace(partial, path)


def ceiling(losses: NDArray[np.float64]) -> float:
    """Estimate the LDS of a perfect attribution: ``√r``, ``r`` the reliability of the mean over repeats.

    Agreement of two repeats, by Spearman-Brown for the mean of ``R``. Ranks are treated as if they were linear.
    """
    repeats = len(losses)
    pairs = [spearman(losses[a], losses[b]).mean() for a in range(repeats) for b in range(a)]
    agreement = max(float(np.mean(pairs)), 0.0)
    return float(np.sqrt(repeats * agreement / (1 + (repeats - 1) * agreement)))


# --- ours ---


@dataclass(frozen=True, eq=False)
class GaussNewton(LinearOperator):
    """The Gauss-Newton matrix of the mean loss, in the block layout of the model's layers, by ``ggn_product``."""

    model: nn.Module
    examples: Digits

    @property
    def shape(self) -> tuple[int, int]:
        size = sum(layer.shape.numel for layer in select_layers(self.model))
        return (size, size)

    @property
    def dtype(self) -> torch.dtype:
        return self.examples.pixels.dtype

    @property
    def device(self) -> torch.device:
        return self.examples.pixels.device

    def matmul(self, rhs: Tensor) -> Tensor:
        layers = select_layers(self.model)
        shapes = {layer.name: layer.shape for layer in layers}
        blocks = unflatten(self.check_columns(rhs), shapes)
        vectors = {name: part for layer in layers for name, part in layer.tensors(blocks[layer.name]).items()}
        params = {name: value.detach() for name, value in self.model.named_parameters()}

        def outputs(at: State) -> Tensor:
            return functional_call(self.model, at, (self.examples.pixels,))

        def loss(logits: Tensor) -> Tensor:
            return F.cross_entropy(logits, self.examples.labels)

        product = vmap(lambda vector: ggn_product(outputs, loss, params, vector), chunk_size=20)(vectors)
        return flatten({layer.name: layer.block(product) for layer in layers}, shapes)


class Attribution:
    """One trained model, its captured train and test gradients, and influence by several curvatures."""

    def __init__(self, state: State, training: Digits, test: Digits) -> None:
        self.model = network()
        self.model.load_state_dict(state)
        self.training = training
        self.spaces = {layer.name: ExactSpace(layer) for layer in select_layers(self.model)}
        self.shapes = {name: space.shape for name, space in self.spaces.items()}
        self.train_calls, test_calls = self._capture(training), self._capture(test)
        self.anchors = {call.layer: self.spaces[call.layer].examples(call) for call in test_calls}

    def score(self, directions: Mapping[str, Tensor]) -> NDArray[np.float64]:
        """``I(i, v) = -φ_v · g_i``, ``[n, V]``."""
        return -dot_directions(self.train_calls, self.spaces, directions).double().numpy()

    def by_backend(self, kind: str, observations: int = 1, **settings: Any) -> NDArray[np.float64]:
        curvature = create(kind, self.shapes, **settings)
        for _ in range(observations):
            curvature.observe([self.spaces[call.layer].rows(call) for call in self.train_calls])
        return self.score(curvature.solve(self.anchors))

    def by_cg(self, damping: float, products: int = 30) -> NDArray[np.float64]:
        solver = ConjugateGradient(max_iterations=products, tolerance=1e-3, check_every=5)
        prepared = solver.prepare(Damped(GaussNewton(self.model, self.training), damping))
        solution = solver.solve(prepared, flatten(self.anchors, self.shapes))
        return self.score(unflatten(solution.value, self.shapes))

    def _capture(self, examples: Digits) -> list[LayerCapture]:
        capture = Capture(select_layers(self.model))
        with capture:
            loss = F.cross_entropy(self.model(examples.pixels), examples.labels, reduction="sum")
            capture.differentiate(loss)
        return list(capture.calls)


def our_methods(subject: Attribution) -> dict[str, Callable[[], NDArray[np.float64]]]:
    methods: dict[str, Callable[[], NDArray[np.float64]]] = {
        "identity": lambda: subject.by_backend("identity"),
        "kfac": lambda: subject.by_backend("kfac"),
        "kfac, corrected eigenvalues": lambda: subject.by_backend("kfac", 2, eigenvalue_corrected=True),
    }
    for damping in (DAMPING, *OTHER_DAMPINGS):
        methods[f"gauss-newton cg, damping {damping:g}"] = lambda damping=damping: subject.by_cg(damping)  # type: ignore[misc]
    return methods


def tracin(states: list[State], training: Digits, test: Digits) -> NDArray[np.float64]:
    """Sum plain inner products of gradients over checkpoints, times the learning rate (Pruthi et al. 2020)."""
    parts = [Attribution(state, training, test).by_backend("identity") for state in states]
    return np.asarray(float(RECIPE["lr"]) * np.sum(parts, axis=0))


# --- dattri's, on the same models ---


def dattri_methods(
    states: list[State], training: Digits, test: Digits, subject: Attribution
) -> dict[str, Callable[[], NDArray[np.float64]]]:
    """Name dattri's attributions; empty where dattri is not installed.

    Its CG gives the directions, by its own public methods; the inner products with train gradients are ours, since its
    own loop would solve every system once per train batch. TracIn is its own throughout, with its default projection.
    """
    os.environ.setdefault("TQDM_DISABLE", "1")  # its progress bars would fill the log
    try:
        cg_attributor = import_module("dattri.algorithm.influence_function").IFAttributorCG
        tracin_attributor = import_module("dattri.algorithm.tracin").TracInAttributor
        attribution_task = import_module("dattri.task").AttributionTask
    except ImportError as error:
        print(f"  dattri is not installed ({error}): its rows are left out")
        return {}
    model = network()

    def loss(params: Any, batch: Any) -> Tensor:
        pixels, labels = batch
        return F.cross_entropy(functional_call(model, params, (pixels,)), labels)

    def one_loss(params: Any, batch: Any) -> Tensor:  # under vmap: one example without its batch axis
        pixels, labels = batch
        return F.cross_entropy(functional_call(model, params, (pixels[None],)), labels[None])

    def loader(examples: Digits, size: int) -> Any:
        dataset = torch.utils.data.TensorDataset(examples.pixels, examples.labels)
        return torch.utils.data.DataLoader(dataset, batch_size=size)

    def cg(regularization: float) -> NDArray[np.float64]:
        task = attribution_task(loss_func=loss, model=model, checkpoints=[states[-1]])
        attributor = cg_attributor(task, max_iter=10, regularization=regularization)
        attributor.cache(loader(training, len(training.labels)))
        found = []
        for part in torch.arange(len(test.labels)).split(20):
            few = test.take(part)
            batch = (few.pixels[None], few.labels[None])
            found.append(attributor.transform_test_rep(0, attributor.generate_test_rep(0, batch)))
        return subject.score(_blocks(subject, model, torch.cat(found)))

    def projected_tracin() -> NDArray[np.float64]:
        task = attribution_task(loss_func=one_loss, model=model, checkpoints=states)
        weights = torch.full((len(states),), float(RECIPE["lr"]))
        attributor = tracin_attributor(task, weight_list=weights, normalized_grad=False)
        found = attributor.attribute(loader(training, 500), loader(test, len(test.labels)))
        return -found.double().numpy()

    return {
        "dattri cg, default": lambda: cg(0.0),
        f"dattri cg, regularization {DAMPING:g}": lambda: cg(DAMPING),
        f"dattri tracin, {len(states)} checkpoints": projected_tracin,
    }


def _blocks(subject: Attribution, model: nn.Module, rows: Tensor) -> dict[str, Tensor]:
    """Turn ``[V, P]`` in the order of ``named_parameters`` into blocks by layer."""
    sizes = [value.numel() for value in model.parameters()]
    parts = zip(model.named_parameters(), rows.detach().split(sizes, dim=1))
    tensors = {name: part.reshape(len(rows), *value.shape) for (name, value), part in parts}
    return {layer.name: layer.block(tensors) for layer in select_layers(subject.model)}


# --- the whole part ---


def run_mlp() -> Row:
    """Retrain, attribute, and print each method's LDS beside the ceiling."""
    training, test = digits("train", 5000), digits("test", 500)
    rng = np.random.default_rng(0)
    members = np.zeros((SETTINGS["halves"], len(training.labels)), dtype=bool)
    for row in members:
        row[rng.choice(len(row), len(row) // 2, replace=False)] = True
    losses = half_losses(training, test, members, SETTINGS["repeats"])
    scored = test.take(torch.arange(SETTINGS["scored"]))
    losses = losses[:, :, : SETTINGS["scored"]]
    states = train(training, seed=77, checkpoints=SETTINGS["checkpoints"])
    subject = Attribution(states[-1], training, scored)
    found: Row = {"ceiling": ceiling(losses), "methods": []}
    print(f"noise ceiling of the LDS, {len(losses)} repeats of {len(members)} halves: {found['ceiling']:.3f}")
    methods = our_methods(subject)
    methods[f"tracin, {len(states)} checkpoints"] = lambda: tracin(states, training, scored)
    methods |= dattri_methods(states, training, scored, subject)
    for name, compute in methods.items():
        row = _measure(name, compute, members, losses.mean(0))
        found["methods"].append(row)
        print(f"  {name:32s} LDS {row['lds']:+.3f} +- {row['lds_se']:.3f}  {row['cpu_s']:.0f} s", flush=True)
    found["bars"] = _bars(found["methods"])
    return found


def _measure(
    name: str, compute: Callable[[], NDArray[np.float64]], members: NDArray[np.bool_], losses: NDArray[np.float64]
) -> Row:
    started = time.process_time()
    scores = compute()
    seconds = time.process_time() - started
    usable = np.isfinite(scores).all(0)  # CG on an indefinite Hessian may overflow; such a test point counts as 0
    predicted = members.astype(np.float64) @ np.where(usable, scores, 0.0)
    lds = np.where(usable, spearman(predicted, losses), 0.0)
    error = lds.std(ddof=1) / np.sqrt(len(lds))  # over test points; the halves are the same for all methods
    failed = int((~usable).sum())
    return {"method": name, "lds": float(lds.mean()), "lds_se": float(error), "failed": failed, "cpu_s": seconds}


def _bars(rows: list[Row]) -> list[Row]:
    ours = next(row["lds"] for row in rows if row["method"] == f"gauss-newton cg, damping {DAMPING:g}")
    peers = [row["lds"] for row in rows if row["method"].startswith("dattri cg")]
    if not peers:
        return []
    least = max(peers) - MARGIN
    name = f"gauss-newton cg against dattri's better cg - {MARGIN}"
    met = bool(ours >= least)
    print(f"bar  {name}: {ours:.3f}, at least {least:.3f}  {'met' if met else 'MISSED'}", flush=True)
    return [{"bar": name, "value": ours, "least": least, "met": met}]
