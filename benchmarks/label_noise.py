"""Label errors found while a small ResNet-9 trains on noisy images: ``python -m benchmarks.label_noise``.

One monitored training gives every signal of every visit; the report shows what each signal finds when its visits are
added up by the gate, over the second half of the training, by a ramp in time, or when only the last one counts, and
what one audit of the finished model finds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import noise, stability
from benchmarks.metrics import calibration_of_top, detection_report
from benchmarks.records import append_result, is_recorded
from benchmarks.trainings import Setup, Trained, train

SUSPICIOUS_WHEN_LOW = ("margin", "p_given", "own", "own_identity", "own_solved", "probe_margin")
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
    "el2n",
)
WINDOWS = ("gate", "second half", "all", "ramp", "ramp2", "last")
TRACKED = ("harm", "worst", "probe_margin", "margin")  # from epoch to epoch
AUDITED = ("harm", "worst", "harm_identity", "worst_identity", "probe_loss", "probe_margin", "margin", "loss")
FACTS = ("seconds", "overhead", "counters", "accuracy")
TIERS: Mapping[str, Mapping[str, Mapping[str, int]]] = {
    "S": {name: {"examples": 2_000, "epochs": 2} for name in ("cifar10", "cifar100")},
    "M": {"cifar10": {"examples": 20_000, "epochs": 10}, "cifar100": {"examples": 30_000, "epochs": 12}},
}


def report_on(found: Trained) -> dict[str, Any]:
    """Everything that one training says about finding its wrong labels; of clean ones, what it claims of them."""
    if not found.wrong.any():
        claims = {name: claimed(table) for name, table in (("watch", found.table), ("audit", found.audit))}
        said = {key: found.info.get(key) for key in ("expected_errors", "no_p_reason", "no_totals_reason")}
        return {"claimed": claims, **said, **{key: found.info[key] for key in FACTS}}
    return {
        "signals": {name: _by_window(found, name) for name in SIGNALS},
        "audit": {name: detection_report(_suspicion(found.audit, name), found.wrong) for name in _audited(found)},
        "suggested label right, of true errors": suggestion_accuracy(found),
        "confidence by epoch": _by_epoch(found.visits, found.visits["confidence"]),
        "residual by epoch": _by_epoch(found.visits, found.residual.mean(1)[found.visits["step"]]),
        "epochs": {
            name: stability.by_epoch(found.visits["epoch"], _so_far(found, name), found.wrong) for name in TRACKED
        },
        **calibration_report(found),
        **{key: found.info[key] for key in FACTS},
    }


def claimed(table: Mapping[str, NDArray[Any]]) -> dict[str, float]:
    """What is said to be wrong where nothing is: labels more likely wrong than right, their sum, the first 1%."""
    p = np.nan_to_num(table["p_mislabeled"]) if "p_mislabeled" in table else np.zeros(len(table["id"]))
    first = np.sort(p)[-max(1, len(p) // 100) :]
    return {
        "examples": float(len(p)),
        "flagged": float((p > 0.5).sum()),
        "expected": float(p.sum()),
        "first 1%": 100 * float(first.mean()),
    }


def _by_window(found: Trained, name: str) -> dict[str, Any]:
    visits = found.visits
    when = (visits["step"] + 1) / (visits["step"].max() + 1)
    last = visits["epoch"].max()
    weights = {
        "gate": _gate(found, name),
        "second half": visits["epoch"] > last // 2,
        "all": np.ones(len(when)),
        "ramp": when,
        "ramp2": when**2,
        "last": visits["epoch"] == last,
    }
    values = _suspicion(visits, name)
    return {
        window: detection_report(weighted_mean(visits["id"], values, weight, len(found.given)), found.wrong)
        for window, weight in weights.items()
    }


def _gate(found: Trained, name: str) -> NDArray[np.float64]:
    weight: NDArray[np.float64] = found.visits["confidence_worst" if name.startswith("worst") else "confidence"]
    return weight


def _so_far(found: Trained, name: str) -> Callable[[NDArray[np.bool_]], NDArray[np.float64]]:
    """A signal's ranking from some of its visits, weighted by the gate; where the gate was shut, all count alike."""
    ids, values, gate = found.visits["id"], _suspicion(found.visits, name), _gate(found, name)

    def score(seen: NDArray[np.bool_]) -> NDArray[np.float64]:
        weight = np.where(seen, gate, 0.0)
        return weighted_mean(ids, values, weight if weight.any() else seen.astype(float), len(found.given))

    return score


def _suspicion(table: Mapping[str, NDArray[Any]], name: str) -> NDArray[np.float64]:
    return np.nan_to_num(table[name].astype(np.float64)) * (-1 if name in SUSPICIOUS_WHEN_LOW else 1)


def _audited(found: Trained) -> list[str]:
    return [*AUDITED, *(["p_mislabeled"] if "p_mislabeled" in found.audit else [])]


def weighted_mean(
    ids: NDArray[np.int64], values: NDArray[Any], weight: NDArray[Any], count: int
) -> NDArray[np.float64]:
    """Mean value of each example's visits; an example without weight is the least suspicious."""
    total = np.bincount(ids, weights=values * weight, minlength=count)
    mass = np.bincount(ids, weights=weight, minlength=count)
    mean = total / np.maximum(mass, 1e-12)
    return np.where(mass > 0, mean, mean[mass > 0].min() if (mass > 0).any() else 0.0)


def _by_epoch(visits: Mapping[str, NDArray[Any]], values: NDArray[Any]) -> list[float]:
    parts = [values[visits["epoch"] == epoch] for epoch in range(int(visits["epoch"].max()) + 1)]
    finite = [part[np.isfinite(part)] for part in parts]  # a direction that has not been solved yet has no residual
    return [round(float(part.mean()), 3) if len(part) else 0.0 for part in finite]


def calibration_report(found: Trained) -> dict[str, Any]:
    """How good ``p_mislabeled`` is: its ranking, and what it says of the first beside what is true."""
    if found.info.get("expected_errors") is None:
        return {"p_mislabeled": None, "reason": found.info.get("no_p_reason") or found.info.get("no_totals_reason")}
    p = np.nan_to_num(found.table["p_mislabeled"])
    errors = {"expected": found.info["expected_errors"], "true": int(found.wrong.sum())}
    ranking = detection_report(p, found.wrong)
    cleaning = found.info["holdout_cleaning"]
    return {
        "p_mislabeled": ranking,
        "precision": calibration_of_top(p, found.wrong),
        "errors": errors,
        "cleaning": cleaning,
    }


def suggestion_accuracy(found: Trained) -> dict[str, float]:
    """How often the suggested label is right: over all true errors, and over those in the top 5% by ``worst``."""
    worst = np.nan_to_num(found.table["worst"], nan=-np.inf)
    right = found.table["suggested_label"] == found.clean
    top = np.argsort(-worst)[: max(1, len(worst) // 20)]
    flagged = found.wrong[top]
    return {
        "all": 100 * float(right[found.wrong].mean()),
        "top 5%": 100 * float(right[top][flagged].mean()) if flagged.any() else 0.0,
    }


def show(report: Mapping[str, Any]) -> None:
    if "claimed" in report:
        for name, said in report["claimed"].items():
            print(f"{name}: no label is wrong; {said['flagged']:.0f} of {said['examples']:.0f} are called so, ", end="")
            print(f"{said['expected']:.0f} expected, {said['first 1%']:.0f}% of the first 1%", flush=True)
        return
    print(f"{'AP (P@1% by gate)':18s}" + "".join(f"{window:>13s}" for window in WINDOWS) + f"{'audit':>13s}")
    for name in SIGNALS:
        row, late = report["signals"][name], report["audit"].get(name)
        windows = "".join(f"{row[w]['ap']:13.1f}" for w in WINDOWS)
        print(
            f"{name:18s}{windows}" + (f"{late['ap']:13.1f}" if late else 13 * " ") + f"   ({row['gate']['p@1%']:.1f})"
        )
    if report["p_mislabeled"] is not None:
        row, errors, late = report["p_mislabeled"], report["errors"], report["audit"].get("p_mislabeled")
        print(f"p_mislabeled: AP {row['ap']:.1f}, AUROC {row['auroc']:.1f}, P@1% {row['p@1%']:.1f}", end="")
        print(f"; audited AP {late['ap']:.1f}" if late else "", end="; ")
        print(f"errors expected {errors['expected']:.0f}, true {errors['true']}; hold-out {report['cleaning']}")
        for item in report["precision"]:
            print(f"  top {100 * item['top']:.0f}%: mean p {item['value']:.2f}, wrong {item['true']:.2f}")
    right = report["suggested label right, of true errors"]
    print(f"suggested label right for {right['all']:.0f}% of the true errors, {right['top 5%']:.0f}% in the top 5%")
    print(f"residual by epoch {report['residual by epoch']}, confidence {report['confidence by epoch']}")
    print(f"test accuracy {100 * report['accuracy']:.1f}%, {report['seconds']:.0f} s", end="")
    print(f", overhead by the monitor's own clock {100 * report['overhead']:.1f}%", flush=True)


def summarise(reports: Sequence[Mapping[str, Any]]) -> None:
    """Mean over seeds and its 95% t-interval, of the rows that bars are set on."""
    print(f"\nmean over {len(reports)} seeds ± half a 95% t-interval")
    rows = {f"{name}, gate": [r["signals"][name]["gate"] for r in reports] for name in SIGNALS}
    if all(r["p_mislabeled"] is not None for r in reports):
        rows["p_mislabeled"] = [r["p_mislabeled"] for r in reports]
    for name, row in rows.items():
        ap, precision = (_mean_and_half([item[key] for item in row]) for key in ("ap", "p@1%"))
        print(f"  {name:20s} AP {ap[0]:5.1f} ± {ap[1]:4.1f}   P@1% {precision[0]:5.1f} ± {precision[1]:4.1f}")


def _mean_and_half(values: Sequence[float]) -> tuple[float, float]:
    t = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776}.get(len(values), 1.96)
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else float("nan")
    return float(np.mean(values)), t * spread / len(values) ** 0.5


def setups(options: argparse.Namespace) -> list[Setup]:
    """All trainings that the options ask for."""
    dataset = "cifar100" if options.setting.startswith("cifar100-") else "cifar10"
    sizes = dict(TIERS[options.tier][dataset])
    common: dict[str, Any] = {
        "setting": options.setting.removeprefix("cifar100-"),
        "dataset": dataset,
        "split": options.split,
        "examples": options.examples or sizes["examples"],
        "epochs": options.epochs or sizes["epochs"],
        "curvature": options.curvature,
        "solver": options.solver,
    }
    kinds = ["trusted", "as-given"] if options.holdout == "both" else [options.holdout]
    seeds = [int(text) for text in options.seeds.split(",")]
    return [Setup(holdout=kind, seed=seed, **common) for kind in kinds for seed in seeds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    known = [*noise.settings("cifar10"), *(f"cifar100-{name}" for name in noise.settings("cifar100"))]
    parser.add_argument("--setting", default="pair-20", help=f"one of {', '.join(known)}")
    parser.add_argument("--tier", choices=sorted(TIERS), default="M")
    parser.add_argument("--seeds", default="0", help="comma-separated")
    parser.add_argument("--holdout", choices=["trusted", "as-given", "both"], default="trusted")
    parser.add_argument("--split", choices=["development", "reported"], help="by default reported, for seed 0 not")
    parser.add_argument("--epochs", type=int, help="instead of the tier's")
    parser.add_argument("--examples", type=int, help="instead of the tier's")
    parser.add_argument("--curvature", default="kfac")
    parser.add_argument("--solver", default="richardson")
    parser.add_argument("--json", action="store_true", help="print the results as one JSON line at the end")
    parser.add_argument("--save", metavar="FILE", help="append to a JSONL file under benchmarks/results")
    parser.add_argument("--again", action="store_true", help="measure also what that file holds already")
    options = parser.parse_args()
    options.split = options.split or ("development" if options.seeds == "0" else "reported")
    results: list[dict[str, Any]] = []
    for setup in setups(options):
        if options.save and not options.again and is_recorded(options.save, asdict(setup), setup.seed):
            continue
        print(f"\n{options.setting}, {setup.holdout} hold-out, {setup.split} set, seed {setup.seed}", flush=True)
        report = report_on(train(setup))
        show(report)
        result = {"benchmark": "label_noise", "settings": asdict(setup), "seed": setup.seed, "report": report}
        results.append(append_result(options.save, result) if options.save else result)
    for kind in dict.fromkeys(result["settings"]["holdout"] for result in results):
        same = [result["report"] for result in results if result["settings"]["holdout"] == kind]
        if len(same) > 1 and "signals" in same[0]:
            print(f"\n{options.setting}, {kind} hold-out", end="")
            summarise(same)
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
