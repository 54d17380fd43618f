"""Label errors found while a small ResNet-9 trains on noisy CIFAR-10: ``python -m benchmarks.label_noise``.

One monitored training gives every signal of every visit; the report shows what each signal finds when its visits are
added up by the gate, over the second half of the training, by a ramp in time, or when only the last one counts.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

import sgoif
from benchmarks import data, loops, noise
from benchmarks.metrics import detection_report
from benchmarks.models import ResNet9
from benchmarks.records import append_result

SUSPICIOUS_WHEN_LOW = ("margin", "p_given", "own", "own_identity", "probe_margin")
SIGNALS = (
    "harm",
    "worst",
    "harm_std",
    "worst_std",
    "harm_identity",
    "worst_identity",
    "own",
    "harm_solved",
    "worst_solved",
    "probe_loss",
    "probe_margin",
    "margin",
    "loss",
)
WINDOWS = ("gate", "second half", "all", "ramp", "ramp2", "last")


def run(
    *, setting: str, seed: int, holdout: str, split: str, epochs: int, examples: int, **watch: Any
) -> dict[str, Any]:
    """Train once, watched, and report every signal's power to find the wrong labels."""
    torch.set_num_threads(1)
    parts = data.development(examples) if split == "development" else data.reported(examples, seed)
    given, given_held = noise.apply_to_split(setting, parts, seed)
    held = parts.trusted if holdout == "trusted" else data.as_given_holdout(parts.held, given_held)
    images = data.normalise(parts.train.pixels, *data.CIFAR10_STATS)
    anchors = (data.normalise(held.pixels, *data.CIFAR10_STATS), torch.from_numpy(held.labels))
    started = time.perf_counter()
    watch |= {"trusted": holdout == "trusted"}
    found = monitored_training(images, torch.from_numpy(given.astype(np.int64)), anchors, seed, epochs, **watch)
    seconds = time.perf_counter() - started
    report = evaluate(found.visits, given, parts.train.labels, epochs)
    report |= calibration_report(found, given != parts.train.labels)
    report["suggested label right, of true errors"] = suggestion_accuracy(found, given, parts.train.labels)
    return report | {"seconds": seconds, "overhead": found.info["overhead"], "counters": found.info["counters"]}


def monitored_training(
    images: Tensor, labels: Tensor, anchors: tuple[Tensor, Tensor], seed: int, num_epochs: int, **watch: Any
) -> sgoif.Run:
    """The tier-M recipe with the monitor around each step."""
    torch.manual_seed(seed)
    recipe = loops.Recipe(num_epochs=num_epochs)
    model = ResNet9(num_classes=int(anchors[1].max()) + 1)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = loops.optimiser(model, recipe)
    scheduler = loops.schedule(optimizer, recipe, len(images))
    steps = num_epochs * recipe.steps_per_epoch(len(images))
    monitor = sgoif.watch(
        model, optimizer, anchors=anchors, train_size=len(images), planned_steps=steps, seed=seed, **watch
    )
    model.train()
    for batch in loops.epochs(images, labels, recipe, seed):
        with monitor.step(batch.indices, batch.labels):
            F.cross_entropy(loops.logits(model, batch.images, recipe), batch.labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    found = monitor.close()
    assert found is not None, "SGOIF_DISABLE is set"
    return found


def evaluate(
    visits: dict[str, NDArray[Any]], given: NDArray[np.integer], clean: NDArray[np.integer], epochs: int
) -> dict[str, Any]:
    """Average precision and friends of every signal under every way of adding up its visits."""
    wrong, when = given != clean, (visits["step"] + 1) / (visits["step"].max() + 1)
    weights = {
        "second half": visits["epoch"] >= epochs // 2,
        "all": np.ones(len(when)),
        "ramp": when,
        "ramp2": when**2,
        "last": visits["epoch"] == epochs - 1,
    }
    report: dict[str, Any] = {}
    for name in SIGNALS:
        values = np.nan_to_num(visits[name].astype(np.float64)) * (-1 if name in SUSPICIOUS_WHEN_LOW else 1)
        gate = visits["confidence_worst" if name.startswith("worst") else "confidence"]
        report[name] = {
            window: detection_report(_mean(visits["id"], values, weight, len(given)), wrong)
            for window, weight in ({"gate": gate} | weights).items()
        }
    by_epoch = [visits["confidence"][visits["epoch"] == e].mean() for e in range(epochs)]
    return report | {"confidence by epoch": [round(float(value), 3) for value in by_epoch]}


def _mean(ids: NDArray[np.int64], values: NDArray[Any], weight: NDArray[Any], count: int) -> NDArray[np.float64]:
    total = np.bincount(ids, weights=values * weight, minlength=count)
    mass = np.bincount(ids, weights=weight, minlength=count)
    mean = total / np.maximum(mass, 1e-12)
    return np.where(mass > 0, mean, mean[mass > 0].min() if (mass > 0).any() else 0.0)  # never judged: least suspicious


def calibration_report(found: sgoif.Run, wrong: NDArray[np.bool_]) -> dict[str, Any]:
    """How good ``p_mislabeled`` is: its ranking, and what it promises beside what is true."""
    table = found.examples()
    if "p_mislabeled" not in table:
        return {"p_mislabeled": None}
    p = np.nan_to_num(table["p_mislabeled"][np.argsort(table["id"])])
    order = np.argsort(-p, kind="stable")
    promised = [
        {**item, "true": float(wrong[order[: item["count"]]].mean())} for item in found.info["expected_precision"]
    ]
    errors = {"expected": found.info["expected_errors"], "true": int(wrong.sum())}
    cleaning = found.info["holdout_cleaning"]
    return {"p_mislabeled": detection_report(p, wrong), "precision": promised, "errors": errors, "cleaning": cleaning}


def suggestion_accuracy(found: sgoif.Run, given: NDArray[np.integer], clean: NDArray[np.integer]) -> dict[str, float]:
    """How often the suggested label is right: over all true errors, and over those in the top 5% by ``worst``."""
    table = found.examples()
    order = np.argsort(table["id"])
    suggested, worst = table["suggested_label"][order], np.nan_to_num(table["worst"][order], nan=-np.inf)
    wrong, right = given != clean, suggested == clean
    top = np.argsort(-worst)[: max(1, len(given) // 20)]
    flagged = wrong[top]
    return {"all": 100 * float(right[wrong].mean()), "top 5%": 100 * float(right[top][flagged].mean())}


def show(report: dict[str, Any]) -> None:
    print(f"{'AP (P@1% by gate)':18s}" + "".join(f"{window:>13s}" for window in WINDOWS))
    for name in SIGNALS:
        row = report[name]
        print(f"{name:18s}" + "".join(f"{row[w]['ap']:13.1f}" for w in WINDOWS) + f"   ({row['gate']['p@1%']:.1f})")
    if report["p_mislabeled"] is not None:
        row, errors = report["p_mislabeled"], report["errors"]
        print(f"p_mislabeled: AP {row['ap']:.1f}, AUROC {row['auroc']:.1f}, P@1% {row['p@1%']:.1f}", end="; ")
        print(f"errors expected {errors['expected']:.0f}, true {errors['true']}; hold-out {report['cleaning']}")
        for item in report["precision"]:
            promise = f"{100 * item['value']:.0f}% [{100 * item['low']:.0f}, {100 * item['high']:.0f}]"
            print(
                f"  precision of the top {100 * item['top']:.0f}%: promised {promise}, true {100 * item['true']:.0f}%"
            )
    right = report["suggested label right, of true errors"]
    print(f"suggested label right for {right['all']:.0f}% of the true errors, {right['top 5%']:.0f}% in the top 5%")
    print(f"confidence by epoch {report['confidence by epoch']}")
    print(f"{report['seconds']:.0f} s, overhead measured inside the loop {100 * report['overhead']:.1f}%", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--setting", default="pair-20", help=f"one of {', '.join(noise.settings('cifar10'))}")
    parser.add_argument("--seeds", default="0", help="comma-separated")
    parser.add_argument("--holdout", choices=["trusted", "as-given"], default="trusted")
    parser.add_argument("--split", choices=["development", "reported"], default="development")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--examples", type=int, default=20_000)
    parser.add_argument("--gate", default="relative")
    parser.add_argument("--curvature", default="kfac")
    parser.add_argument("--solver", default="richardson")
    parser.add_argument("--json", action="store_true", help="print the results as one JSON line at the end")
    parser.add_argument("--save", metavar="FILE", help="append to a JSONL file under benchmarks/results")
    options = parser.parse_args()
    names = ("setting", "holdout", "split", "epochs", "examples", "gate", "curvature", "solver")
    settings = {name: getattr(options, name) for name in names}
    results = []
    for seed in (int(text) for text in options.seeds.split(",")):
        print(f"\n{options.setting}, {options.holdout} hold-out, {options.split} set, seed {seed}", flush=True)
        report = run(seed=seed, **settings)
        show(report)
        result = {"benchmark": "label_noise", "settings": settings, "seed": seed, "report": report}
        results.append(append_result(options.save, result) if options.save else result)
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
