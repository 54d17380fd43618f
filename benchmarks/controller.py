"""Does the gate earn its place?

Scores do not depend on the gate, only the weights of the visits do. So every gate is replayed on the residuals of the
same trainings, seed by seed: the relative gate against none, ramps in time, a moving average, and the best window that
a hand could choose knowing the answer. Three kinds of run are added where time says little about trust: a learning rate
with warm restarts, directions and curvature lost at 60% of the training, and draws of the hold-out that go wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.experiment import Experiment
from benchmarks.metrics import average_precision, weighted_mean
from benchmarks.tables.rows import latest, means, table
from benchmarks.trainings import Setup, Trained, train
from sgoif.influence import Gate, GateSettings

GATES: tuple[Any, ...] = ("relative", "linear", "none", "ramp", "ramp2", "moving-average")
SIGNALS = ("harm", "worst")
CASES: Mapping[str, Mapping[str, Any]] = {
    "pair-20, warm restarts": {"setting": "pair-20", "cycles": 3},
    "pair-20, reset at 60%": {"setting": "pair-20", "fault": "reset"},
    "pair-20, corrupted draws": {"setting": "pair-20", "fault": "corrupted"},
    "pair-20": {"setting": "pair-20"},
    "sym-40": {"setting": "sym-40"},
    "worst": {"setting": "worst"},
}


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


def compare(found: Trained) -> dict[str, dict[str, float]]:
    """Average precision in percent of each signal under each gate, and in the best window of whole epochs."""
    visits, last = found.visits, int(found.visits["epoch"].max())
    result: dict[str, dict[str, float]] = {}
    for name in GATES:
        weights = visit_weights(found, replay(found.residual, GateSettings(mode=name)))
        result[name] = {signal: _ap(found, signal, weights[signal]) for signal in SIGNALS}
    windows = [
        {signal: _ap(found, signal, visits["epoch"] >= first) for signal in SIGNALS} for first in range(1, last + 1)
    ]
    result["best window"] = {signal: max(window[signal] for window in windows) for signal in SIGNALS}
    return result


def _ap(found: Trained, signal: str, weight: NDArray[Any]) -> float:
    values = np.nan_to_num(found.visits[signal].astype(np.float64))
    return 100 * average_precision(weighted_mean(found.visits["id"], values, weight, len(found.given)), found.wrong)


def measure(setup: Setup) -> dict[str, Any]:
    case = next(name for name, case in CASES.items() if all(getattr(setup, key) == case[key] for key in case))
    return {"case": case, "ap": compare(train(setup))}


def controller() -> str:
    """AP of `harm` and `worst` under every gate, mean over seeds."""
    found = latest(EXPERIMENT.results, key=lambda run: (run["case"], run["seed"]))
    cases: dict[str, list[Any]] = {}
    for run in found:
        cases.setdefault(run["case"], []).append(run["ap"])
    gates = list(found[0]["ap"]) if found else []
    rows = [
        [case, f"`{signal}`", *(means(run[gate][signal] for run in runs) for gate in gates)]
        for case, runs in cases.items()
        for signal in SIGNALS
    ]
    return table(("case", "signal", *gates), rows)


EXPERIMENT = Experiment(
    name="controller",
    settings=Setup,
    run=measure,
    tables={"controller": controller},
    full=[{**case, "split": "reported", "seed": (1, 2, 3)} for case in CASES.values()],
    small=[{**case, "examples": 400, "epochs": 2} for case in CASES.values() if case["setting"] == "pair-20"],
    unrecorded=(),
    describe=lambda row: f"{row['case']}: " + ", ".join(f"{name} {aps}" for name, aps in row["ap"].items()),
)
