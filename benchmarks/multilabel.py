"""Extra and missing tags found while a network trains on collages.

One watched training gives ours. From its finished weights, on the training pictures themselves, come the loss of every
pair and cleanlab's score of it; the mean loss over the training is what the run itself recorded.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

import sgoif
from benchmarks import data, loops
from benchmarks.collages import NOISES, Collages, draw_collages, plant_errors
from benchmarks.experiment import Experiment, option
from benchmarks.metrics import calibration_of_top, detection_report
from benchmarks.models import ResNet9
from benchmarks.tables.rows import Run, describe_seeds, group_runs, interval, latest, table

SIDES = {"extra": True, "missing": False}
SIGNALS = ("loss", "harm", "worst", "harm_identity", "probe_loss", "probe_margin")
_ROWS = {
    "final loss": "loss of the finished model",
    "cleanlab self_confidence": "cleanlab, self-confidence, same model",
    "cleanlab confidence_weighted_entropy": "cleanlab, confidence-weighted entropy, same model",
    "loss": "mean loss over the training",
    "harm": "`harm`",
    "worst": "`worst`",
    "probe_loss": "`probe_loss`",
    "p_wrong": "**`p_wrong`**",
    "audited p_wrong": "**`p_wrong`**, one pass over the finished model (`audit`)",
}
STATS = {"cifar10": data.CIFAR10_STATS, "fashion": data.FASHION_MNIST_STATS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What is trained and watched; the defaults are the development draw."""

    source: str = option("fashion", STATS)
    noise: str = option("uniform", NOISES)
    part: Literal["development", "reported"] = "development"
    holdout: Literal["trusted", "as-given"] = "trusted"
    rate: float = 0.05  # of the true tags
    examples: int = 10_000
    held: int = 1_000
    epochs: int = 4
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Found:
    """One finished training."""

    run: sgoif.Run
    audited: sgoif.Run  # the same from one pass over the finished model
    logits: NDArray[np.float64]  # of the finished model on the training pictures, [N, C]
    given: NDArray[np.bool_]
    wrong: NDArray[np.bool_]
    tag_ap: float  # mean over tags, of the finished model on clean hold-out collages that served nothing
    seconds: float


def train(setup: Setup) -> Found:
    """Watch one training."""
    train_set = draw_collages(setup.source, setup.part, setup.examples, setup.seed)
    held = draw_collages(setup.source, "held", 2 * setup.held, setup.seed)
    noise = plant_errors(setup.noise, setup.source, train_set.tags, setup.rate, setup.seed)
    in_holdout = plant_errors(setup.noise, setup.source, held.tags, setup.rate, setup.seed + 1_000)
    is_trusted = setup.holdout == "trusted"
    images, anchors = _tensors(train_set, setup.source), slice(0, setup.held)
    held_images = _tensors(held, setup.source)
    targets = torch.from_numpy(noise.given).float()
    held_targets = torch.from_numpy(held.tags if is_trusted else in_holdout.given).float()
    recipe = loops.Recipe(num_epochs=setup.epochs)
    torch.manual_seed(setup.seed)
    model = _network(images.shape[1], train_set.tags.shape[1])
    judged: dict[str, Any] = {
        "anchors": (held_images[anchors], held_targets[anchors]),
        "task": "multilabel",
        "trusted": is_trusted,
    }
    optimizer = loops.optimiser(model, recipe)
    scheduler = loops.schedule(optimizer, recipe, len(images))
    monitor = sgoif.watch(
        model,
        optimizer,
        train_size=len(images),
        class_names=train_set.class_names,
        seed=setup.seed,
        **judged,
    )
    started = time.perf_counter()
    model.train()
    for batch in loops.epochs(images, targets, recipe, setup.seed):
        with monitor.step(batch.indices, batch.labels):
            logits = loops.logits(model, batch.images, recipe)
            F.binary_cross_entropy_with_logits(logits, batch.labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    run, seconds = monitor.close(), time.perf_counter() - started
    assert run.info["counters"]["faults"] == 0, run.info["faults"]
    audited = sgoif.audit(
        model, (images, targets), forward=lambda x: loops.logits(model, x, recipe), seed=setup.seed, **judged
    )
    fresh = slice(setup.held, None)
    tag_ap = _mean_ap(_predict(model, held_images[fresh], recipe), held.tags[fresh])
    return Found(run, audited, _predict(model, images, recipe), noise.given, noise.wrong, tag_ap, seconds)


def _network(channels: int, num_tags: int) -> nn.Module:
    model = ResNet9(num_classes=num_tags)
    if channels != 3:
        first = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
        first.weight = nn.Parameter(first.weight.detach()[:, :channels].clone())
        first.in_channels = channels
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def _tensors(collages: Collages, source: str) -> Tensor:
    return data.normalise(collages.pixels, *STATS[source]).contiguous(memory_format=torch.channels_last)


@torch.no_grad()
def _predict(model: nn.Module, images: Tensor, recipe: loops.Recipe, batch: int = 500) -> NDArray[np.float64]:
    model.eval()
    return torch.cat([loops.logits(model, part, recipe) for part in images.split(batch)]).double().numpy()


def _mean_ap(logits: NDArray[np.float64], tags: NDArray[np.bool_]) -> float:
    return float(np.mean([detection_report(logits[:, c], tags[:, c])["ap"] for c in range(tags.shape[1])]))


def report_on(found: Found) -> dict[str, Any]:
    """AP, precision and calibration, each side by itself."""
    late = {f"audited {name}": values for name, values in _ours(found.audited, found.given.shape).items()}
    scores = {**_ours(found.run, found.given.shape), **late, **_rivals(found)}
    info = found.run.info
    report: dict[str, Any] = {"tag_ap": found.tag_ap, "seconds": found.seconds, "overhead": info["overhead"]}
    for side, bit in SIDES.items():
        mine = found.given == bit
        wrong = found.wrong[mine]
        report[side] = {
            "scores": {name: detection_report(values[mine], wrong) for name, values in scores.items()},
            "watch": _calibration(found.run, side, scores["p_wrong"][mine], wrong),
            "audit": _calibration(found.audited, side, scores["audited p_wrong"][mine], wrong),
        }
    return report


def _calibration(run: sgoif.Run, side: str, p: NDArray[np.float64], wrong: NDArray[np.bool_]) -> dict[str, Any]:
    expected = run.info.get("expected_tag_errors")
    if expected is None:  # a network that explains nothing of its hold-out says nothing
        return {"errors": {"expected": float("nan"), "true": int(wrong.sum())}, "precision": []}
    return {
        "errors": {"expected": expected[side], "true": int(wrong.sum())},
        "precision": calibration_of_top(p.clip(0, 1), wrong),
    }


def _ours(run: sgoif.Run, shape: tuple[int, ...]) -> dict[str, NDArray[np.float64]]:
    """A run's columns as ``[N, C]``; what it did not keep is the least suspicious."""
    rows = run.sql("select id, tag, p_wrong, " + ", ".join(SIGNALS) + " from tags")
    place = rows["id"].to_numpy(), rows["tag"].to_numpy()
    scores = {}
    for name in ("p_wrong", *SIGNALS):
        values = np.nan_to_num(rows[name].to_numpy(zero_copy_only=False).astype(np.float64))
        values = -values if name == "probe_margin" else values
        scores[name] = np.full(shape, values.min(initial=0.0) - 1)
        scores[name][place] = values
    return scores


def _rivals(found: Found) -> dict[str, NDArray[np.float64]]:
    from cleanlab.multilabel_classification.rank import get_label_quality_scores_per_class

    loss = np.logaddexp(0.0, np.where(found.given, -found.logits, found.logits))
    labels = [np.flatnonzero(row).tolist() for row in found.given]
    p = 1 / (1 + np.exp(-found.logits))
    scores = {"final loss": loss}
    for method in ("self_confidence", "confidence_weighted_entropy"):
        quality = get_label_quality_scores_per_class(labels, p, method=method)
        scores[f"cleanlab {method}"] = -np.asarray(quality).reshape(found.given.shape)
    return scores


def _reported() -> list[tuple[tuple[str, ...], list[Run]]]:
    runs = [run for run in latest(EXPERIMENT.results) if run["settings"]["part"] == "reported"]
    return group_runs(runs, ("source", "noise", "holdout"))


def tags_table() -> str:
    """AP of every score (and precision of the first 1% of its side), each side by itself."""
    rows = []
    for (source, noise, holdout), runs in _reported():
        for name, said in _ROWS.items():
            cells = []
            for side in SIDES:
                found = [run[side]["scores"][name] for run in runs]
                cells.append(f"{interval([item['ap'] for item in found])} ({np.mean([i['p@1%'] for i in found]):.0f})")
            rows.append([f"{source}, {noise}, {holdout} ({describe_seeds(runs)})", said, *cells])
    return table(["collages of, noise, hold-out", "score", "extra tags", "missing tags"], rows)


def calibration_table() -> str:
    """Errors estimated and planted, and the mean probability of the first 1, 5 and 10% beside the share wrong."""
    rows = []
    for (source, noise, holdout), runs in _reported():
        for run, side, way in product(sorted(runs, key=lambda run: run["seed"]), SIDES, ("watch", "audit")):
            part = run[side][way]
            tops = [f"{100 * item['value']:.0f}; {100 * item['true']:.0f}" for item in part["precision"]]
            errors = f"{part['errors']['expected']:,.0f}; {part['errors']['true']:,}"
            rows.append([f"{source}, {noise}, {holdout}, seed {run['seed']}, {way}", side, errors, *tops])
    header = ["run", "side", "errors estimated; true", "top 1%: mean p; wrong, %", "top 5%", "top 10%"]
    return table(header, rows)


def describe(row: Run) -> str:
    found = (f"{side} tags: AP {row[side]['scores']['p_wrong']['ap']:.1f}" for side in SIDES)
    return f"tags on fresh collages: mean AP {row['tag_ap']:.1f}; {', '.join(found)}; {row['seconds']:.0f} s"


EXPERIMENT = Experiment(
    name="multilabel",
    settings=Setup,
    run=lambda setup: report_on(train(setup)),
    tables={"multilabel": tags_table, "multilabel_calibration": calibration_table},
    full={"part": "reported", "seed": (1, 2)},
    small={"examples": 800, "epochs": 2, "seed": 0},
    needs=("cleanlab",),
    describe=describe,
)
