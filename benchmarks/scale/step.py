"""The step against examples n, classes K and inputs of the head d: seconds of the monitor, ratio, and the forecast.

Ratios are to a bare step of a small perceptron, where the monitor looks dear; seconds are what a larger trunk would not
change. ``10^9`` examples are declared, with synthetic ids, as rank 0 of two that write their visits.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any

import numpy as np

import sgoif
from benchmarks.scale.loop import Loop, Shape
from benchmarks.scale.peers import Declared
from benchmarks.timing import alternate
from sgoif.training.forecast import Sizes, work_per_step

__all__ = ["SMALL", "SWEEPS", "measure", "measure_examples"]

_BASE = Shape()
SWEEPS = {
    "classes": [replace(_BASE, classes=count) for count in (10, 100, 1000, 10_000)],
    "width": [replace(_BASE, width=count) for count in (128, 512, 1024, 2048, 4096)],
    "examples": [replace(_BASE, examples=count, width=128, trunk=64) for count in (10**4, 10**6, 10**9)],
}
SMALL = Shape(classes=10, width=32, trunk=32, batch=16)
_MANY = 5000  # classes above which steps are not compared in blocks: a refresh takes minutes


def measure(shape: Shape, blocks: int = 4) -> dict[str, Any]:
    """One point of the curves against K and d."""
    watched = Loop(shape)
    period = watched.monitor.plan.refresh_every  # type: ignore[union-attr]
    ratio = None
    if shape.classes <= _MANY:
        steps = {"bare": Loop(shape, is_watched=False).step, "watched": watched.step}
        timings = alternate(steps, blocks=blocks, steps_per_block=period, warmup=5, clock=time.process_time, turn=1)
        ratio = timings.summary()
    else:
        watched.run(period + 6)
    return {"shape": asdict(shape), "timing": ratio, **_cost(watched)}


def measure_examples(shape: Shape, steps: int = 61) -> dict[str, Any]:
    """One point of the curve against n: all ids are known already, or where they are too many, none is kept."""
    if shape.examples > 10**7:
        with tempfile.TemporaryDirectory() as folder:
            watched = Loop(shape, peers=Declared(2), out=f"{folder}/run", budget=sgoif.Budget(plan=sgoif.Plan()))
            _run_warm(watched, steps)
            assert watched.monitor is not None
            assert watched.monitor.recorder.sink is not None
            watched.monitor.recorder.sink.close()
            return {"shape": asdict(shape), "keeps": "visits on disk, rank 0 of 2 declared", **_cost(watched)}
    watched = Loop(shape)
    watched.run(2)
    assert watched.monitor is not None
    watched.monitor.recorder.index.add(np.arange(shape.examples))  # as after an epoch
    _run_warm(watched, steps)
    return {"shape": asdict(shape), "keeps": "evidence in memory", **_cost(watched)}


def _run_warm(watched: Loop, steps: int) -> None:
    """Time some steps after a whole period, in which memory is taken for all examples and libraries are loaded."""
    assert watched.monitor is not None
    watched.run(watched.monitor.plan.refresh_every + 1)
    watched.timer.steps.clear()
    watched.run(steps)


def _cost(watched: Loop) -> dict[str, Any]:
    monitor, shape = watched.monitor, watched.shape
    assert monitor is not None and monitor.faults == {}
    forecast = monitor.forecast
    assert forecast is not None
    sizes = Sizes.of(monitor.engine, monitor.recorder, monitor.ledger)
    works = work_per_step(monitor.plan, sizes, shape.batch)
    predicted = (forecast.step_share, forecast.curvature_share, forecast.refresh_share)
    return {
        "own_s": watched.own_seconds(),
        "forecast_s": {name: share * forecast.bare_s for name, share in zip(works, predicted)},
        "work": {name: asdict(work) for name, work in works.items()},
        "device_mb": forecast.device_mb,
        "host_mb": forecast.host_mb,
    }


def curves(sweeps: Iterable[str], blocks: int) -> Iterable[dict[str, Any]]:
    """All points of some sweeps."""
    for sweep in sweeps:
        for shape in SWEEPS[sweep]:
            found = measure_examples(shape) if sweep == "examples" else measure(shape, blocks)
            yield {"sweep": sweep, **found}
