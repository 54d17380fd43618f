"""Train a small GPT-2 again without the first tenth of its sequences, by suspicion, loss and at random."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import sgoif
from benchmarks.experiment import Experiment
from benchmarks.sequences.instructions import ERRORS, load_instructions, plant_wrong_completions
from benchmarks.sequences.training import METHODS, Setup, exact_match, final_losses, read_scores, train
from benchmarks.tables.rows import describe_seeds, group_runs, latest, table


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningSetup(Setup):
    """What is trained, watched, and trained again."""

    dropped: float = 0.1  # of all sequences


def run(setup: CleaningSetup) -> dict[str, Any]:
    """Watch one training, and train again without some; half of the evaluation queries are anchors, half are judged."""
    data = load_instructions(setup.source, setup.each, 20, setup.intents)
    anchored, judged = data.split_held()
    items, is_wrong = plant_wrong_completions(data, setup.errors, setup.rate, setup.seed)
    size, evaluation = len(data.vocabulary), judged.held_items
    groups = anchored.groups(setup.groups)
    model, runs = train(setup, size, items, groups, {"kfac": METHODS["kfac"]})
    runs["audit"] = sgoif.audit(model, items, anchors=groups, task="sequences", batch_size=64, seed=setup.seed)
    scores = {"random": np.random.default_rng(setup.seed).random(len(items))}
    for name, found in reversed(runs.items()):  # the last loss is that of the training
        scores |= read_scores(found, name, len(items))
    kept = ("random", "last loss", "kfac suspicion", "audit suspicion")
    orders = {name: np.argsort(-scores[name], kind="stable") for name in kept}
    orders["the wrong ones first"] = np.argsort(~is_wrong, kind="stable")
    count = round(setup.dropped * len(items))
    rows = {"all": _judge(model, evaluation)}
    for name, order in orders.items():
        again, _ = train(
            replace(setup, seed=setup.seed + 100), size, [items[place] for place in np.sort(order[count:])]
        )
        rows[name] = _judge(again, evaluation) | {"wrong_dropped": float(is_wrong[order[:count]].mean())}
    return {"num_dropped": count, "num_wrong": int(is_wrong.sum()), "without": rows}


def _judge(model: Any, evaluation: Any) -> dict[str, float]:
    return {"exact_match": exact_match(model, evaluation), "loss": float(final_losses(model, evaluation).mean())}


def describe(row: dict[str, Any]) -> str:
    """One line."""
    return "; ".join(f"{name} {found['exact_match']:.1%}" for name, found in row["without"].items())


DROPPED = {
    "all": "nothing",
    "random": "random",
    "last loss": "last loss",
    "kfac suspicion": "`suspicion`, watched",
    "audit suspicion": "`suspicion`, `audit()`",
    "the wrong ones first": "the wrong ones",
}


def cleaned() -> str:
    """Exact match by what was dropped, mean over seeds, with the share of wrong ones among it."""
    rows = []
    for (source, errors, rate), runs in group_runs(latest(EXPERIMENT.results), ("source", "errors", "rate")):
        cells = []
        for name in DROPPED:
            found = [run["without"][name] for run in runs]
            match = f"{100 * np.mean([one['exact_match'] for one in found]):.1f}"
            shares = [one["wrong_dropped"] for one in found if "wrong_dropped" in one]
            cells.append(f"{match} ({100 * np.mean(shares):.0f})" if shares else match)
        rows.append([f"{source}, {errors}, {100 * float(rate):.0f}%", describe_seeds(runs), *cells])
    return table(("wrong completions", "seeds", *DROPPED.values()), rows)


EXPERIMENT = Experiment(
    name="sequence_cleaning",
    settings=CleaningSetup,
    run=run,
    tables={"sequence_cleaning": cleaned},
    full={"source": "clinc150", "each": 30, "errors": ERRORS, "rate": 0.2, "seed": (1, 2, 3)},
    small={"each": 4, "epochs": 1, "intents": 6, "groups": 2, "seed": 0},
    needs=("transformers",),
    describe=describe,
)
