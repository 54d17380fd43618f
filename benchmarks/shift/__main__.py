"""How rarely usual streams raise an alarm, and how soon changed ones do.

``python -m benchmarks.shift --save shift.jsonl``: one line per network. Each calibration is a fresh draw of 2,000
CIFAR-10 test images; streams are made of the others. Usual streams: passes over 8,000 images in batches of 64, each
with an empty memory at its start; and, for our sentinel alone, endless ones, with calibrations and streams drawn from
all images with replacement, whose memory is full.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import data
from benchmarks.records import append_result, is_recorded
from benchmarks.shift.corruptions import CORRUPTIONS
from benchmarks.shift.detectors import DETECTORS, OURS, Listeners
from benchmarks.shift.pools import CLEAN, NUM_CORRUPTED, OTHER, Pools
from benchmarks.shift.streams import LABEL_SHIFTS, SHARES, Positions, drawn, passes, sums_of, switched
from sgoif.features.extraction import HeadFeatures
from sgoif.shift.sequential import longest_window

Floats = NDArray[np.float64]
Change = tuple[str, tuple[HeadFeatures | None, Positions], Floats]

CALIBRATED, BATCH = 2_000, 64
RATE = 1 / 10_000
HORIZON, GRADUAL = 1_000, 200  # batches: how long we wait, and how long a gradual change takes
AT_ONCE = 20  # passes


class Measurement:
    """One network's streams."""

    def __init__(self, pools: Pools) -> None:
        self.clean = pools.seen(CLEAN)
        self.pools = pools
        self.labels = data.cifar10("test").labels
        self.memory = longest_window(CALIBRATED, BATCH)

    def usual(self, draw: int, num_passes: int) -> tuple[dict[str, Floats], dict[str, Floats]]:
        """The highest reading of each pass by detector, and ours by part."""
        listeners, fresh, rng = self._calibrated(draw)
        rows = listeners.rows(self.clean)
        peaks: dict[str, list[Floats]] = {name: [] for name in (*DETECTORS, *listeners.parts.sizes)}
        for _ in range(0, num_passes, AT_ONCE):
            sums = sums_of(rows, passes(fresh, AT_ONCE, BATCH, rng))
            for name, readings in listeners.readings(sums).items():
                peaks[name].append(readings.max(1))
            by_part = listeners.rarity(sums[:, :, : sum(listeners.parts.sizes.values())]).max(1)
            for i, name in enumerate(listeners.parts.sizes):
                peaks[name].append(by_part[:, i])
        joined = {name: np.concatenate(found) for name, found in peaks.items()}
        return {name: joined[name] for name in DETECTORS}, {name: joined[name] for name in listeners.parts.sizes}

    def endless(self, draw: int, num_streams: int, length: int) -> Floats:
        """The highest of our readings of each endless stream, after its memory is full."""
        rng = np.random.default_rng([draw, 1])
        everything = len(self.labels)
        chosen = rng.integers(everything, size=CALIBRATED)
        listeners = Listeners.fit(self.clean.take(torch.from_numpy(chosen)), BATCH, draw)
        rows = listeners.parts.of(self.clean).float()
        sums = sums_of(rows, rng.integers(everything, size=(num_streams, self.memory + length, BATCH)))
        return np.asarray(listeners.rarity(sums)[:, self.memory :].max((1, 2)))

    def delays(self, draw: int, num_streams: int, levels: dict[str, float]) -> Iterator[tuple[str, dict[str, Any]]]:
        """By change: batches to each detector's alarm, None beyond the horizon; which part moved, and since when."""
        listeners, fresh, rng = self._calibrated(draw)
        rows = listeners.rows(self.clean)
        length = self.memory + HORIZON
        usual = drawn(fresh, num_streams, length, BATCH, rng)
        for name, pool, share in self._changes(fresh, rng):
            seen, places = pool
            table = torch.cat([rows, listeners.rows(seen)]) if seen is not None else rows
            offset = 0 if seen is None else len(rows)
            after = drawn(places + offset, num_streams, length, BATCH, rng)
            when = np.concatenate([np.zeros(self.memory), share])
            sums = sums_of(table, switched(usual, after, when, rng))
            yield name, self._heard(listeners, sums, levels)

    def _calibrated(self, draw: int) -> tuple[Listeners, Positions, np.random.Generator]:
        rng = np.random.default_rng([draw, 0])
        order = rng.permutation(len(self.labels))
        listeners = Listeners.fit(self.clean.take(torch.from_numpy(order[:CALIBRATED])), BATCH, draw)
        return listeners, order[CALIBRATED:], rng

    def _changes(self, fresh: Positions, rng: np.random.Generator) -> Iterator[Change]:
        """Names; what is seen of the images that come in (None: the usual images) and which; their share by batch."""
        at_once = np.ones(HORIZON)
        yield "nothing", (None, fresh), at_once
        for kind, strengths in CORRUPTIONS.items():
            for strength in strengths:
                name = f"{kind} {strength:g}"
                yield name, (self.pools.seen(name), fresh[fresh < NUM_CORRUPTED]), at_once
        for name, weigh in LABEL_SHIFTS.items():
            weights = weigh(rng)[self.labels[fresh]]
            # each image once per pass at most, so that a doubled class is not the same images twice
            kept = fresh[rng.random(len(fresh)) < weights / weights.max()]
            yield name, (None, kept), at_once
        others = np.arange(len(self.pools.seen(OTHER).logits))
        for part in SHARES:
            yield f"{part:.0%} of CIFAR-100", (self.pools.seen(OTHER), others), part * at_once
        rising = np.minimum(1.0, np.arange(1, HORIZON + 1) / GRADUAL)
        yield f"to CIFAR-100 over {GRADUAL} batches", (self.pools.seen(OTHER), others), rising

    def _heard(self, listeners: Listeners, sums: Floats, levels: dict[str, float]) -> dict[str, Any]:
        found: dict[str, Any] = {"delays": {}}
        for name, readings in listeners.readings(sums).items():
            is_alarm = readings[:, self.memory :] > levels[name]
            first = np.where(is_alarm.any(1), is_alarm.argmax(1) + 1, 0)
            found["delays"][name] = [int(delay) or None for delay in first]
        by_part = listeners.rarity(sums[:, :, : sum(listeners.parts.sizes.values())])
        ours = found["delays"][OURS]
        heard = [(i, self.memory + delay - 1) for i, delay in enumerate(ours) if delay]
        found["part"] = [list(listeners.parts.sizes)[int(by_part[i, t].argmax())] for i, t in heard]
        return found


def measure(seed: int, draws: int, num_passes: int, listened: int, streams: int) -> dict[str, Any]:
    """Everything about one network."""
    pools, started = Pools(seed), time.process_time()
    measurement = Measurement(pools)
    peaks, by_part = zip(*(measurement.usual(draw, num_passes) for draw in range(draws)), strict=True)
    per_pass = (len(measurement.labels) - CALIBRATED) // BATCH
    pooled = {name: np.concatenate([found[name] for found in peaks]) for name in DETECTORS}
    own = float(-np.log(RATE))
    # others by the level that gives the rate here: passes with an alarm are so rare that few have two
    levels = {name: float(np.quantile(values, 1 - RATE * per_pass)) for name, values in pooled.items()} | {OURS: own}
    print(f"seed {seed}: usual streams, {time.process_time() - started:.0f} s", flush=True)
    length = 2 * measurement.memory
    endless = [measurement.endless(draw, 100, length) for draw in range(draws)]
    print(f"seed {seed}: endless streams, {time.process_time() - started:.0f} s", flush=True)
    changes: dict[str, Any] = {}
    for draw in range(draws, draws + listened):
        for name, found in measurement.delays(draw, streams, levels):
            kept = changes.setdefault(name, {"delays": {detector: [] for detector in DETECTORS}, "part": []})
            kept["part"] += found["part"]
            for detector, delays in found["delays"].items():
                kept["delays"][detector] += delays
    print(f"seed {seed}: changes, {time.process_time() - started:.0f} s", flush=True)
    return {
        "accuracy": pools.subject.accuracy,
        "usual": {
            "num_batches": draws * len(peaks[0][OURS]) * per_pass,
            "alarms": [int((found[OURS] > own).sum()) for found in peaks],  # by calibration
            "parts": {name: int(sum((found[name] > own).sum() for found in by_part)) for name in by_part[0]},
            "level_at_rate": float(np.quantile(pooled[OURS], 1 - RATE * per_pass)),
        },
        "endless": {
            "num_batches": draws * 100 * length,
            "alarms": [int((found > own).sum()) for found in endless],
        },
        "accuracies": _accuracies(pools, measurement.labels),
        "changes": changes,
        "cpu_s": time.process_time() - started,
    }


def _accuracies(pools: Pools, labels: NDArray[np.int64]) -> dict[str, float]:
    found = {}
    for kind, strengths in CORRUPTIONS.items():
        for strength in strengths:
            name = f"{kind} {strength:g}"
            found[name] = float((pools.seen(name).logits.argmax(1).numpy() == labels[:NUM_CORRUPTED]).mean())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--draws", type=int, default=35, help="calibrations for usual streams")
    parser.add_argument("--passes", type=int, default=160, help="of each calibration")
    parser.add_argument("--listened", type=int, default=5, help="calibrations for streams that change")
    parser.add_argument("--streams", type=int, default=8, help="of each calibration and change")
    parser.add_argument("--save", help="file below benchmarks/results; what it holds is not measured again")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for seed in map(int, options.seeds.split(",")):
        settings = {"calibration": CALIBRATED, "batch": BATCH, "draws": options.draws, "passes": options.passes}
        if options.save and is_recorded(options.save, settings, seed):
            continue
        report = measure(seed, options.draws, options.passes, options.listened, options.streams)
        _show(seed, report)
        if options.save:
            append_result(options.save, {"settings": settings, "seed": seed, "report": report})


def _show(seed: int, report: dict[str, Any]) -> None:
    for kind in ("usual", "endless"):
        alarms, batches = sum(report[kind]["alarms"]), report[kind]["num_batches"]
        print(f"seed {seed}, {kind}: {alarms} alarms in {batches:,} batches, {1e4 * alarms / batches:.2f} in 10,000")
    for name, found in report["changes"].items():
        medians = [np.median([delay or np.inf for delay in found["delays"][key]]) for key in DETECTORS]
        print(f"  {name:30} " + " ".join(f"{median:7.0f}" for median in medians), flush=True)


if __name__ == "__main__":
    main()
