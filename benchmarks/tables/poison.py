"""Poisoned pictures: who finds them from ten bad predictions, and what removing the suspects does to the attack."""

from __future__ import annotations

import numpy as np

from benchmarks.tables.rows import Run, grouped, interval, latest, seeds_said, table

__all__ = ["few", "found", "removed"]

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
    groups = grouped(runs, ("dataset", "rate", "examples", "epochs"))
    return [
        (f"{_DATASETS[dataset]}, {100 * float(rate):g}% of {examples:,}, {epochs} epochs", found)
        for (dataset, rate, examples, epochs), found in groups
    ]


def found() -> str:
    """AUPR of every score, and precision among as many as are poisoned."""
    rows = []
    for name, every in _reported():
        runs = [run for run in every if "methods" in run]
        for method, said in _ROWS.items() if runs else ():
            scores = [run["methods"][method] for run in runs]
            precision = f"{np.mean([item['precision'] for item in scores]):.1f}"
            aupr = interval([item["aupr"] for item in scores])
            rows.append([f"{name} ({seeds_said(runs)})", said, aupr, precision])
    return table(["poisoned", "score", "AUPR", "precision"], rows)


def few() -> str:
    """Mean AUPR of those that ask queries, from one, three and ten of them, over networks that were asked all three."""
    rows = []
    by_count = [dict(_reported(count)) for count in _QUERIES]
    for name in by_count[-1]:
        asked = [{run["seed"]: run for run in part.get(name, ()) if "methods" in run} for part in by_count]
        seeds = sorted(set.intersection(*map(set, asked)))
        for method in ("sgoif", "cosine", "TracIn", "K-FAC influence") if seeds else ():
            scores = [np.mean([part[seed]["methods"][method]["aupr"] for seed in seeds]) for part in asked]
            said = seeds_said([asked[0][seed] for seed in seeds])
            rows.append([f"{name} ({said})", _ROWS[method], *(f"{score:.1f}" for score in scores)])
    return table(["poisoned", "score", *(f"AUPR from {count}" for count in _QUERIES)], rows)


def removed() -> str:
    """The attack and the accuracy before and after removing the suspects and training anew."""
    rows = []
    for name, runs in _reported():
        for run in sorted(runs, key=lambda run: run["seed"]):
            after = run.get("cleaned")
            counts = "nothing: the attack did not take"
            if after is not None:
                counts = f"{after['removed']}, of them {after['rightly']} of {run['poisoned']} poisoned"
            cells = [_percent(run, after, column) for column in ("attack", "confused", "accuracy")]
            rows.append([f"{name}, seed {run['seed']}", counts, *cells])
    return table(["poisoned", "removed", "attack succeeds", "taken for the target without it", "accuracy"], rows)


def _percent(before: Run, after: Run | None, column: str) -> str:
    then = "" if after is None else f" → {100 * after[column]:.1f}"
    return f"{100 * before[column]:.1f}{then}"
