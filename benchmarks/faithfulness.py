"""Are the scores what they claim to be? ``python -m benchmarks.faithfulness``.

MNIST softmax regression, where influence is known exactly. Every solver against the exact scores, every curvature
backend against them, the exact scores against retraining without an example and on random halves
(:mod:`benchmarks.exactness`), and the confidence of unfinished solves against their true error
(:mod:`benchmarks.confidence`). :mod:`benchmarks.attributors` puts other libraries beside us, there and on a network.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import sys
import time
from typing import Any

import torch

from benchmarks import data
from benchmarks.confidence import KAPPA, ladder, ladder_summary
from benchmarks.convex import SoftmaxProblem
from benchmarks.exactness import (
    TOLERANCE,
    Row,
    Truth,
    backend_rows,
    removal_row,
    remove,
    retrain_subsets,
    solver_rows,
    subset_row,
)
from benchmarks.records import append_result

L2 = 1e-3
SOLVER_BAR, LOO_BAR, LDS_BAR = 0.999, 0.99, 0.93


def mnist_problem(split: str, count: int, l2: float = L2) -> SoftmaxProblem:
    """Take the first images, pixels over 255 with a constant 1 for the bias."""
    images = data.mnist(split, count)
    pixels = torch.from_numpy(images.pixels.reshape(count, -1)).double() / 255
    features = torch.cat([pixels, pixels.new_ones(count, 1)], dim=1)
    return SoftmaxProblem(features, torch.from_numpy(images.labels[:count]), images.num_classes, l2)


def run_convex(train: SoftmaxProblem, test: SoftmaxProblem) -> Row:
    """Measure everything about the convex problem, printing as it goes."""
    started, started_cpu = time.perf_counter(), time.process_time()
    truth = Truth(train, test)
    accuracy = (test.probabilities(truth.theta)[:, :, 0].argmax(1) == test.labels).double().mean()
    gradient = torch.linalg.vector_norm(train.gradient(truth.theta, train.uniform()))
    problem: Row = {
        "parameters": train.num_parameters,
        "gradient_norm": float(gradient),
        "test_accuracy": float(accuracy),
        "exact_scores": " x ".join(str(size) for size in truth.scores.shape),
    }
    problem["cpu_s"] = time.process_time() - started_cpu
    show("the problem", [problem])
    found: Row = {"problem": problem, "solvers": solver_rows(truth)}
    show("solvers", found["solvers"])
    removals, little, halves = remove(truth, 200), remove(truth, 50, share=0.01), retrain_subsets(truth, 100, 0.5)
    found["removals"] = [removal_row(truth, removals), removal_row(truth, removals, newton=True)]
    found["removals"].append(removal_row(truth, little))
    show("leave-one-out: exact influence against retraining", found["removals"])
    found["subsets"] = [subset_row(truth, halves), subset_row(truth, retrain_subsets(truth, 50, 0.9))]
    show("random subsets: summed exact influence against retraining", found["subsets"])
    found["backends"] = backend_rows(truth, removals, halves)
    show("curvature backends, worst first", found["backends"])
    readings = ladder(truth)
    found["confidence"] = ladder_summary(readings)
    found["readings"] = {key: [_short(row[key]) for row in readings] for key in readings[0]}
    show_confidence(found["confidence"])
    found["seconds"], found["cpu_s"] = time.perf_counter() - started, time.process_time() - started_cpu
    found["peak_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    found["bars"] = convex_bars(found)
    show_bars(found["bars"])
    print(
        f"{found['cpu_s']:.0f} CPU seconds in {found['seconds']:.0f} s, peak memory {found['peak_gb']:.1f} GiB",
        flush=True,
    )
    return found


def _short(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def convex_bars(found: Row) -> list[Row]:
    """Compare with the bars; a solver that did not reach the residual misses its bar whatever its correlation."""
    rows = [
        bar(f"{row['solver']}: Pearson to exact", row["pearson"] if row["residual"] < TOLERANCE else 0.0, SOLVER_BAR)
        for row in found["solvers"]
    ]
    rows.append(bar("leave-one-out: Pearson per test point, mean", found["removals"][0]["pearson"], LOO_BAR))
    rows.append(bar("random halves: Spearman per test point, mean (LDS)", found["subsets"][0]["lds"], LDS_BAR))
    return rows


def bar(name: str, value: float, least: float) -> Row:
    return {"bar": name, "value": value, "least": least, "met": bool(value >= least)}


def show(title: str, rows: list[Row]) -> None:
    """Print rows under their keys, numbers in four digits."""
    print(f"\n{title}")
    keys = list(rows[0])
    cells = [keys] + [[_cell(row[key]) for key in keys] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(keys))]
    for line in cells:
        print("  " + "  ".join(text.ljust(width) for text, width in zip(line, widths)))
    sys.stdout.flush()


def _cell(value: object) -> str:
    if not isinstance(value, float):
        return "-" if value is None else str(value)
    if math.isfinite(value) and (value == 0 or 1e-3 <= abs(value) < 1e4):
        return f"{value:.5f}" if 0.99 <= value < 1 else f"{value:.4g}"
    return f"{value:.1e}"


def show_confidence(summary: Row) -> None:
    rows = [
        {"spearman of residual with": target.removeprefix("residual_vs_").replace("_", " "), **summary[target]}
        for target in ("residual_vs_error", "residual_vs_score_error")
    ]
    show(f"unfinished solves: {summary['readings']} readings of (solver, products, anchor)", rows)
    flat = [
        {"c above": r["low"], "up to": r["high"], "readings": r["count"], **r["means"]} for r in summary["reliability"]
    ]
    flat[0]["c above"], flat[0]["up to"] = "c = 0", 0
    show("means by confidence", flat)
    holds, slack = summary["bound_holds"], summary["median_bound_over_error"]
    print(f"  |error| <= |residual|/l2 holds in {100 * holds:.0f}% of readings, median slack {slack:.0f}x", flush=True)


def show_bars(rows: list[Row]) -> None:
    print("\nbars")
    for row in rows:
        verdict = "met" if row["met"] else "MISSED"
        print(f"  {row['bar']:52s} {row['value']:.5f}  bar {row['least']:.3f}  {verdict}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the results as one JSON line at the end")
    parser.add_argument("--save", metavar="FILE", help="append to a JSONL file under benchmarks/results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    settings: Row = {"part": "convex", "train": 5000, "test": 500}
    settings |= {"l2": L2, "tolerance": TOLERANCE, "solver_columns": 50, "kappa": KAPPA}
    report = run_convex(mnist_problem("train", 5000), mnist_problem("test", 500))
    result = {"benchmark": "faithfulness", "settings": settings, "seed": 0, "report": report}
    if options.save:
        result = append_result(options.save, result)
    if options.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
