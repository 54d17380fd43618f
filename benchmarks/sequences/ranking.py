"""Wrong completions found while a small GPT-2 learns intents, beside the loss, first-order scores and other methods."""

from __future__ import annotations

import importlib.util
import time
from typing import Any

import numpy as np

import sgoif
from benchmarks.experiment import Experiment
from benchmarks.metrics import detection_report
from benchmarks.sequences import rivals
from benchmarks.sequences.instructions import ERRORS, load_instructions, plant_wrong_completions
from benchmarks.sequences.training import METHODS, Setup, exact_match, final_losses, read_scores, train
from benchmarks.tables.rows import describe_seeds, group_runs, latest, means, table


def run(setup: Setup) -> dict[str, Any]:
    """Train once, watched by all methods, and report how each score ranks the wrong completions."""
    data = load_instructions(setup.source, setup.each, 20, setup.intents)
    items, is_wrong = plant_wrong_completions(data, setup.errors, setup.rate, setup.seed)
    groups = data.groups(setup.groups)
    started = time.perf_counter()
    model, runs = train(setup, len(data.vocabulary), items, groups, METHODS)
    seconds = time.perf_counter() - started
    held = [item for group in groups.values() for item in group]
    scores = {"final loss": final_losses(model, items)}
    for name, found in runs.items():
        scores |= read_scores(found, name, len(items))
    started = time.perf_counter()
    audit = sgoif.audit(model, items, anchors=groups, task="sequences", batch_size=64, seed=setup.seed)
    audit_seconds = time.perf_counter() - started
    scores |= {name: value for name, value in read_scores(audit, "audit", len(items)).items() if "audit" in name}
    scores |= {
        "embedding outliers": rivals.find_outliers(rivals.embed(model, items, prompts_only=False)),
        "neighbours": rivals.disagree_with_neighbours(rivals.embed(model, items, prompts_only=True), items),
    }
    if importlib.util.find_spec("kronfluence") is not None:
        scores["EK-FAC, last checkpoint"] = rivals.score_by_ekfac(model, items, held, setup.seed)
    return {
        "num_sequences": len(items),
        "num_wrong": int(is_wrong.sum()),
        "scores": {name: detection_report(values, is_wrong) for name, values in scores.items()},
        "held_loss": float(final_losses(model, held).mean()),
        "exact_match": exact_match(model, held),
        "seconds": seconds,
        "audit_seconds": audit_seconds,
    }


def describe(row: dict[str, Any]) -> str:
    found = (f"{name} {report['ap']:.1f}" for name, report in row["scores"].items())
    return f"exact match {row['exact_match']:.0%}; AP: {', '.join(found)}; {row['seconds']:.0f} s"


SHOWN = {
    **{name: name for name in ("final loss", "last loss", "mean loss", "gradient cosine")},
    **{f"{name} {column}": f'`{column}`, `"{name}"`' for name in METHODS for column in ("suspicion", "harm")},
    **{f"audit {column}": f"`{column}`, `audit()`" for column in ("suspicion", "harm")},
    "EK-FAC, last checkpoint": "EK-FAC at the end",
    **{name: name for name in ("embedding outliers", "neighbours")},
}
TITLES = {"banking77": "Banking77 (development)", "clinc150": "CLINC150"}


def ranking() -> str:
    """Average precision of every score by draw, mean over seeds."""
    rows = []
    names = ("source", "intents", "errors", "rate")
    for (source, intents, errors, rate), runs in group_runs(latest(EXPERIMENT.results), names):
        title = f"{TITLES[source]}, {intents or 'all'} intents"
        match = f"{100 * np.mean([run['exact_match'] for run in runs]):.0f}"
        found = [[run["scores"][name]["ap"] for run in runs if name in run["scores"]] for name in SHOWN]
        cells = [means(values) if values else "" for values in found]
        rows.append([title, f"{errors}, {100 * float(rate):.0f}%", describe_seeds(runs), match, *cells])
    rows.sort(key=lambda row: (row[0].startswith("Banking"), row[0]))
    return table(("set", "wrong completions", "seeds", "exact match, %", *SHOWN.values()), rows)


EXPERIMENT = Experiment(
    name="sequences",
    settings=Setup,
    run=run,
    tables={"sequences": ranking},
    full=(
        {"source": "clinc150", "each": 30, "errors": ERRORS, "rate": 0.05, "seed": (1, 2, 3)},
        {"source": "clinc150", "each": 30, "errors": ERRORS, "rate": 0.2, "seed": (1, 2, 3)},
    ),
    small={"each": 4, "epochs": 1, "seed": 0},
    needs=("transformers",),
    describe=describe,
)
