"""Does the gate earn its place? ``python -m benchmarks.controller``.

Scores do not depend on the gate, only the weights of the visits do. So every gate is replayed on the residuals of the
same trainings, seed by seed: the relative gate against none, ramps in time, a moving average, and the best window that
a hand could choose knowing the answer. Three kinds of run are added where time says little about trust: a learning rate
with warm restarts, directions and curvature lost at 60% of the training, and draws of the hold-out that go wrong.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.label_noise import weighted_mean
from benchmarks.metrics import average_precision
from benchmarks.records import append_result
from benchmarks.trainings import Setup, Trained, train
from sgoif.influence import Gate, GateSettings

GATES = ("relative", "linear", "none", "ramp", "ramp2", "moving-average")
SIGNALS = ("harm", "worst")
CASES: Mapping[str, Mapping[str, Any]] = {
    "pair-20": {"setting": "pair-20"},
    "sym-40": {"setting": "sym-40"},
    "worst": {"setting": "worst"},
    "pair-20, warm restarts": {"setting": "pair-20", "cycles": 3},
    "pair-20, reset at 60%": {"setting": "pair-20", "fault": "reset"},
    "pair-20, corrupted draws": {"setting": "pair-20", "fault": "corrupted"},
}
PLAIN = ("pair-20", "sym-40", "worst")


def replay(residual: NDArray[np.float64], settings: GateSettings) -> NDArray[np.float64]:
    """Confidence of every anchor before every step, ``[steps, K]``, had the run had this gate."""
    steps, anchors = residual.shape
    gate = Gate(settings, train_size=1, planned_steps=steps)
    noise, sizes = torch.zeros(anchors), torch.ones(anchors)
    found = np.zeros((steps, anchors))
    for step, values in enumerate(torch.from_numpy(residual)):
        if not bool(values.isnan().all()):  # no reading yet: nothing is trusted
            found[step] = gate.read(values, noise, sizes).confidence.numpy()
    return found


def visit_weights(found: Trained, confidence: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """What each visit adds, by signal: the mean over anchors for `harm`, that of its worst anchor for `worst`."""
    step, anchor = found.visits["step"], found.visits["worst_anchor"].astype(int)
    return {"harm": confidence.mean(1)[step], "worst": confidence[step, anchor]}


def compare(found: Trained, gates: Mapping[str, GateSettings]) -> dict[str, dict[str, float]]:
    """Average precision in percent of each signal under each gate, and in the best window of whole epochs."""
    visits, last = found.visits, int(found.visits["epoch"].max())
    result: dict[str, dict[str, float]] = {}
    for name, settings in gates.items():
        weights = visit_weights(found, replay(found.residual, settings))
        result[name] = {signal: _ap(found, signal, weights[signal]) for signal in SIGNALS}
    windows = [
        {signal: _ap(found, signal, visits["epoch"] >= first) for signal in SIGNALS} for first in range(1, last + 1)
    ]
    result["best window"] = {signal: max(window[signal] for window in windows) for signal in SIGNALS}
    return result


def _ap(found: Trained, signal: str, weight: NDArray[Any]) -> float:
    values = np.nan_to_num(found.visits[signal].astype(np.float64))
    return 100 * average_precision(weighted_mean(found.visits["id"], values, weight, len(found.given)), found.wrong)


def show(case: str, by_seed: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, Any]:
    """Print one case, paired over seeds, and return its means."""
    print(f"\n{case}: AP, mean over {len(by_seed)} seeds (paired difference of the relative gate to it)")
    summary: dict[str, Any] = {}
    for signal in SIGNALS:
        ours = np.array([seed["relative"][signal] for seed in by_seed])
        parts = []
        for gate in by_seed[0]:
            other = np.array([seed[gate][signal] for seed in by_seed])
            summary[f"{signal}/{gate}"] = float(other.mean())
            parts.append(
                f"{gate} {other.mean():.1f}" + ("" if gate == "relative" else f" ({(ours - other).mean():+.1f})")
            )
        print(f"  {signal:6s} " + "   ".join(parts))
    return summary


def verdict(summaries: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Hold the two bars against the means."""
    behind = {
        f"{case}, {signal}": max(found[f"{signal}/ramp"], found[f"{signal}/ramp2"]) - found[f"{signal}/relative"]
        for case, found in summaries.items()
        if case in PLAIN
        for signal in SIGNALS
    }
    ahead = {
        f"{case}, {signal}": found[f"{signal}/relative"] - found[f"{signal}/ramp"]
        for case, found in summaries.items()
        if case not in PLAIN
        for signal in SIGNALS
    }
    if behind:
        worst = max(behind, key=lambda key: behind[key])
        met = "met" if behind[worst] <= 1.5 else "MISSED"
        print(f"\nwithin 1.5 AP of the best ramp: behind by {behind[worst]:.1f} at most ({worst}): {met}")
    for case, gain in ahead.items():
        print(f"5 AP over the ramp where time is no proxy: {case}: {gain:+.1f}: {'met' if gain >= 5 else 'MISSED'}")
    return {"behind the best ramp": behind, "ahead of the ramp": ahead}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="1,2,3", help="comma-separated; 0 is the development set")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--examples", type=int, default=20_000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--save", metavar="FILE")
    options = parser.parse_args()
    seeds = [int(text) for text in options.seeds.split(",")]
    gates = {name: GateSettings(mode=name) for name in GATES}  # type: ignore[arg-type]
    summaries: dict[str, Any] = {}
    for case in options.cases:
        by_seed = []
        for seed in seeds:
            split = "reported" if seed else "development"
            sizes = {"examples": options.examples, "epochs": options.epochs}
            setup = Setup(seed=seed, split=split, **sizes, **CASES[case])
            found = train(setup)
            by_seed.append(compare(found, gates))
            if options.save:
                line = {"benchmark": "controller", "case": case, "settings": asdict(setup), "seed": seed}
                append_result(options.save, {**line, "ap": by_seed[-1]})
        summaries[case] = show(case, by_seed)
    bars = verdict(summaries)
    if options.json:
        print(json.dumps({"means": summaries, "bars": bars}))


if __name__ == "__main__":
    main()
