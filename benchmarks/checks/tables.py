"""The tables of planted issues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.tables.rows import Run, latest

__all__ = ["FILE", "of_clean", "of_examples", "of_sets"]

FILE = "data_issues.jsonl"
_NAMES = {"fashion": "Fashion-MNIST (development)", "cifar10": "CIFAR-10", "clinc150": "CLINC150"}
_TOOLS = ("ours", "datalab")


def of_examples() -> str:
    """Precision and recall of issues of single examples, summed over the seeds."""
    runs = [run for run in latest(FILE) if run["settings"]["planted"] == "examples"]
    lines = [
        "| set, seeds | issue | planted | sgoif: precision, recall | Datalab: precision, recall |",
        "|---|---|---|---|---|",
    ]
    for name in _NAMES:
        mine = [run for run in runs if run["settings"]["data"] == name]
        kinds = [k for k, v in mine[0]["report"]["ours"]["kinds"].items() if isinstance(v, dict)] if mine else []
        for kind in kinds:
            cells = [_score([run["report"][tool]["kinds"].get(kind) for run in mine]) for tool in _TOOLS]
            planted = sum(run["report"]["ours"]["kinds"][kind]["planted"] for run in mine)
            lines.append(
                f"| {_NAMES[name]}, {len(mine)} | {kind.replace('_', ' ')} | {planted} | {' | '.join(cells)} |"
            )
    return "\n".join(lines)


def _score(found: Sequence[Any]) -> str:
    known = [item for item in found if isinstance(item, dict)]
    if not known:
        return "no such check"
    hits, besides, planted = (sum(item[name] for item in known) for name in ("found", "besides", "planted"))
    precision = f"{100 * hits / (hits + besides):.0f}%" if hits + besides else "none named"
    return f"{precision}, {100 * hits / planted:.0f}%"


def of_sets() -> str:
    """How many seeds an issue of the whole set was found in, and how many where nothing was planted."""
    runs = latest(FILE)
    lines = [
        "| set | planted | sgoif found it | Datalab found it | sgoif where nothing was planted | Datalab, the same |",
        "|---|---|---|---|---|---|",
    ]
    for name in _NAMES:
        mine = [run for run in runs if run["settings"]["data"] == name]
        clean = [run for run in mine if run["settings"]["planted"] == "clean"]
        for planted, kind in _KINDS.items():
            drawn = [run for run in mine if run["settings"]["planted"] == planted]
            if drawn:
                cells = [_seeds([run["report"][tool]["is_found"] for run in drawn]) for tool in _TOOLS]
                cells += [_seeds([run["report"][tool]["kinds"].get(kind) for run in clean]) for tool in _TOOLS]
                lines.append(f"| {_NAMES[name]} | {planted} | {' | '.join(cells)} |")
    return "\n".join(lines)


_KINDS = {
    "rare class": "class_imbalance",
    "sorted by class": "label_order",
    "drift": "order_within_classes",
    "drift in a sorted file": "order_within_classes",
    "weak region": "underperforming_group",
    "one class dim": "spurious_correlation",
}


def _seeds(found: Sequence[bool | None]) -> str:
    if not found:
        return "not measured"
    known = [item for item in found if item is not None]
    return f"{sum(known)} of {len(known)}" if known else "no such check"


def of_clean() -> str:
    """Examples that are named where nothing was planted, in a mean over the seeds."""
    runs: list[Run] = [run for run in latest(FILE) if run["settings"]["planted"] == "clean"]
    kinds = ["label_errors", "exact_duplicates", "near_duplicates", "outliers"]
    kinds += ["dark_pictures", "bright_pictures", "blurry_pictures", "low_information"]
    lines = ["| examples named of 2,000 | " + " | ".join(kind.replace("_", " ") for kind in kinds) + " |"]
    lines.append("|" + "---|" * (len(kinds) + 1))
    for name in _NAMES:
        mine = [run for run in runs if run["settings"]["data"] == name]
        for tool, shown in zip(_TOOLS, ("sgoif", "Datalab"), strict=True):
            cells = [_mean([run["report"][tool]["kinds"].get(kind) for run in mine]) for kind in kinds]
            lines.append(f"| {_NAMES[name]}, {shown} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _mean(found: Sequence[int | None]) -> str:
    known = [item for item in found if item is not None]
    return f"{np.mean(known):.1f}" if known else "-"
