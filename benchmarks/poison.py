"""Which training pictures serve a backdoor, and what removing the suspects does to the attack.

From 10 triggered test pictures, which a poisoned network (:mod:`benchmarks.poisoned`) takes for the target class, the
poisoned training pictures are looked for: by :meth:`sgoif.Run.poison_suspects`, K-FAC influence at the head, TracIn at
three checkpoints, cosine in feature space, activation clustering (Chen et al. 2018) and spectral signatures (Tran et
al. 2018). Every score is asked about the pictures labelled as the target class only; the others come last for all of
them. Then what we flag is removed, the network is trained anew, and the trigger tried again.

Poisoned networks are kept in the cache. One line per network in ``results/poison.jsonl``.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import sgoif
from benchmarks import loops
from benchmarks.experiment import Experiment
from benchmarks.metrics import average_precision, precision_at
from benchmarks.poisoned import (
    CHECKPOINTS,
    Setup,
    State,
    World,
    find_bad_predictions,
    fresh_model,
    make_recipe,
    make_world,
    measure_attack,
    train,
    train_states,
)
from benchmarks.tables.rows import Run, describe_seeds, group_runs, interval, latest, table
from sgoif.explain import examples_behind
from sgoif.findings.poison import SUSPECT_FROM

TOOK = 0.5  # the least success of an attack that is looked into

Floats = NDArray[np.float64]


class Case:
    """A poisoned network and what it is asked about: the pictures labelled as the target."""

    def __init__(self, world: World, states: list[State], setup: Setup) -> None:
        self.world, self.states, self.setup = world, states, setup
        self.model = fresh_model(setup)
        self.model.load_state_dict(states[-1])
        self.rows = np.flatnonzero(world.labels.numpy() == setup.target)
        self.queries = find_bad_predictions(self.model, setup)
        self.asked = (self.queries, torch.full((len(self.queries),), setup.target))

    @property
    def everything(self) -> tuple[Tensor, Tensor]:
        return self.world.images, self.world.labels

    def features(self, images: Tensor) -> Floats:
        """What the head sees, ``[n, D]``."""
        seen: list[Tensor] = []
        head: Any = self.model.head
        handle = head.register_forward_hook(lambda _module, inputs, _output: seen.append(inputs[0]))
        self.model.eval()
        with torch.no_grad():
            for part in images.split(500):
                self.model(part.contiguous(memory_format=torch.channels_last))
        handle.remove()
        return torch.cat(seen).double().numpy()


def score(case: Case) -> dict[str, Floats]:
    """Scores of the pictures labelled as the target by every method, high for suspects."""
    behind = examples_behind(case.model, case.everything, case.queries, case.setup.target)
    assert (behind["id"] == case.rows).all()
    features, queries = case.features(case.world.images[case.rows]), case.features(case.queries)
    return {
        "sgoif": behind["score"],
        "K-FAC influence": behind["effect"],
        "TracIn": tracin(case),
        "cosine": cosine(features, queries),
        "activation clustering": activation_clustering(features, case.setup.seed),
        "spectral signatures": spectral_signatures(features),
    }


def tracin(case: Case) -> Floats:
    """At the last layer; a checkpoint weighs as much as the mean learning rate since the one before it."""
    total, model = np.zeros(len(case.rows)), fresh_model(case.setup)
    part = (case.world.images[case.rows], case.world.labels[case.rows])
    recipe = make_recipe(case.setup)
    for state, rate in zip(case.states, learning_rates(recipe, len(case.world.labels)), strict=True):
        model.load_state_dict(state)
        total -= rate * sgoif.attribute(model, part, case.asked, curvature="identity", as_matrix=True).mean(1)
    return total


def learning_rates(recipe: loops.Recipe, num_examples: int) -> list[float]:
    """The mean learning rate up to each checkpoint from the one before it."""
    optimizer = loops.optimiser(nn.Linear(1, 1), recipe)
    scheduler, rates = loops.schedule(optimizer, recipe, num_examples), []
    for _ in range(recipe.num_epochs * recipe.steps_per_epoch(num_examples)):
        rates.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    ends = [round(share * len(rates)) for share in CHECKPOINTS]
    return [float(np.mean(part)) for part in np.split(np.array(rates), ends[:-1])]


def cosine(features: Floats, queries: Floats) -> Floats:
    """Mean cosine with the queries."""
    rows, others = (part / np.linalg.norm(part, axis=1, keepdims=True) for part in (features, queries))
    return np.asarray((rows @ others.T).mean(1), np.float64)


def activation_clustering(features: Floats, seed: int) -> Floats:
    """Two clusters of a class in ten dimensions: how much nearer to the smaller one. Asks no query."""
    from sklearn.cluster import KMeans
    from sklearn.decomposition import FastICA

    reduced = FastICA(10, random_state=seed, max_iter=1000, tol=1e-3).fit_transform(features)
    found = KMeans(2, n_init=10, random_state=seed).fit(reduced)
    smaller = int(np.bincount(found.labels_).argmin())
    distances = found.transform(reduced)
    return np.asarray(distances[:, 1 - smaller] - distances[:, smaller], np.float64)


def spectral_signatures(features: Floats) -> Floats:
    """Squared projection on the first singular vector of a class. Asks no query."""
    centred = features - features.mean(0)
    return np.asarray((centred @ np.linalg.svd(centred, full_matrices=False)[2][0]) ** 2, np.float64)


def judge(scores: Floats, case: Case) -> dict[str, float]:
    """AUPR over the whole set, the others coming last, and precision at as many as are poisoned; percent."""
    everywhere = np.full(len(case.world.labels), -1e30)
    everywhere[case.rows] = scores
    is_poisoned = case.world.is_poisoned
    precision = precision_at(everywhere, is_poisoned, is_poisoned.mean())
    return {"aupr": 100 * average_precision(everywhere, is_poisoned), "precision": 100 * precision}


def clean(case: Case, scores: Floats) -> dict[str, float]:
    """Remove what is suspect, train anew, and try the trigger again."""
    suspects = case.rows[scores >= SUSPECT_FROM]
    left = np.setdiff1d(np.arange(len(case.world.labels)), suspects)
    model = train(case.world, left, case.setup)
    poisoned = case.world.is_poisoned
    counts = {"removed": len(suspects), "rightly": int(poisoned[suspects].sum()), "left": int(poisoned[left].sum())}
    return {**counts, **measure_attack(model, case.setup)}


def measure(setup: Setup) -> dict[str, Any]:
    started = time.perf_counter()
    world = make_world(setup)
    case = Case(world, train_states(world, setup), setup)
    found: dict[str, Any] = {"poisoned": int(world.is_poisoned.sum()), **measure_attack(case.model, setup)}
    print(found, flush=True)
    if found["attack"] < TOOK:  # there is no backdoor to look for, and nothing to ask with but honest mistakes
        return {**found, "seconds": time.perf_counter() - started}
    scores = score(case)
    found["methods"] = {name: judge(values, case) for name, values in scores.items()}
    if setup.retrain:
        found["cleaned"] = clean(case, scores["sgoif"])
    return {**found, "seconds": time.perf_counter() - started}


_ROWS = {
    "sgoif": "**`poison_suspects`**",
    "cosine": "cosine with the queries in feature space",
    "activation clustering": "activation clustering, no queries",
    "spectral signatures": "spectral signatures, no queries",
    "TracIn": "TracIn, last layer, three checkpoints",
    "K-FAC influence": "K-FAC influence at the head",
}


_DATASETS = {"cifar10": "CIFAR-10", "fashion-mnist": "Fashion-MNIST"}
_QUERIES = (1, 3, 10)


def _reported(queries: int = 10) -> list[tuple[str, list[Run]]]:
    """Groups of networks that differ by their seed only, each with its name."""
    asked = {"split": "reported", "queries": queries}
    runs = [run for run in latest("poison.jsonl") if asked.items() <= run["settings"].items()]
    groups = group_runs(runs, ("dataset", "rate", "examples", "epochs"))
    return [
        (f"{_DATASETS[dataset]}, {100 * float(rate):g}% of {examples:,}, {epochs} epochs", found)
        for (dataset, rate, examples, epochs), found in groups
    ]


def found_table() -> str:
    """AUPR of every score, and precision among as many as are poisoned."""
    rows = []
    for name, every in _reported():
        runs = [run for run in every if "methods" in run]
        for method, said in _ROWS.items() if runs else ():
            scores = [run["methods"][method] for run in runs]
            precision = f"{np.mean([item['precision'] for item in scores]):.1f}"
            aupr = interval([item["aupr"] for item in scores])
            rows.append([f"{name} ({describe_seeds(runs)})", said, aupr, precision])
    return table(["poisoned", "score", "AUPR", "precision"], rows)


def few_table() -> str:
    """Mean AUPR of those that ask queries, from one, three and ten of them, over networks that were asked all three."""
    rows = []
    by_count = [dict(_reported(count)) for count in _QUERIES]
    for name in by_count[-1]:
        asked = [{run["seed"]: run for run in part.get(name, ()) if "methods" in run} for part in by_count]
        seeds = sorted(set.intersection(*map(set, asked)))
        for method in ("sgoif", "cosine", "TracIn", "K-FAC influence") if seeds else ():
            scores = [np.mean([part[seed]["methods"][method]["aupr"] for seed in seeds]) for part in asked]
            said = describe_seeds([asked[0][seed] for seed in seeds])
            rows.append([f"{name} ({said})", _ROWS[method], *(f"{score:.1f}" for score in scores)])
    return table(["poisoned", "score", *(f"AUPR from {count}" for count in _QUERIES)], rows)


def removed_table() -> str:
    """The attack and the accuracy before and after removing the suspects and training anew."""
    rows = []
    for name, runs in _reported():
        for run in sorted(runs, key=lambda run: run["seed"]):
            after = run.get("cleaned")
            counts = "nothing: the attack did not take"
            if after is not None:
                counts = f"{after['removed']}, of them {after['rightly']} of {run['poisoned']} poisoned"
            columns, states = ("attack", "confused", "accuracy"), [run, after] if after else [run]
            cells = [" → ".join(f"{100 * state[column]:.1f}" for state in states) for column in columns]
            rows.append([f"{name}, seed {run['seed']}", counts, *cells])
    return table(["poisoned", "removed", "attack succeeds", "taken for the target without it", "accuracy"], rows)


_FASHION = {"dataset": "fashion-mnist", "examples": 10_000, "epochs": 4}
_BOTH = {"rate": (0.01, 0.005), "seed": (1, 2, 3)}
_FEW = {**_BOTH, "queries": (1, 3), "retrain": False}

EXPERIMENT = Experiment(
    name="poison",
    settings=Setup,
    run=measure,
    tables={"poison": found_table, "poison_removed": removed_table, "poison_few": few_table},
    full=(_BOTH, {**_FASHION, **_BOTH}, _FEW, {**_FASHION, **_FEW}),
    unrecorded=("seed", "retrain"),
    describe=lambda row: f"{row.get('methods', 'the attack did not take')}; {row.get('cleaned', '')}",
)
