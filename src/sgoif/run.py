"""A finished run: one row per example, and how the run went."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgoif.training.canaries import CanaryLedger, RunCalibration, calibrate_run
from sgoif.training.engine import Engine
from sgoif.training.monitor import Monitor
from sgoif.training.recorder import Recorder
from sgoif.training.sinks import MemorySink

log = logging.getLogger(__name__)

__all__ = ["Run", "calibrated_run", "collect_run", "finish_run"]


@dataclass(frozen=True, slots=True)
class Run:
    """What a monitored training found."""

    info: dict[str, Any]
    table: dict[str, NDArray[Any]]  # one row per example
    visits: dict[str, NDArray[Any]]  # one row per visit, empty where they were not kept

    def examples(self) -> dict[str, NDArray[Any]]:
        """One row per example: gate-weighted means of every signal, suggested labels, confidence and visits."""
        return self.table

    def worst(self, count: int = 20, by: str | None = None) -> dict[str, NDArray[Any]]:
        """The rows with the largest value of a column, most suspicious first.

        Without a column, by ``p_mislabeled`` where the run could be calibrated, else by ``worst``.
        """
        name = by or ("p_mislabeled" if "p_mislabeled" in self.table else "worst")
        order = np.argsort(-np.nan_to_num(self.table[name], nan=-np.inf), kind="stable")[:count]
        return {name: column[order] for name, column in self.table.items()}


def finish_run(monitor: Monitor, facts: dict[str, Any]) -> Run:
    """Add up what a monitor recorded, and write the run down where a folder was given."""
    facts = {
        **facts,
        "counters": monitor.counters,
        "faults": dict(monitor.faults),
        "overhead": monitor.governor.overhead,
        "plan": asdict(monitor.plan),
        "plan_changes": monitor.governor.changes,
        "head": monitor.engine.head.name,
    }
    if monitor.ledger is None:
        return collect_run(monitor.recorder, facts)
    return calibrated_run(monitor.ledger, monitor.recorder, monitor.engine, facts)


def calibrated_run(ledger: CanaryLedger, recorder: Recorder, engine: Engine, facts: dict[str, Any]) -> Run:
    """Add up a run with ``p_mislabeled`` where the canaries allow it; a run without is worth more than none."""
    calibration = None
    try:
        calibration = calibrate_run(ledger, recorder, engine)
    except Exception as error:
        log.warning("the run could not be calibrated: %s", error)
        facts = {**facts, "calibration_error": f"{type(error).__name__}: {error}"}
    return collect_run(recorder, facts, calibration)


def collect_run(recorder: Recorder, facts: dict[str, Any], calibration: RunCalibration | None = None) -> Run:
    """One row per example from the recorder's evidence, with the facts of the run beside it."""
    evidence, count = recorder.evidence, len(recorder.index)
    suggested = evidence.suggested_label(top=3)
    table: dict[str, NDArray[Any]] = {
        "id": np.asarray(recorder.index.ids),
        "given_label": recorder.given[:count],
        "suggested_label": suggested.labels[:count, 0],
        "n_visits": evidence.column("num_visits")[:count],
        "confidence": evidence.column("sum_c")[:count, 0] / np.maximum(evidence.column("num_visits")[:count], 1),
    }
    for name in recorder.means.signals:
        table[name] = recorder.means.mean(name)[:count]
    for name in evidence.signals:
        table[name] = evidence.mean_raw(name)[:count]
        table[f"{name}_std"] = evidence.mean(name)[:count]
        table[f"{name}_std_error"] = evidence.standard_error(name)[:count]
    if calibration is not None:
        table["p_mislabeled"] = calibration.p_mislabeled
        facts = facts | {
            "expected_errors": float(np.nansum(calibration.p_mislabeled)),
            "expected_precision": [asdict(item) for item in calibration.precision],
            "transition": calibration.calibration.transition.tolist(),
            "holdout_cleaning": None if calibration.choice is None else asdict(calibration.choice),
        }
    visits = recorder.sink.table() if isinstance(recorder.sink, MemorySink) else {}
    info = {**{key: value for key, value in facts.items() if key != "out"}, "num_examples": count}
    run = Run(info, table, visits)
    if facts.get("out"):
        write_run(run, Path(facts["out"]))
    return run


def write_run(run: Run, folder: Path) -> None:
    """One Parquet file per table and ``run.json``."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    for name, columns in (("examples", run.table), ("visits", run.visits)):
        if columns:
            pq.write_table(pa.table(dict(columns)), folder / f"{name}.parquet")
    (folder / "run.json").write_text(json.dumps(run.info, indent=2, default=str) + "\n")
