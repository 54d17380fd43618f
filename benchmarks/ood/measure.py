"""Our scorer and other detectors on the same networks.

One line per dataset and seed: AUROC, AUPR both ways and FPR@95 for every detector and set, microseconds per picture,
and how often usual pictures raise an alarm where 5% and 1% were promised: among test images, and among images drawn
with those of the calibration, where alone the promise is made.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.experiment import Experiment, option
from benchmarks.metrics import auroc, average_precision
from benchmarks.ood.detectors import DETECTORS, Head, Rows
from benchmarks.ood.sets import outside
from benchmarks.ood.subjects import BATCH, DATASETS, HELD, Subject, prepare
from benchmarks.tables.rows import Run, describe_seeds, latest, means, table
from sgoif.features.extraction import HeadFeatures, concatenate_features, extract_features
from sgoif.features.rule import OodRule
from sgoif.gradients import quiet_eval
from sgoif.ood import OodScorer
from sgoif.ood.conformal import Conformal

RATES = (0.05, 0.01)
OURS: Mapping[str, dict[str, Any]] = {
    "sgoif": {},
    "sgoif, energy": {"base": "energy"},
    "sgoif, no gate": {"gate_weight": 0.0},
}
RIVALS = ("Energy", "KNN", "ViM", "fDBD")  # those that the bar names
_NAMES = {"mnist": "MNIST", "fashion": "Fashion-MNIST", "cifar10": "CIFAR-10"}
_SHOWN = ("auroc", "aupr_out", "aupr_in", "fpr95")
Judge = Callable[[HeadFeatures], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One network."""

    dataset: str = option("mnist", DATASETS)
    limit: int | None = option(None, help="pictures of each set, to try it out")
    seed: int = 1


def measure(setup: Setup) -> dict[str, Any]:
    return {"report": measure_subject(prepare(setup.dataset, setup.seed), setup.limit)}


def measure_subject(subject: Subject, limit: int | None = None) -> dict[str, Any]:
    """Everything about one network."""
    dataset = DATASETS[subject.dataset]
    held = dataset("train").take(slice(-HELD, None))
    scorers = {name: OodScorer.fit(subject.model, subject.inputs(held.pixels), **said) for name, said in OURS.items()}
    layers = scorers["sgoif"].layers
    judges = {name: scorer.rule.scores for name, scorer in scorers.items()} | _others(subject, held.pixels, limit)
    usual, forward_us = _extract(subject, dataset("test", limit).pixels[:: 1 if limit else 2], layers)
    _check_same(subject, scorers["sgoif"], layers, subject.inputs(dataset("test", 100).pixels))
    scores, times = _time_judges(judges, usual)
    mine = scorers["sgoif"]
    alarms = {f"{rate:g}": float((scores["sgoif"] > mine.threshold(rate)).mean()) for rate in RATES}
    pairs = {}
    for name, pixels in outside(subject.dataset, limit or 2_600).items():
        found, _ = _time_judges(judges, _extract(subject, pixels, layers)[0])
        pairs[name] = {
            "count": len(pixels),
            "detected": float((found["sgoif"] > scorers["sgoif"].threshold(RATES[0])).mean()),
            "detectors": {key: compare_scores(scores[key], found[key]) for key in judges},
        }
    return {
        "accuracy": subject.accuracy,
        "training_cpu_s": subject.seconds,
        "usual": len(usual.logits),
        "calibration": HELD,
        "forward_us": forward_us,
        "us": times,
        "false_alarms": alarms,
        "false_alarms_same_draw": _same_draw(subject, held.pixels),
        "pairs": pairs,
    }


def _same_draw(subject: Subject, pixels: NDArray[np.uint8]) -> dict[str, float]:
    """Calibrate with a random half of the held-out images and count alarms in the other, ten times over."""
    seen = _extract(subject, pixels, OodScorer.fit(subject.model, subject.inputs(pixels[:100])).layers)[0]
    found = []
    for seed in range(10):
        order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(seed))
        first, second, fresh = (seen.take(part) for part in order.split([500, 500, len(pixels) - 1000]))
        rule = OodRule.fit(first)
        kept = Conformal(np.sort(rule.scores(second).numpy()))
        found.append([(rule.scores(fresh).numpy() > kept.threshold(rate)).mean() for rate in RATES])
    return {f"{rate:g}": float(share) for rate, share in zip(RATES, np.mean(found, 0), strict=True)}


def compare_scores(usual: NDArray[np.float64], unlike: NDArray[np.float64]) -> dict[str, float]:
    """How well scores tell two sets apart, in percent; ``fpr95`` is the share of unlike ones that pass as usual."""
    scores = np.concatenate([usual, unlike])
    is_unlike = np.arange(len(scores)) >= len(usual)
    return {
        "auroc": 100 * auroc(scores, is_unlike),
        "aupr_out": 100 * average_precision(scores, is_unlike),
        "aupr_in": 100 * average_precision(-scores, ~is_unlike),
        "fpr95": 100 * float((unlike <= np.quantile(usual, 0.95)).mean()),
    }


def _others(subject: Subject, held: NDArray[np.uint8], limit: int | None) -> dict[str, Judge]:
    """The published detectors, with all training features; KL matching asks for held-out ones."""
    train = DATASETS[subject.dataset]("train", limit)
    train = train if limit else train.take(slice(0, -HELD))
    last = subject.model.get_submodule("head")
    assert isinstance(last, nn.Linear)
    head = Head(last.weight.detach(), last.bias.detach())
    rows = {name: _rows(_extract(subject, pixels, [])[0]) for name, pixels in (("train", train.pixels), ("held", held))}
    known = Rows(rows["train"].features, rows["train"].logits, torch.from_numpy(train.labels))

    def judge(name: str) -> Judge:
        fitted = rows["held"] if name == "KL matching" else known
        return lambda seen: DETECTORS[name](head, fitted, _rows(seen))

    return {name: judge(name) for name in DETECTORS}


def _rows(seen: HeadFeatures) -> Rows:
    return Rows(seen.features, seen.logits)


def _extract(subject: Subject, pixels: NDArray[np.uint8], layers: list[str]) -> tuple[HeadFeatures, float]:
    """What the network sees, and the CPU microseconds of that per picture."""
    inputs, started = subject.inputs(pixels), time.process_time()
    with quiet_eval(subject.model):
        parts = [extract_features(subject.model, subject.model, part, "head", layers) for part in inputs.split(BATCH)]
    return concatenate_features(parts), 1e6 * (time.process_time() - started) / len(pixels)


def _time_judges(
    judges: Mapping[str, Judge], seen: HeadFeatures
) -> tuple[dict[str, NDArray[np.float64]], dict[str, float]]:
    """Scores, and CPU microseconds per picture beyond the forward pass; a fit that is made anew counts too."""
    scores, times = {}, {}
    for name, judge in judges.items():
        started = time.process_time()
        found = judge(seen)
        times[name] = 1e6 * (time.process_time() - started) / len(found)
        finite = torch.finfo(torch.float64).max
        scores[name] = found.double().nan_to_num(nan=finite, posinf=finite, neginf=-finite).numpy()
    return scores, times


def _check_same(subject: Subject, scorer: OodScorer, layers: list[str], inputs: Tensor) -> None:
    """What is measured here is what a user gets."""
    with quiet_eval(subject.model):
        seen = extract_features(subject.model, subject.model, inputs, "head", layers)
    np.testing.assert_allclose(scorer(inputs), scorer.rule.scores(seen).numpy(), rtol=1e-6)


def bars() -> str:
    """Whether the score is never below MSP, and on average not below the best of those named."""
    rows = [row for dataset in _NAMES for row in _bars(dataset, _runs(dataset))]
    return table(("in-distribution images", "asks", "measured", ""), rows)


def alarms() -> str:
    """How many usual images raise an alarm, and how many of the others."""
    rows = []
    for dataset, name in _NAMES.items():
        reports = [run["report"] for run in _runs(dataset)]
        for rate in ("0.05", "0.01") if reports else ():
            same, test = (
                means(100 * r[key][rate] for r in reports) for key in ("false_alarms_same_draw", "false_alarms")
            )
            caught = [100 * pair["detected"] for r in reports for pair in r["pairs"].values()]
            found = f"{min(caught):.0f} to {max(caught):.0f}" if rate == "0.05" else ""
            rows.append([name, f"{100 * float(rate):g}", same, test, found])
    header = ("in-distribution images", "promised %", "same draw %", "test images %", "of the other sets caught %")
    return table(header, rows)


def _runs(dataset: str) -> list[Run]:
    return [run for run in latest(EXPERIMENT.results) if run["settings"]["dataset"] == dataset]


def _values(runs: Sequence[Run], detector: str, metric: str) -> dict[str, list[float]]:
    """By set, one value per seed."""
    sets: Sequence[str] = list(runs[0]["report"]["pairs"])
    return {name: [r["report"]["pairs"][name]["detectors"][detector][metric] for r in runs] for name in sets}


def _mean(runs: Sequence[Run], detector: str, metric: str) -> float:
    return float(np.mean(list(_values(runs, detector, metric).values())))


def _detectors(dataset: str) -> str:
    runs = _runs(dataset)
    if not runs:
        return "Not measured yet."
    first: dict[str, Any] = runs[0]["report"]
    accuracy = means(100 * run["report"]["accuracy"] for run in runs)
    said = f"{_NAMES[dataset]}, {first['usual']:,} images; {describe_seeds(runs)}, {accuracy}% right"
    sets = [f"{name} ({pair['count']:,})" for name, pair in first["pairs"].items()]
    header = (said, *sets, "mean AUROC", "AUPR out", "AUPR in", "FPR@95", "us")
    rows = []
    for detector in sorted(first["us"], key=lambda name: -_mean(runs, name, "auroc")):
        cells = [means(values) for values in _values(runs, detector, "auroc").values()]
        cells += [f"{_mean(runs, detector, metric):.1f}" for metric in _SHOWN]
        us = np.mean([run["report"]["us"][detector] for run in runs])
        rows.append([f"**{detector}**" if detector == "sgoif" else detector, *cells, f"{us:.1f}"])
    return table(header, rows)


def _bars(dataset: str, runs: Sequence[Run]) -> Iterator[list[str]]:
    if not runs:
        return
    ours, msp = _values(runs, "sgoif", "auroc"), _values(runs, "MSP", "auroc")
    gap, where = min((ours[name][i] - msp[name][i], name) for name in ours for i in range(len(runs)))
    best = max(RIVALS, key=lambda name: _mean(runs, name, "auroc"))
    above = _mean(runs, "sgoif", "auroc") - _mean(runs, best, "auroc")
    name = f"{_NAMES[dataset]}, {describe_seeds(runs)}"
    yield [name, "AUROC never below MSP's, any set and seed", f"{gap:+.2f} ({where})", _met(gap)]
    yield [name, f"mean AUROC not below the best of {', '.join(RIVALS)}", f"{above:+.2f} ({best})", _met(above)]


def _met(gap: float) -> str:
    return "met" if gap >= 0 else "**missed**"


def describe(row: Run) -> str:
    report = row["report"]
    found = {name: [pair["detectors"][name]["auroc"] for pair in report["pairs"].values()] for name in report["us"]}
    aurocs = ", ".join(f"{name} {np.mean(values):.2f}" for name, values in found.items())
    return f"accuracy {report['accuracy']:.4f}, false alarms {report['false_alarms']}; mean AUROC: {aurocs}"


EXPERIMENT = Experiment(
    name="ood",
    settings=Setup,
    run=measure,
    tables={
        "ood_bars": bars,
        "ood_alarms": alarms,
        **{f"ood_{dataset}": partial(_detectors, dataset) for dataset in _NAMES},
    },
    full={"dataset": tuple(DATASETS), "seed": (1, 2, 3)},
    unrecorded=("seed", "limit"),
    describe=describe,
)
