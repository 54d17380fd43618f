"""Which training pictures serve a backdoor: ``python -m benchmarks.poison --rates 0.01,0.005 --seeds 1``.

From 10 triggered test pictures, which a poisoned network (:mod:`benchmarks.poisoned`) takes for the target class, the
poisoned training pictures are looked for: by :meth:`sgoif.Run.poison_suspects`, K-FAC influence at the head, TracIn at
three checkpoints, cosine in feature space, activation clustering (Chen et al. 2018) and spectral signatures (Tran et
al. 2018). Every score is asked about the pictures labelled as the target class only; the others come last for all of
them. Then what we flag is removed, the network is trained anew, and the trigger tried again.

Poisoned networks are kept in the cache. One line per network in ``results/poison.jsonl``.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import sgoif
from benchmarks import loops
from benchmarks.metrics import average_precision, precision_at
from benchmarks.poisoned import (
    CHECKPOINTS,
    DATASETS,
    Setup,
    State,
    World,
    bad_predictions,
    fresh_model,
    make_world,
    recipe_of,
    tested,
    train,
    trained,
)
from benchmarks.records import append_result, is_recorded
from sgoif.explain import examples_behind
from sgoif.findings.poison import SUSPECT_FROM

FILE = "poison.jsonl"
TOOK = 0.5  # the least success of an attack that is looked into

Floats = NDArray[np.float64]


class Case:
    """A poisoned network and what it is asked about: the pictures labelled as the target."""

    def __init__(self, world: World, states: list[State], setup: Setup) -> None:
        self.world, self.states, self.setup = world, states, setup
        self.model = fresh_model(setup)
        self.model.load_state_dict(states[-1])
        self.rows = np.flatnonzero(world.labels.numpy() == setup.target)
        self.queries = bad_predictions(self.model, setup)
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
    recipe = recipe_of(case.setup)
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


def judged(scores: Floats, case: Case) -> dict[str, float]:
    """AUPR over the whole set, the others coming last, and precision at as many as are poisoned; percent."""
    everywhere = np.full(len(case.world.labels), -1e30)
    everywhere[case.rows] = scores
    is_poisoned = case.world.is_poisoned
    precision = precision_at(everywhere, is_poisoned, is_poisoned.mean())
    return {"aupr": 100 * average_precision(everywhere, is_poisoned), "precision": 100 * precision}


def cleaned(case: Case, scores: Floats) -> dict[str, float]:
    """Remove what is suspect, train anew, and try the trigger again."""
    suspects = case.rows[scores >= SUSPECT_FROM]
    left = np.setdiff1d(np.arange(len(case.world.labels)), suspects)
    model = train(case.world, left, case.setup)
    poisoned = case.world.is_poisoned
    counts = {"removed": len(suspects), "rightly": int(poisoned[suspects].sum()), "left": int(poisoned[left].sum())}
    return {**counts, **tested(model, case.setup)}


def measure(setup: Setup, *, retrain: bool = True) -> dict[str, Any]:
    started = time.perf_counter()
    world = make_world(setup)
    case = Case(world, trained(world, setup), setup)
    found: dict[str, Any] = {"poisoned": int(world.is_poisoned.sum()), **tested(case.model, setup)}
    print(found, flush=True)
    if found["attack"] < TOOK:  # there is no backdoor to look for, and nothing to ask with but honest mistakes
        return {**found, "seconds": time.perf_counter() - started}
    scores = score(case)
    found["methods"] = {name: judged(values, case) for name, values in scores.items()}
    print(found["methods"], flush=True)
    if retrain:
        found["cleaned"] = cleaned(case, scores["sgoif"])
    return {**found, "seconds": time.perf_counter() - started}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="0.01,0.005", help="comma-separated shares of poisoned pictures")
    parser.add_argument("--seeds", default="1", help="comma-separated")
    parser.add_argument("--split", choices=["development", "reported"], default="reported")
    parser.add_argument("--dataset", choices=DATASETS, default=Setup().dataset)
    parser.add_argument("--examples", type=int, default=Setup().examples)
    parser.add_argument("--epochs", type=int, default=Setup().epochs)
    parser.add_argument("--queries", type=int, default=Setup().queries, help="bad predictions to ask with")
    parser.add_argument("--no-retraining", action="store_true")
    parser.add_argument("--save", help=f"append results to this file, such as {FILE}")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for seed in map(int, options.seeds.split(",")):
        for rate in map(float, options.rates.split(",")):
            setup = Setup(
                dataset=options.dataset,
                rate=rate,
                split=options.split,
                examples=options.examples,
                epochs=options.epochs,
                queries=options.queries,
                seed=seed,
            )
            settings = {name: value for name, value in asdict(setup).items() if name != "seed"}
            if options.save and is_recorded(options.save, settings, seed):
                continue
            found = measure(setup, retrain=not options.no_retraining)
            print(f"rate {rate}, seed {seed}: {found}", flush=True)
            if options.save:
                append_result(options.save, {"benchmark": "poison", "settings": settings, "seed": seed, **found})


if __name__ == "__main__":
    main()
