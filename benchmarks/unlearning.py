"""What forgetting would do, predicted and retrained: ``python -m benchmarks.unlearning --seeds 1,2,3``.

Softmax regression on MNIST in float64, trained to its optimum; 2% of the labels are wrong. Requests to forget: single
examples, random groups, look-alikes, half of a class, wrong labels. :meth:`sgoif.Run.unlearning_plan` predicts losses
and logits of test pictures without them; the model is trained anew, to its optimum, and the two are compared, beside
the sum of influences (the curvature of all examples, to first order) and that of gradient products (no curvature).

One line per seed in ``results/unlearning.jsonl``. :mod:`benchmarks.unlearning_network` does the same to a network.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks import data
from benchmarks.agreement import pearson, spearman
from benchmarks.convex import SoftmaxProblem, push
from benchmarks.exactness import Truth
from benchmarks.records import append_result, is_recorded
from sgoif.linalg import Direct
from sgoif.run import Run
from sgoif.tables import MemoryTables
from sgoif.unlearning import UnlearningPlan

FILE = "unlearning.jsonl"
BAR = 0.95
L2 = 1e-3
WRONG = 0.02  # of the labels
KINDS = {"one example": 8, "random 1%": 6, "look-alikes": 6, "half of a class": 6, "wrong labels": 4}

Row = dict[str, Any]


class Asked(NamedTuple):
    """One request."""

    kind: str
    rows: NDArray[np.int64]


class World(NamedTuple):
    train: SoftmaxProblem
    test: SoftmaxProblem
    is_wrong: NDArray[np.bool_]


def make_world(count: int, tested: int, seed: int, l2: float) -> World:
    """Draw pictures; seed 0 is for development and draws from the first 20,000."""
    pictures, rng = data.mnist("train"), np.random.default_rng(seed)
    pool = np.arange(data.NUM_DEVELOPMENT) if seed == 0 else np.arange(data.NUM_DEVELOPMENT, len(pictures))
    drawn = pictures.take(np.sort(rng.choice(pool, count, replace=False)))
    is_wrong = np.zeros(count, bool)
    is_wrong[rng.choice(count, round(WRONG * count), replace=False)] = True
    labels = np.where(is_wrong, (drawn.labels + rng.integers(1, 10, count)) % 10, drawn.labels)
    test = data.mnist("test", tested)
    return World(_problem(drawn.pixels, labels, l2), _problem(test.pixels, test.labels[:tested], l2), is_wrong)


def _problem(pixels: NDArray[np.uint8], labels: NDArray[np.int64], l2: float) -> SoftmaxProblem:
    flat = torch.from_numpy(pixels.reshape(len(pixels), -1)).double() / 255
    return SoftmaxProblem(torch.cat([flat, flat.new_ones(len(flat), 1)], 1), torch.from_numpy(labels), 10, l2)


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
    block = truth.theta.reshape(10, -1)
    model = nn.Linear(block.shape[1] - 1, 10).double()
    with torch.no_grad():
        model.weight.copy_(block[:, :-1])
        model.bias.copy_(block[:, -1])
    sets = [(problem.features[:, :-1], problem.labels) for problem in (truth.train, truth.test)]
    run = Run({}, MemoryTables({}))
    return run.unlearning_plan(
        asked.rows.tolist(), model=model, dataset=sets[0], holdout=sets[1], weight_decay=truth.train.l2, damping=0.0
    )


def retrained(truth: Truth, asked: list[Asked]) -> Tensor:
    """The head without each request, at its optimum: ``[P, K]``."""
    weights = truth.train.uniform(len(asked))
    for column, request in enumerate(asked):
        weights[torch.from_numpy(request.rows), column] = 0
    start = truth.theta.expand(-1, len(asked))
    return truth.train.fit(weights / weights.sum(0), start, truth.inverse, tolerance=1e-10)


def judged(truth: Truth, asked: Asked, target: Tensor) -> Row:
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


def measure(count: int, tested: int, seed: int, l2: float) -> Row:
    started = time.perf_counter()
    world = make_world(count, tested, seed, l2)
    truth = Truth(world.train, world.test)
    asked = list(requests(world, seed))
    targets = retrained(truth, asked)
    print(f"retrained {len(asked)} times in {time.perf_counter() - started:.0f} s", flush=True)
    rows = []
    for request, target in zip(asked, targets.T, strict=True):
        rows.append(judged(truth, request, target[:, None]))
        print({key: value for key, value in rows[-1].items() if "anchors" not in key}, flush=True)
    changes = [np.array([row[name] for row in rows]) for name in ("anchors", "true_anchors")]
    by_anchor = {"pearson": pearson(*changes).tolist(), "spearman": spearman(*changes).tolist()}
    return {"requests": rows, "by_anchor": by_anchor, "seconds": time.perf_counter() - started}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=5_000)
    parser.add_argument("--tested", type=int, default=500)
    parser.add_argument("--seeds", default="1,2,3", help="comma-separated; 0 is for development")
    parser.add_argument("--l2", type=float, default=L2)
    parser.add_argument("--save", help=f"append results to this file, such as {FILE}")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for seed in map(int, options.seeds.split(",")):
        settings = {"part": "convex", "examples": options.examples, "tested": options.tested, "l2": options.l2}
        settings |= {"wrong": WRONG}
        if options.save and is_recorded(options.save, settings, seed):
            continue
        found = measure(options.examples, options.tested, seed, options.l2)
        print(f"seed {seed}: {found['by_anchor']}", flush=True)
        if options.save:
            append_result(options.save, {"benchmark": "unlearning", "settings": settings, "seed": seed, **found})


if __name__ == "__main__":
    main()
