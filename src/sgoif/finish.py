"""From what a monitor recorded to a run: evidence added up, probabilities learnt, tables written."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgoif.evidence import LIKENESS_COLUMNS, Sketches
from sgoif.run import MemoryTables, Run, load
from sgoif.training.canaries import CALIBRATED_SIGNALS, CanaryLedger, RunCalibration, calibrate_run
from sgoif.training.engine import Engine
from sgoif.training.monitor import Monitor
from sgoif.training.noise import NoiseEvidence
from sgoif.training.recorder import Recorder
from sgoif.training.sinks import MemorySink, ScoreSink

log = logging.getLogger(__name__)

__all__ = ["calibrated_run", "collect_run", "finish_run"]

Columns = dict[str, NDArray[Any]]


def finish_run(monitor: Monitor) -> Run:
    """Add up what a monitor recorded, write the run down where a place was given, and close the sink."""
    facts = {
        "kind": "watch",
        **monitor.facts,
        "counters": monitor.counters,
        "faults": dict(monitor.faults),
        "overhead": monitor.governor.overhead,
        "overhead_by_part": monitor.governor.shares,
        "forecast": None if monitor.forecast is None else asdict(monitor.forecast),
        "plan": asdict(monitor.plan),
        "plan_changes": monitor.governor.changes,
        "head": monitor.engine.head.name,
    }
    if monitor.ledger is None:
        return collect_run(monitor.recorder, facts, sketches=monitor.sketches)
    return calibrated_run(monitor.ledger, monitor.recorder, monitor.engine, facts, sketches=monitor.sketches)


def calibrated_run(
    ledger: CanaryLedger,
    recorder: Recorder,
    engine: Engine,
    facts: dict[str, Any],
    *,
    sketches: Sketches | None = None,
    noise: NoiseEvidence | None = None,
    more: Columns | None = None,
) -> Run:
    """Add up a run with ``p_mislabeled`` where the canaries allow it; a run without is worth more than none."""
    calibration = None
    held = np.bincount(ledger.labels, minlength=ledger.num_classes)
    facts = {**facts, "held_out_per_class": held.tolist()}
    try:
        calibration = calibrate_run(ledger, recorder, engine, noise)
    except Exception as error:
        log.warning("the run could not be calibrated: %s", error)
        facts = {**facts, "calibration_error": f"{type(error).__name__}: {error}"}
    return collect_run(recorder, facts, calibration, sketches=sketches, more=more)


def collect_run(
    recorder: Recorder,
    facts: dict[str, Any],
    calibration: RunCalibration | None = None,
    *,
    sketches: Sketches | None = None,
    more: Columns | None = None,
) -> Run:
    """One row per example from the recorder's evidence and ``more``, with the facts of the run beside it."""
    tables = {"examples": _examples(recorder) | (more or {})}
    if calibration is not None:
        if calibration.noise is not None:
            tables["examples"] |= _suggestions(calibration.noise, tables["examples"])
        tables["examples"]["p_mislabeled"] = calibration.p_mislabeled
        tables["examples"]["p_mislabeled_low"] = calibration.p_low
        tables["examples"]["p_mislabeled_high"] = calibration.p_high
        tables["holdout"] = calibration.holdout
        tables["canaries"] = _canaries(calibration, max(recorder.last_step, 0))
        facts = facts | _calibration_facts(calibration)
    if sketches is not None:
        for name in tables.keys() & {"examples", "holdout"}:
            tables[name] |= sketches.columns(tables[name]["id"])
        facts = {**facts, "nearly_same": sketches.nearly_same}
    # every visit of such an example met a shut gate, or no direction yet; a later snapshot can judge it
    not_judged = int((tables["examples"]["confidence"] <= 0).sum())
    info = {**facts, "num_examples": len(recorder.index), "num_not_judged": not_judged}
    return _keep(recorder.sink, info, tables)


def _keep(sink: ScoreSink | None, info: dict[str, Any], tables: dict[str, Columns]) -> Run:
    """Write a run's tables where its visits went; it is held in memory besides, should the disk fail."""
    if isinstance(sink, MemorySink):
        return Run(info, MemoryTables({**tables, **sink.tables(), "visits": sink.visits()}))
    if sink is not None:
        try:
            for name, columns in tables.items():
                sink.write_table(name, columns)
            written: Any = sink  # one that writes a run: sgoif.store is imported where it is used
            written.write_info(info)
            sink.close()
            if written.is_sound:
                return load(written.url)
        except Exception as error:
            log.warning("the run could not be written: %s: %s", type(error).__name__, error)
    return Run(info, MemoryTables(tables))


def _examples(recorder: Recorder) -> Columns:
    evidence, count = recorder.evidence, len(recorder.index)
    suggested = evidence.suggested_label(top=3)
    visits = evidence.column("num_visits")[:count]
    table: Columns = {
        "id": np.asarray(recorder.index.ids),
        "given_label": recorder.given[:count],
        "suggested_label": suggested.labels[:count, 0],
        "suggested_label_2": suggested.labels[:count, 1],
        "suggested_label_3": suggested.labels[:count, 2],
        "suggested_share": suggested.share()[:count, 0],
        "n_visits": visits,
        "confidence": evidence.column("sum_c")[:count, 0] / np.maximum(visits, 1),
    }
    table |= recorder.likely.top(count).columns()
    for name in recorder.means.signals:
        table[name] = recorder.means.mean(name)[:count]
    for name in evidence.signals:
        table[name] = evidence.mean_raw(name)[:count]
        table[f"{name}_std"] = evidence.mean(name)[:count]
        table[f"{name}_std_error"] = evidence.standard_error(name)[:count]
    words = recorder.likeness.words(count)
    return table | dict(zip(LIKENESS_COLUMNS, words.T, strict=True)) if words.any() else table


def _suggestions(noise: NoiseEvidence, examples: Columns) -> Columns:
    """What a model of the noise suggests: it knows more than the class of the worst anchor, where a class was given."""
    given = examples["given_label"]
    labels, probability = noise.suggested(given)
    share = probability[:, 0] / np.maximum(probability.sum(1), 1e-12)
    names = ("suggested_label", "suggested_label_2", "suggested_label_3", "suggested_share")
    found = (*labels.T, share)
    return {name: np.where(given >= 0, values, examples[name]) for name, values in zip(names, found, strict=True)}


def _canaries(calibration: RunCalibration, last_step: int) -> Columns:
    canaries = calibration.calibration.canaries
    table: Columns = {
        "holdout_id": calibration.holdout_ids[canaries.holdout_row],
        "refresh_step": np.full(len(canaries), last_step),
        "fold": canaries.fold,
        "label": canaries.label,
        "assigned_label": canaries.assigned_label,
        "is_flip": canaries.is_flip,
        "weight": canaries.weight,
    }
    return table | {name: canaries.signals[:, i] for i, name in enumerate(CALIBRATED_SIGNALS)}


def _calibration_facts(calibration: RunCalibration) -> dict[str, Any]:
    return {
        "expected_errors": float(np.nansum(calibration.p_mislabeled)),
        "expected_precision": [asdict(item) for item in calibration.precision],
        "transition": calibration.calibration.transition.tolist(),
        "holdout_cleaning": None if calibration.choice is None else asdict(calibration.choice),
    }
