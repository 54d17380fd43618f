"""Wrong completions found while a small GPT-2 learns intents, beside the loss, first-order scores and other methods."""

from __future__ import annotations

import importlib.util
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

import sgoif
from benchmarks.experiment import Experiment, option
from benchmarks.metrics import detection_report
from benchmarks.sequences import rivals
from benchmarks.sequences.instructions import ERRORS, Items, load_instructions, plant_wrong_completions
from benchmarks.sequences.training import METHODS, Setup, exact_match, final_losses, read_scores, train
from benchmarks.tables.rows import describe_seeds, group_runs, interval, latest, means, table


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingSetup(Setup):
    """What is trained, and which scores are compared."""

    asked: int | None = None  # groups that have evaluation sequences; all if left out
    scores: str = option("all", ("all", "audit"), "'audit' trains the same model without watching, and audits it")


def run(setup: RankingSetup) -> dict[str, Any]:
    """Train once, watched by all methods, and report how each score ranks the wrong completions."""
    data = load_instructions(setup.source, setup.each, 20, setup.intents)
    items, is_wrong = plant_wrong_completions(data, setup.errors, setup.rate, setup.seed)
    groups = dict(list(data.groups(setup.groups).items())[: setup.asked])
    started = time.perf_counter()
    is_all = setup.scores == "all"
    model, runs = train(setup, len(data.vocabulary), items, groups, METHODS if is_all else None)
    seconds = time.perf_counter() - started
    held = [item for group in groups.values() for item in group]
    scores = {"final loss": final_losses(model, items)}
    for name, found in runs.items():
        scores |= read_scores(found, name, len(items))
    started = time.perf_counter()
    audit = sgoif.audit(model, items, anchors=groups, task="sequences", batch_size=64, seed=setup.seed)
    audit_seconds = time.perf_counter() - started
    scores |= {name: value for name, value in read_scores(audit, "audit", len(items)).items() if "audit" in name}
    scores |= _score_by_others(model, items, held, setup.seed) if is_all else {}
    return {
        "num_sequences": len(items),
        "num_wrong": int(is_wrong.sum()),
        "scores": {name: detection_report(values, is_wrong) for name, values in scores.items()},
        "held_loss": float(final_losses(model, held).mean()),
        "exact_match": exact_match(model, held),
        "seconds": seconds,
        "audit_seconds": audit_seconds,
    }


def _score_by_others(model: nn.Module, items: Items, held: Items, seed: int) -> dict[str, NDArray[np.float64]]:
    found = {
        "embedding outliers": rivals.find_outliers(rivals.embed(model, items, prompts_only=False)),
        "neighbours": rivals.disagree_with_neighbours(rivals.embed(model, items, prompts_only=True), items),
    }
    if importlib.util.find_spec("kronfluence") is not None:
        found["EK-FAC, last checkpoint"] = rivals.score_by_ekfac(model, items, held, seed)
    return found


def describe(row: dict[str, Any]) -> str:
    found = (f"{name} {report['ap']:.1f}" for name, report in row["scores"].items())
    return f"exact match {row['exact_match']:.0%}; AP: {', '.join(found)}; {row['seconds']:.0f} s"


SHOWN = {
    **{name: name for name in ("final loss", "last loss", "mean loss", "gradient cosine")},
    **{f"{name} {column}": f'`{column}`, `"{name}"`' for name in METHODS for column in ("suspicion", "harm")},
    **{f"audit {column}": f"`{column}`, `audit()`" for column in ("suspicion", "loss_tuned", "conflict", "harm")},
    "EK-FAC, last checkpoint": "EK-FAC at the end",
    **{name: name for name in ("embedding outliers", "neighbours")},
}
TITLES = {"banking77": "Banking77", "clinc150": "CLINC150"}
EACH = {"banking77": 40, "clinc150": 30}  # training queries of an intent in a whole set
RATES = (0.05, 0.2)
REPORTED = (1, 2, 3)  # seeds; others are those of the development


def ranking() -> str:
    """Average precision of every score by draw, mean over seeds."""
    rows = []
    for (source, errors, rate), runs in group_runs(_whole_sets(), ("source", "errors", "rate")):
        match = f"{100 * np.mean([run['exact_match'] for run in runs]):.0f}"
        cells = [means(run["scores"][name]["ap"] for run in runs) for name in SHOWN]
        rows.append([TITLES[source], f"{errors}, {100 * float(rate):.0f}%", describe_seeds(runs), match, *cells])
    return table(("set", "wrong completions", "seeds", "exact match, %", *SHOWN.values()), sorted(rows))


OTHERS = (
    *("final loss", "last loss", "mean loss", "first loss", "gradient cosine"),
    *("EK-FAC, last checkpoint", "embedding outliers", "neighbours"),
)
LEAST = -1.0  # that `suspicion` may be below the best of the others
WANTED = 10.0  # above it, on near intents


def verdicts() -> str:
    """By how much `suspicion` is above the best other score, mean over seeds, against the targets."""
    rows = []
    for (source, errors, rate), runs in group_runs(_whole_sets(), ("source", "errors", "rate")):
        means_of = {name: float(np.mean([run["scores"][name]["ap"] for run in runs])) for name in OTHERS}
        best = max(means_of, key=lambda name: means_of[name])
        cells = []
        for name in ("audit suspicion", "kfac suspicion", "adam suspicion"):
            ahead = [run["scores"][name]["ap"] - run["scores"][best]["ap"] for run in runs]
            target = WANTED if errors == "near" else LEAST
            word = "met" if np.mean(ahead) >= target else "**missed**"
            cells.append(f"{interval(ahead, '+')} {word}")
        kind = f"{errors}, {100 * float(rate):.0f}%"
        rows.append([TITLES[source], kind, describe_seeds(runs), f"{best} {means_of[best]:.1f}", *cells])
    shown = ("`audit()`", '`"kfac"`', '`"adam"`')
    return table(("set", "wrong completions", "seeds", "best other", *shown), sorted(rows))


def settings() -> str:
    """Average precision after an audit of few wrong ones, small sets, little training, or half of the groups."""
    shown = ("final loss", *(name for name in SHOWN if name.startswith("audit ")))
    found = [run for run in latest(EXPERIMENT.results) if _is_reported(run) and not _is_whole(run["settings"])]
    found = [run for run in found if shown[-1] in run["scores"]]
    names = ("source", "errors", "rate", "asked", "epochs", "each")
    rows = []
    for (source, errors, rate, asked, epochs, _), runs in group_runs(found, names):
        kind, seeds = f"{errors}, {100 * float(rate):.0f}%", describe_seeds(runs)
        match = f"{100 * np.mean([run['exact_match'] for run in runs]):.0f}"
        cells = [means(run["scores"][name]["ap"] for run in runs) for name in shown]
        groups = str(runs[0]["settings"]["groups"] if asked is None else asked)
        rows.append([TITLES[source], kind, str(runs[0]["num_sequences"]), str(epochs), groups, seeds, match, *cells])
    titles = ("set", "wrong completions", "sequences", "epochs", "groups", "seeds", "exact match, %")
    return table((*titles, *(SHOWN[name] for name in shown)), sorted(rows))


def _is_reported(run: dict[str, Any]) -> bool:
    return run["settings"]["intents"] is None and int(run["seed"]) in REPORTED


def _is_whole(settings: dict[str, Any]) -> bool:
    is_usual = int(settings["epochs"]) == 6 and float(settings["rate"]) in RATES and settings.get("asked") is None
    return is_usual and int(settings["each"]) == EACH[settings["source"]]


def _whole_sets() -> list[dict[str, Any]]:
    """The last scores of each reported draw of a whole set; a later audit of the same model replaces an earlier one.

    Raises:
        ValueError: the model that was audited later is another one.
    """
    found: dict[Any, dict[str, Any]] = {}
    for run in latest(EXPERIMENT.results):
        settings = run["settings"]
        if not _is_reported(run) or not _is_whole(settings):
            continue
        key = (settings["source"], settings["errors"], settings["rate"], run["seed"])
        if settings.get("scores", "all") == "audit" and key in found:
            before, now = (one["scores"]["final loss"]["ap"] for one in (found[key], run))
            if abs(before - now) > 1e-6:
                raise ValueError(f"{key}: the losses of the finished model found {before} AP, and now {now}.")
            run = {**found[key], "scores": {**found[key]["scores"], **run["scores"]}}
        found[key] = run
    return [run for run in found.values() if SHOWN.keys() <= run["scores"].keys()]


def _grids(source: str, each: int) -> tuple[dict[str, Any], ...]:
    """All reported draws of a set: of the whole set, and audits of other settings."""
    usual = {"source": source, "each": each, "seed": REPORTED}
    audited = {**usual, "scores": "audit"}
    return (
        {**usual, "errors": ERRORS, "rate": RATES},
        {**audited, "rate": 0.01},
        {**audited, "rate": 0.05, "each": 10},
        {**audited, "rate": 0.05, "epochs": 2},
        {**audited, "rate": 0.2, "asked": 4},
    )


EXPERIMENT = Experiment(
    name="sequences",
    settings=RankingSetup,
    run=run,
    tables={"sequences": ranking, "sequences_verdicts": verdicts, "sequences_settings": settings},
    full=tuple(grid for source, each in EACH.items() for grid in _grids(source, each)),
    small={"each": 8, "epochs": 1, "intents": 8, "groups": 2, "seed": 0},
    needs=("transformers",),
    describe=describe,
)
