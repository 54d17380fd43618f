"""What cleaning without people is worth: ``python -m benchmarks.cleaned --settings pair-20,worst --seeds 1``.

Labels are judged with no clean label at hand, in two ways: while a ResNet-9 trains from scratch (a tenth of the data is
held out, as given), and by linear heads on frozen pretrained features. Those that are more likely wrong than right are
relabelled as suggested, or dropped; then the network is trained from scratch on all that is left, and tested on the
10,000 test images. Confident learning (cleanlab's normalised margin) has the same budget: as many labels as ours
changes, from four-fold cross-validated predictions of the same network, or of heads on the same features.

One line per training in ``results/cleaned.jsonl``; those that are there already are passed over.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import sgoif
from benchmarks import data, frozen, loops
from benchmarks.records import append_result, is_recorded
from benchmarks.review import Labels, Setup, World, finished_run, fresh_model, make_world, retrained_accuracy
from sgoif.evidence import hash_ids
from sgoif.scan.frozen import audit_embeddings, train_head
from sgoif.scan.holdout import choose_holdout
from sgoif.scan.standardise import standardise

FILE = "cleaned.jsonl"
FOLDS = 4
FROM = 0.5  # p_mislabeled
WAYS = ("relabel", "drop")
JUDGES = ("frozen ours", "frozen confident", "scratch ours", "scratch confident")

Judgement = tuple[Labels, Labels]  # positions that are doubted, and what they may be in truth


def judged_by_us(run: sgoif.Run) -> Judgement:
    """All that is more likely wrong than right, hold-out examples among them."""
    table = run.label_issues()
    doubted = table.filter(table["is_label_issue"])
    ids = np.array([int(str(name).rpartition("/")[2]) for name in doubted["id"].to_pylist()], dtype=np.int64)
    return ids, doubted["suggested_label"].to_numpy().astype(np.int64)


def judged_by_confident(probabilities: NDArray[np.float64], given: Labels, budget: int) -> Judgement:
    """The first so many by cleanlab's normalised margin; what they may be is the likeliest class."""
    from cleanlab.rank import get_label_quality_scores

    scores = get_label_quality_scores(given, probabilities, method="normalized_margin")
    doubted = np.argsort(scores, kind="stable")[:budget]
    return doubted, probabilities[doubted].argmax(1)


def frozen_rows(setup: Setup) -> NDArray[np.float32]:
    """Embeddings of the examples of a seed."""
    split = (
        data.development(setup.examples) if setup.split == "development" else data.reported(setup.examples, setup.seed)
    )
    return frozen.embeddings("train")[split.train.ids]


def folds_of(count: int) -> NDArray[np.int64]:
    return (hash_ids(np.arange(count)) >> np.uint64(7)).astype(np.int64) % FOLDS


def frozen_probabilities(world: World, setup: Setup) -> NDArray[np.float64]:
    """Cross-validated predictions of linear heads."""
    rows, targets = frozen_rows(setup), torch.from_numpy(world.given)
    inputs, fold = standardise(rows).inputs, folds_of(len(rows))
    found = np.zeros((len(rows), 10))
    for number in range(FOLDS):
        _, forward = train_head(inputs, targets, np.flatnonzero(fold != number), 10, seed=setup.seed)
        with torch.no_grad():
            found[fold == number] = forward(inputs[fold == number]).double().softmax(1).numpy()
    return found


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


class Judges:
    """What each judge says of a world, worked out when first asked for."""

    def __init__(self, world: World, setup: Setup) -> None:
        self.world, self.setup = world, setup
        self.says = cache(self._says)

    def _says(self, judge: str) -> Judgement:
        world, setup = self.world, self.setup
        if judge == "scratch ours":
            return judged_by_us(sgoif.load(finished_run(world, setup)))
        if judge == "frozen ours":
            ids = np.array([f"train/{i}" for i in range(len(world.given))])
            held = choose_holdout(ids, world.given, 10)
            return judged_by_us(
                audit_embeddings(frozen_rows(setup), world.given, ids, held, num_classes=10, seed=setup.seed)
            )
        kind = judge.partition(" ")[0]
        probabilities = (frozen_probabilities if kind == "frozen" else scratch_probabilities)(world, setup)
        return judged_by_confident(probabilities, world.given, len(self.says(f"{kind} ours")[0]))


def measure(world: World, setup: Setup, judges: Judges, judge: str, way: str) -> dict[str, Any]:
    """One training and what it was trained on."""
    started = time.perf_counter()
    images, labels = world.dataset.tensors[0], world.given.copy()
    kept = np.ones(len(labels), bool)
    found: dict[str, Any] = {}
    if judge == "truth":
        labels = world.clean.copy()
    elif judge != "none":
        doubted, suggested = judges.says(judge)
        wrong = (world.given != world.clean)[doubted]
        right = (suggested == world.clean[doubted])[wrong]
        found = {"changed": len(doubted), "truly_wrong": int(wrong.sum()), "suggested_right": int(right.sum())}
        if way == "drop":
            kept[doubted] = False
        else:
            labels[doubted] = np.where(suggested >= 0, suggested, labels[doubted])
    rows = np.flatnonzero(kept)
    rows = rows[: len(rows) // loops.Recipe().batch_size * loops.Recipe().batch_size]
    accuracy = retrained_accuracy(images[rows], torch.from_numpy(labels[rows]), setup)
    left = int((labels[rows] != world.clean[rows]).sum())
    seconds = time.perf_counter() - started
    return {"accuracy": accuracy, "wrong_labels": left, "examples": len(rows), "seconds": seconds, **found}


def cases(judges: Sequence[str], ways: Sequence[str]) -> list[tuple[str, str]]:
    return [("none", ""), ("truth", ""), *((judge, way) for way in ways for judge in judges)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", default="pair-20,worst", help="comma-separated")
    parser.add_argument("--seeds", default="1", help="comma-separated")
    parser.add_argument("--split", choices=["development", "reported"], default="reported")
    parser.add_argument("--examples", type=int, default=Setup().examples)
    parser.add_argument("--epochs", type=int, default=Setup().epochs)
    parser.add_argument("--judges", nargs="+", choices=JUDGES, default=JUDGES)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--dry", action="store_true", help="print, and append no result")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for setting in options.settings.split(","):
        for seed in map(int, options.seeds.split(",")):
            setup = Setup(
                setting=setting, split=options.split, examples=options.examples, epochs=options.epochs, seed=seed
            )
            world = make_world(setup)
            judges = Judges(world, setup)
            common = {name: value for name, value in asdict(setup).items() if name != "seed"}
            for judge, way in cases(options.judges, options.ways):
                settings = {**common, "from": FROM, "judge": judge, "way": way}
                if is_recorded(FILE, settings, seed):
                    continue
                found = measure(world, setup, judges, judge, way)
                said = f"{found['wrong_labels']} of {found['examples']} labels wrong, accuracy"
                print(f"{setting}, seed {seed}, {judge} {way}: {said} {100 * found['accuracy']:.2f}%", flush=True)
                if not options.dry:
                    append_result(FILE, {"benchmark": "cleaned", "settings": settings, "seed": seed, **found})


if __name__ == "__main__":
    main()
