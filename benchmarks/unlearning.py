"""What forgetting would do, predicted and retrained.

Softmax regression on MNIST in float64, trained to its optimum; 2% of the labels are wrong. Requests to forget: single
examples, random groups, look-alikes, half of a class, wrong labels. :meth:`sgoif.Run.unlearning_plan` predicts losses
and logits of test pictures without them; the model is trained anew, to its optimum, and the two are compared, beside
the sum of influences (the curvature of all examples, to first order) and that of gradient products (no curvature).

:mod:`benchmarks.unlearning_network` does the same to a network.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from benchmarks import data
from benchmarks.agreement import pearson, spearman
from benchmarks.convex import SoftmaxProblem, push
from benchmarks.exactness import Truth
from benchmarks.experiment import Experiment
from benchmarks.tables.rows import Run as Result
from benchmarks.tables.rows import describe_seeds, latest, table
from sgoif.linalg import Direct
from sgoif.run import Run
from sgoif.tables import MemoryTables
from sgoif.unlearning import UnlearningPlan

KINDS = {"one example": 8, "random 1%": 6, "look-alikes": 6, "half of a class": 6, "wrong labels": 4}

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One drawn problem; seed 0 is for development."""

    part: Literal["convex"] = "convex"
    examples: int = 5_000
    tested: int = 500
    l2: float = 1e-3
    wrong: float = 0.02  # of the labels
    seed: int = 1


class Asked(NamedTuple):
    """One request."""

    kind: str
    rows: NDArray[np.int64]


class World(NamedTuple):
    train: SoftmaxProblem
    test: SoftmaxProblem
    is_wrong: NDArray[np.bool_]


def draw_pictures(pictures: data.Images, count: int, seed: int) -> tuple[data.Images, np.random.Generator]:
    """Draw training pictures; seed 0 is for development and draws from the first 20,000."""
    rng = np.random.default_rng(seed)
    pool = np.arange(data.NUM_DEVELOPMENT) if seed == 0 else np.arange(data.NUM_DEVELOPMENT, len(pictures))
    return pictures.take(np.sort(rng.choice(pool, count, replace=False))), rng


def make_world(settings: Settings) -> World:
    count, tested, l2 = settings.examples, settings.tested, settings.l2
    drawn, rng = draw_pictures(data.mnist("train"), count, settings.seed)
    is_wrong = np.zeros(count, bool)
    is_wrong[rng.choice(count, round(settings.wrong * count), replace=False)] = True
    labels = np.where(is_wrong, (drawn.labels + rng.integers(1, 10, count)) % 10, drawn.labels)
    test = data.mnist("test", tested)
    make = SoftmaxProblem.of_pictures
    return World(make(drawn.pixels, labels, l2), make(test.pixels, test.labels[:tested], l2), is_wrong)


def requests(world: World, seed: int) -> Iterator[Asked]:
    rng = np.random.default_rng(seed + 1000)  # another stream than that which drew the pictures
    n, labels, features = world.train.num_examples, world.train.labels.numpy(), world.train.features
    size = max(n // 100, 2)
    for _ in range(KINDS["one example"]):
        yield Asked("one example", rng.choice(n, 1))
    for _ in range(KINDS["random 1%"]):
        yield Asked("random 1%", rng.choice(n, size, replace=False))
    for centre in rng.choice(n, KINDS["look-alikes"], replace=False):
        distances = torch.cdist(features[centre : centre + 1], features)[0].numpy()
        yield Asked("look-alikes", np.argsort(distances)[:size])
    for label in rng.choice(10, KINDS["half of a class"], replace=False):
        members = np.flatnonzero(labels == label)
        yield Asked("half of a class", rng.choice(members, len(members) // 2, replace=False))
    wrong = np.flatnonzero(world.is_wrong)
    yield Asked("wrong labels", wrong)
    for _ in range(KINDS["wrong labels"] - 1):
        yield Asked("wrong labels", rng.choice(wrong, len(wrong) // 2, replace=False))


def plan_of(truth: Truth, asked: Asked) -> UnlearningPlan:
    """As a user would ask."""
    sets = [(problem.features[:, :-1], problem.labels) for problem in (truth.train, truth.test)]
    run = Run({}, MemoryTables({}))
    return run.unlearning_plan(
        asked.rows.tolist(),
        model=truth.model(),
        dataset=sets[0],
        holdout=sets[1],
        weight_decay=truth.train.l2,
        damping=0.0,
    )


def retrain(truth: Truth, asked: list[Asked]) -> Tensor:
    """The head without each request, at its optimum: ``[P, K]``."""
    weights = truth.train.uniform(len(asked))
    for column, request in enumerate(asked):
        weights[torch.from_numpy(request.rows), column] = 0
    start = truth.theta.expand(-1, len(asked))
    return truth.train.fit(weights / weights.sum(0), start, truth.inverse, tolerance=1e-10)


def judge(truth: Truth, asked: Asked, target: Tensor) -> Row:
    """Hold predictions of a request against the retrained head ``[P, 1]``."""
    started = time.process_time()
    plan = plan_of(truth, asked)
    found = plan.predictions(truth.test.features[:, :-1])
    seconds = time.process_time() - started
    before = truth.test.losses(truth.theta)[:, 0]
    losses = F.cross_entropy(torch.from_numpy(found.after), truth.test.labels, reduction="none")
    true_losses = truth.test.losses(target)[:, 0] - before
    true_logits = push(truth.test.features, target - truth.theta)[:, :, 0]
    step = torch.cat([part.reshape(10, -1) for part in plan.removed_weights().values()], 1).reshape(-1, 1)
    moved, off = float((target - truth.theta).norm()), float((step - target).norm())
    bound = plan.certificate.distance_bound
    assert bound is not None
    ours = agreement(losses - before, true_losses, torch.from_numpy(found.after - found.before), true_logits)
    return {
        "kind": asked.kind,
        "size": len(asked.rows),
        "methods": {"plan": ours, **rivals(truth, asked, true_losses, true_logits)},
        "anchors": plan.anchors["change"].to_pylist(),
        "true_anchors": anchor_changes(truth, true_losses),
        "moved": moved,
        "error": off / moved,
        "relative": plan.certificate.relative,
        "bound_over_distance": bound / off,
        "cpu_s": seconds,
    }


def rivals(truth: Truth, asked: Asked, true_losses: Tensor, true_logits: Tensor) -> dict[str, Row]:
    """Steps that are sums over the members, and losses to first order in them; gradients have no unit to be off by."""
    n, rows = truth.train.num_examples, torch.from_numpy(asked.rows)
    part = SoftmaxProblem(truth.train.features[rows], truth.train.labels[rows], 10, 0.0)
    mean = part.gradient(truth.theta, part.uniform())
    weighed = mean + truth.train.l2 * truth.theta  # less that of all, for retraining is by the mean over those left
    steps = {"influence": Direct().solve(truth.direct, weighed * (len(rows) / n)).value, "gradients": mean}
    found = {}
    for name, step in steps.items():
        logits = push(truth.test.features, step)[:, :, 0]
        losses = (truth.test.output_gradients(truth.theta)[:, :, 0] * logits).sum(1)
        found[name] = agreement(losses, true_losses, logits, true_logits)
    return found


def agreement(losses: Tensor, true_losses: Tensor, logits: Tensor, true_logits: Tensor) -> Row:
    """Correlations over the test pictures, and by how much the predicted losses are off, in all."""
    return {
        "pearson": float(pearson(losses, true_losses)[0]),
        "spearman": float(spearman(losses, true_losses)[0]),
        "logits": float(pearson(logits.ravel(), true_logits.ravel())[0]),
        "off": float((losses - true_losses).norm() / true_losses.norm()),
    }


def anchor_changes(truth: Truth, changes: Tensor) -> list[float]:
    """Mean over all test pictures, then over each class, as :attr:`UnlearningPlan.anchors` has them."""
    by_class = [changes[truth.test.labels == c].mean() for c in range(10)]
    return [float(value) for value in (changes.mean(), *by_class)]


def measure(settings: Settings) -> Row:
    started = time.perf_counter()
    world = make_world(settings)
    truth = Truth(world.train, world.test)
    asked = list(requests(world, settings.seed))
    targets = retrain(truth, asked)
    print(f"retrained {len(asked)} times in {time.perf_counter() - started:.0f} s", flush=True)
    rows = [judge(truth, request, target[:, None]) for request, target in zip(asked, targets.T, strict=True)]
    changes = [np.array([row[name] for row in rows]) for name in ("anchors", "true_anchors")]
    by_anchor = {"pearson": pearson(*changes).tolist(), "spearman": spearman(*changes).tolist()}
    return {"requests": rows, "by_anchor": by_anchor, "seconds": time.perf_counter() - started}


METHODS = {
    "plan": "**`unlearning_plan`**",
    "influence": "sum of influences (curvature of all, first order)",
    "gradients": "sum of gradient products (no curvature)",
}


def read_runs(part: str) -> list[Result]:
    return [run for run in latest("unlearning.jsonl") if run["settings"]["part"] == part and run["seed"] > 0]


def _kinds(runs: Sequence[Result]) -> dict[str, list[Result]]:
    """Requests of all seeds by their kind."""
    found: dict[str, list[Result]] = {}
    for run in runs:
        for request in run["requests"]:
            found.setdefault(request["kind"], []).append(request)
    return found


def agreements() -> str:
    """Agreement over test pictures, mean over requests, the lowest in brackets."""
    runs = read_runs("convex")
    rows = []
    for kind, requests in _kinds(runs).items():
        for method, said in METHODS.items():
            scores = [request["methods"][method] for request in requests]
            off = "" if method == "gradients" else f"{100 * np.mean([score['off'] for score in scores]):.0f}%"
            name = f"{kind} ({len(requests)} requests, {describe_seeds(runs)})"
            rows.append(
                [name, said, *(_cell([s[key] for s in scores]) for key in ("pearson", "spearman", "logits")), off]
            )
    header = ["request", "predicted by", "losses, Pearson", "losses, Spearman", "logits, Pearson", "losses off by"]
    return table(header, rows)


def anchors() -> str:
    """Agreement over the requests of a seed, mean over seeds: of all test pictures, and of the classes."""
    runs = read_runs("convex")
    rows = []
    for said, part in (("all test pictures", slice(0, 1)), ("the test pictures of a class", slice(1, None))):
        found = [[value for run in runs for value in run["by_anchor"][how][part]] for how in ("pearson", "spearman")]
        rows.append([f"{said} ({describe_seeds(runs)})", *map(_cell, found)])
    return table(["mean loss of", "Pearson", "Spearman"], rows)


def _cell(values: Sequence[float]) -> str:
    return f"{np.mean(values):.3f} ({min(values):.3f})"


def steps() -> str:
    """How far the one step is from the retrained head, and what its certificate says."""
    rows = []
    for kind, requests in _kinds(read_runs("convex")).items():
        error, relative, slack = (
            np.array([request[key] for request in requests]) for key in ("error", "relative", "bound_over_distance")
        )
        held = f"{int((slack >= 1).sum())} of {len(slack)}, {np.median(slack):.0f} times too wide"
        seconds = f"{np.mean([request['cpu_s'] for request in requests]):.0f}"
        rows.append([kind, f"{error.mean():.3f} ({error.max():.3f})", f"{relative.mean():.3f}", held, seconds])
    return table(["request", "distance left", "`relative`", "bound holds", "processor seconds"], rows)


UNLEARNING = Experiment(
    name="unlearning",
    settings=Settings,
    run=measure,
    describe=lambda row: str(row["by_anchor"]),
    tables={"unlearning": agreements, "unlearning_anchors": anchors, "unlearning_steps": steps},
    full={"seed": [1, 2, 3]},
)
