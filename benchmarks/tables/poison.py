"""Poisoned pictures: who finds them from ten bad predictions, and what removing the suspects does to the attack."""

from __future__ import annotations

import numpy as np

from benchmarks.tables.rows import Run, grouped, interval, latest, seeds_said, table

__all__ = ["found", "removed"]

_ROWS = {
    "sgoif": "**`poison_suspects`**",
    "cosine": "cosine with the queries in feature space",
    "activation clustering": "activation clustering, no queries",
    "spectral signatures": "spectral signatures, no queries",
    "TracIn": "TracIn, last layer, three checkpoints",
    "K-FAC influence": "K-FAC influence at the head",
}


def _reported() -> list[tuple[tuple[str, ...], list[Run]]]:
    runs = [run for run in latest("poison.jsonl") if run["settings"]["split"] == "reported"]
    return grouped(runs, ("rate", "epochs"))


def _said(rate: str, epochs: str, runs: list[Run]) -> str:
    return f"{100 * float(rate):g}%, {epochs} epochs ({seeds_said(runs)})"


def found() -> str:
    """AUPR of every score, and precision among as many as are poisoned."""
    rows = []
    for (rate, epochs), runs in _reported():
        for name, said in _ROWS.items():
            scores = [run["methods"][name] for run in runs]
            precision = f"{np.mean([item['precision'] for item in scores]):.1f}"
            rows.append([_said(rate, epochs, runs), said, interval([item["aupr"] for item in scores]), precision])
    return table(["poisoned", "score", "AUPR", "precision"], rows)


def removed() -> str:
    """The attack and the accuracy before and after removing the suspects and training anew."""
    rows = []
    for (rate, epochs), runs in _reported():
        for run in sorted(runs, key=lambda run: run["seed"]):
            after = run.get("cleaned")
            if after is None:
                continue
            rows.append(
                [
                    _said(rate, epochs, [run]),
                    f"{after['removed']}, of them {after['rightly']} of {run['poisoned']} poisoned",
                    f"{100 * run['attack']:.1f} → {100 * after['attack']:.1f}",
                    f"{100 * run['accuracy']:.1f} → {100 * after['accuracy']:.1f}",
                ]
            )
    return table(["poisoned", "removed", "attack succeeds", "accuracy"], rows)
