"""An object store that answers 500, late, or not at all (:mod:`benchmarks.s3`)."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.faults.training import Pictures, Row, Training, count_warnings, load_pictures, same_weights
from benchmarks.s3 import broken_s3
from sgoif.run import Run
from sgoif.store import RunFiles

STEPS, BATCH = 240, 256
CLOSE_S = 20.0  # how long close() may wait for the store here, beside its own work; 300 by default


def break_network(_: Path, times: int = 3) -> list[Row]:
    """A share of all requests goes wrong; all of them for a while; all of them until after the end."""
    os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")
    pictures = load_pictures(4000)
    bare = Training(pictures, None, batch=BATCH)
    bare.steps(STEPS)
    with broken_s3() as share:
        sound = _train("s3://runs/sound", pictures, bare, (0.0,), share)
    rows = []
    for name, shares in (
        ("every fifth request fails", (0.2, 0.2, 0.2)),
        ("all requests fail for a while", (0.0, 1.0, 0.0)),
        ("all requests fail until after close()", (0.0, 1.0, 1.0)),
    ):
        found = []
        for i in range(times):
            with broken_s3() as share:
                found.append(_train(f"s3://runs/{i}", pictures, bare, shares, share))
        rows.append(_row(name, found, sound, shares[-1] == 1))
    return rows


def _train(url: str, pictures: Pictures, bare: Training, shares: tuple[float, ...], share: Any) -> dict[str, Any]:
    with count_warnings() as told:
        training = Training(pictures, {"out": url}, batch=BATCH)
        sink = training.monitor.recorder.sink.opened
        sink.part_bytes, sink.rest_s, sink.flush_s = 400_000, 5.0, CLOSE_S  # a part every 32 steps
        for value in shares:
            share.value = value
            training.steps(STEPS // len(shares))
        begun = time.perf_counter()
        run: Run = training.monitor.close()
        close_s = time.perf_counter() - begun
        share.value = 0.0
    files = RunFiles(url)
    visits = files.table("visits", ["id", "step"]).to_pydict()
    pairs = np.unique(np.stack([visits["step"], visits["id"]], 1), axis=0)
    return {
        "same": same_weights(training.model, bare.model),
        "twice": len(visits["id"]) - len(pairs),
        "missing": STEPS * BATCH - len(pairs),
        "dropped": int(run.info["dropped_rows"]),
        "summed": int(np.sum(run.table["n_visits"])),
        "faults": sum(run.info["writing_faults"].values()),
        "counted_on_disk": int(files.info["dropped_rows"]),
        "state": files.info["state"],
        "waited_s": sink.waited_s,
        "longest_step_s": max(training.step_s[1:]),
        "bare_longest_step_s": max(bare.step_s[1:]),
        "close_s": close_s,
        "told": len(told),
    }


def _row(name: str, found: list[dict[str, Any]], sound: dict[str, Any], is_down: bool) -> Row:
    total, longest = STEPS * BATCH, max(item["longest_step_s"] for item in found)
    met = all(item["same"] and not item["twice"] and item["missing"] <= item["dropped"] for item in found)
    met &= all(item["summed"] == total and item["told"] <= 1 and item["waited_s"] == 0 for item in found)
    met &= all(
        is_down or (item["state"] == "finished" and item["counted_on_disk"] == item["dropped"]) for item in found
    )
    met &= all(item["close_s"] < CLOSE_S + 30 for item in found)
    missing = ", ".join(f"{item['missing']:,}" for item in found)
    faults = ", ".join(f"{item['faults']}" for item in found)
    outcome = (
        f"of {total:,} visits {missing} dropped, all counted, none twice; {faults} faults counted; longest step "
        f"{longest:.1f} s ({sound['longest_step_s']:.1f} on a sound store, {sound['bare_longest_step_s']:.1f} bare), "
        f"no step waited; close() took {max(item['close_s'] for item in found):.0f} s ({sound['close_s']:.0f}); "
        "weights those of the bare training"
    )
    return Row.of(f"object store: {name}", found, met, outcome, sound=sound, visits=total)
