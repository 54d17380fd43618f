"""What cleaning without people is worth.

Labels are judged with no clean label at hand, in two ways: while a ResNet-9 trains from scratch (a tenth of the data is
held out, as given), and by linear heads on frozen pretrained features. Those that are more likely wrong than right are
relabelled as suggested, or dropped; then the network is trained from scratch on all that is left, and tested on the
10,000 test images. Confident learning (cleanlab's normalised margin) has the same budget: as many labels as ours
changes, from four-fold cross-validated predictions of the same network, or of heads on the same features.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

import sgoif
from benchmarks import data, frozen, loops
from benchmarks.experiment import FROZEN, Experiment, option
from benchmarks.frozen_noise import cross_validate
from benchmarks.models import fresh_model
from benchmarks.review import Labels, Setup, World, finished_run, make_world, retrained_accuracy
from benchmarks.tables.rows import group_runs, latest
from sgoif.evidence import hash_ids
from sgoif.scanning.frozen import audit_embeddings
from sgoif.scanning.standardise import standardise

FOLDS = 4
JUDGES = ("frozen ours", "frozen confident", "scratch ours", "scratch confident")

Judgement = tuple[Labels, Labels]  # positions that are doubted, and what they may be in truth


def judge_by_ours(run: sgoif.Run) -> Judgement:
    """All that is more likely wrong than right, hold-out examples among them."""
    table = run.label_issues()
    doubted = table.filter(table["is_label_issue"])
    ids = np.array([int(str(name).rpartition("/")[2]) for name in doubted["id"].to_pylist()], dtype=np.int64)
    return ids, doubted["suggested_label"].to_numpy().astype(np.int64)


def judge_by_confident(probabilities: NDArray[np.float64], given: Labels, budget: int) -> Judgement:
    """The first so many by cleanlab's normalised margin; what they may be is the likeliest class."""
    from cleanlab.rank import get_label_quality_scores

    scores = get_label_quality_scores(given, probabilities, method="normalized_margin")
    doubted = np.argsort(scores, kind="stable")[:budget]
    return doubted, probabilities[doubted].argmax(1)


def folds_of(count: int) -> NDArray[np.int64]:
    return (hash_ids(np.arange(count)) >> np.uint64(7)).astype(np.int64) % FOLDS


def frozen_rows(setup: Setup) -> NDArray[np.float32]:
    """Embeddings of the examples of a seed."""
    return frozen.embeddings("train")[data.draw(setup.split, setup.examples, setup.seed).train.ids]


def frozen_probabilities(world: World, setup: Setup) -> NDArray[np.float64]:
    """Cross-validated predictions of linear heads."""
    inputs, count = standardise(frozen_rows(setup)).inputs, len(world.given)
    targets = torch.from_numpy(world.given)
    return cross_validate(inputs, targets, np.arange(count), folds_of(count), setup.seed)


def scratch_probabilities(world: World, setup: Setup) -> NDArray[np.float64]:
    """Cross-validated predictions of the network, trained four times."""
    images, labels = world.dataset.tensors
    fold, recipe = folds_of(len(labels)), loops.Recipe(num_epochs=setup.epochs)
    found = np.zeros((len(labels), 10))
    for number in range(FOLDS):
        kept = torch.from_numpy(np.flatnonzero(fold != number))
        kept = kept[: len(kept) // recipe.batch_size * recipe.batch_size]  # a batch of one ruins a batch norm
        model = fresh_model(setup.seed)
        loops.train(model, images[kept], labels[kept], recipe, setup.seed)
        model.eval()
        out = torch.from_numpy(np.flatnonzero(fold == number))
        with torch.no_grad():
            parts = [
                loops.logits(model, images[part].contiguous(memory_format=torch.channels_last), recipe)
                for part in out.split(500)
            ]
        found[fold == number] = torch.cat(parts).double().softmax(1).numpy()
    return found


@cache
def judge(setup: Setup, name: str) -> Judgement:
    """What a judge says of the labels."""
    world = make_world(setup)
    if name == "scratch ours":
        return judge_by_ours(sgoif.load(finished_run(world, setup)))
    if name == "frozen ours":
        ids = np.array([f"train/{i}" for i in range(len(world.given))])
        return judge_by_ours(audit_embeddings(frozen_rows(setup), world.given, ids, num_classes=10))
    kind = name.partition(" ")[0]
    probabilities = (frozen_probabilities if kind == "frozen" else scratch_probabilities)(world, setup)
    return judge_by_confident(probabilities, world.given, len(judge(setup, f"{kind} ours")[0]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaning(Setup):
    """One training on labels that a judge has cleaned."""

    setting: str = "pair-20"
    judge: str = option("none", ("none", "truth", *JUDGES))
    way: Literal["", "relabel", "drop"] = ""


def measure(cleaning: Cleaning) -> dict[str, Any]:
    """One training and what it was trained on."""
    started = time.perf_counter()
    setup = Setup(**{field.name: getattr(cleaning, field.name) for field in fields(Setup)})
    world = make_world(setup)
    images, labels = world.dataset.tensors[0], world.given.copy()
    kept = np.ones(len(labels), bool)
    found: dict[str, Any] = {}
    if cleaning.judge == "truth":
        labels = world.clean.copy()
    elif cleaning.judge != "none":
        doubted, suggested = judge(setup, cleaning.judge)
        wrong = (world.given != world.clean)[doubted]
        right = (suggested == world.clean[doubted])[wrong]
        found = {"changed": len(doubted), "truly_wrong": int(wrong.sum()), "suggested_right": int(right.sum())}
        if cleaning.way == "drop":
            kept[doubted] = False
        else:
            labels[doubted] = np.where(suggested >= 0, suggested, labels[doubted])
    rows = np.flatnonzero(kept)
    rows = rows[: len(rows) // loops.Recipe().batch_size * loops.Recipe().batch_size]
    accuracy = retrained_accuracy(images[rows], torch.from_numpy(labels[rows]), setup)
    left = int((labels[rows] != world.clean[rows]).sum())
    seconds = time.perf_counter() - started
    return {"accuracy": accuracy, "wrong_labels": left, "examples": len(rows), "seconds": seconds, **found}


_JUDGES = {
    "none": "nobody (labels as given)",
    "truth": "all labels true",
    "frozen ours": "sgoif, heads on frozen features",
    "frozen confident": "confident learning, same features",
    "scratch ours": "sgoif, one watched training",
    "scratch confident": "confident learning, same network (4 trainings)",
}


def cleaned() -> str:
    """Test accuracy after cleaning without people, and the share of the gap to true labels that it recovers."""
    runs = latest("cleaned.jsonl")
    columns = [where for (where,), _ in group_runs(runs, ("setting",))]
    found = dict(group_runs(runs, ("setting", "judge", "way")))
    lines = [f"| judged by | changed how | {' | '.join(columns)} |", "|---|---|" + "---|" * len(columns)]
    kinds = dict.fromkeys((run["settings"]["judge"], run["settings"]["way"]) for run in runs)
    for judge, way in kinds:
        cells = [_cleaned(found, where, judge, way) for where in columns]
        lines.append(f"| {_JUDGES.get(judge, judge)} | {way or '-'} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cleaned(found: Mapping[tuple[str, ...], Sequence[Mapping[str, Any]]], where: str, judge: str, way: str) -> str:
    """Mean accuracy over the seeds, how much of the gap that is, and what became of the labels."""
    mine = {run["seed"]: run for run in found.get((where, judge, way), ())}
    if not mine:
        return ""
    accuracy = 100 * float(np.mean([run["accuracy"] for run in mine.values()]))
    wrong = np.mean([run["wrong_labels"] for run in mine.values()])
    if judge in ("none", "truth"):
        return f"{accuracy:.1f}; {wrong:,.0f} wrong"
    ends = [{run["seed"]: run["accuracy"] for run in found.get((where, end, ""), ())} for end in ("none", "truth")]
    both = [seed for seed in mine if seed in ends[0] and seed in ends[1]]
    shares = [(mine[seed]["accuracy"] - ends[0][seed]) / (ends[1][seed] - ends[0][seed]) for seed in both]
    share = f", {100 * float(np.mean(shares)):.0f}% of the gap" if shares else ""
    return f"{accuracy:.1f}{share}; {wrong:,.0f} wrong"


EXPERIMENT = Experiment(
    name="cleaned",
    settings=Cleaning,
    run=measure,
    tables={"cleaned": cleaned},
    full=(
        {"setting": ("pair-20", "worst"), "judge": ("none", "truth"), "seed": (1, 2, 3)},
        {"setting": ("pair-20", "worst"), "judge": JUDGES, "way": ("relabel", "drop"), "seed": (1, 2, 3)},
    ),
    constants={"from": 0.5},  # p_mislabeled
    needs=(*FROZEN, "cleanlab"),
    describe=lambda row: f"{row['wrong_labels']} of {row['examples']} wrong, accuracy {100 * row['accuracy']:.2f}%",
)
