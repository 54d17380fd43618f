"""Streams that change, and streams that do not: how soon our sentinel and others tell the one, how rarely the other.

Each calibration is a fresh draw of 2,000 CIFAR-10 test images; streams are made of the others. Constants were chosen
on 2,000 train images that no network was trained on. Usual streams: passes over 8,000 images in batches of 64, each
with an empty memory at its start; and, for our sentinel alone, endless ones, with calibrations and streams drawn from
all images with replacement, whose memory is full. It needs the networks of ``ood``.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import data
from benchmarks.experiment import Experiment, option
from benchmarks.shift.detectors import DETECTORS, OURS, Listeners
from benchmarks.shift.streams import (
    CHANGES,
    CLEAN,
    LABEL_SHIFTS,
    NUM_CORRUPTED,
    OTHER,
    SHARES,
    Pools,
    Positions,
    draw_passes,
    draw_streams,
    sum_batches,
    switch,
)
from benchmarks.tables.rows import Run, describe_seeds, latest, means, table
from sgoif.features.extraction import HeadFeatures
from sgoif.shift.sequential import longest_window

Floats = NDArray[np.float64]
Change = tuple[str, tuple[HeadFeatures | None, Positions], Floats]

RATE = 1 / 10_000
HORIZON, GRADUAL = 1_000, 200  # batches: how long we wait, and how long a gradual change takes
AT_ONCE = 20  # passes


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One network."""

    calibration: int = 2_000
    batch: int = 64
    draws: int = option(35, help="calibrations of usual streams")
    passes: int = option(160, help="over the fresh images, for each calibration")
    listened: int = option(5, help="calibrations of changed streams")
    streams: int = option(8, help="of each change, for each of those calibrations")
    seed: int = 1


class Measurement:
    """One network's streams."""

    def __init__(self, pools: Pools, settings: Settings) -> None:
        self.calibrated, self.batch = settings.calibration, settings.batch
        self.clean = pools.read(CLEAN)
        self.pools = pools
        self.labels = data.cifar10("test").labels
        self.memory = longest_window(self.calibrated, self.batch)

    def usual(self, draw: int, num_passes: int) -> tuple[dict[str, Floats], dict[str, Floats]]:
        """The highest reading of each pass by detector, and ours by part."""
        listeners, fresh, rng = self._calibrate(draw)
        rows = listeners.rows(self.clean)
        peaks: dict[str, list[Floats]] = {name: [] for name in (*DETECTORS, *listeners.parts.sizes)}
        for _ in range(0, num_passes, AT_ONCE):
            sums = sum_batches(rows, draw_passes(fresh, AT_ONCE, self.batch, rng))
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
        chosen = rng.integers(everything, size=self.calibrated)
        listeners = Listeners.fit(self.clean.take(torch.from_numpy(chosen)), self.batch, draw)
        rows = listeners.parts.of(self.clean).float()
        sums = sum_batches(rows, rng.integers(everything, size=(num_streams, self.memory + length, self.batch)))
        return np.asarray(listeners.rarity(sums)[:, self.memory :].max((1, 2)))

    def delays(self, draw: int, num_streams: int, levels: dict[str, float]) -> Iterator[tuple[str, dict[str, Any]]]:
        """By change: batches to each detector's alarm, None beyond the horizon; which part moved, and since when."""
        listeners, fresh, rng = self._calibrate(draw)
        rows = listeners.rows(self.clean)
        length = self.memory + HORIZON
        usual = draw_streams(fresh, num_streams, length, self.batch, rng)
        for name, pool, share in self._changes(fresh, rng):
            seen, places = pool
            table = torch.cat([rows, listeners.rows(seen)]) if seen is not None else rows
            offset = 0 if seen is None else len(rows)
            after = draw_streams(places + offset, num_streams, length, self.batch, rng)
            when = np.concatenate([np.zeros(self.memory), share])
            sums = sum_batches(table, switch(usual, after, when, rng))
            yield name, self._hear(listeners, sums, levels)

    def _calibrate(self, draw: int) -> tuple[Listeners, Positions, np.random.Generator]:
        rng = np.random.default_rng([draw, 0])
        order = rng.permutation(len(self.labels))
        listeners = Listeners.fit(self.clean.take(torch.from_numpy(order[: self.calibrated])), self.batch, draw)
        return listeners, order[self.calibrated :], rng

    def _changes(self, fresh: Positions, rng: np.random.Generator) -> Iterator[Change]:
        """Names; what is seen of the images that come in (None: the usual images) and which; their share by batch."""
        at_once = np.ones(HORIZON)
        yield "nothing", (None, fresh), at_once
        for name in CHANGES:
            yield name, (self.pools.read(name), fresh[fresh < NUM_CORRUPTED]), at_once
        for name, weigh in LABEL_SHIFTS.items():
            weights = weigh(rng)[self.labels[fresh]]
            # each image once per pass at most, so that a doubled class is not the same images twice
            kept = fresh[rng.random(len(fresh)) < weights / weights.max()]
            yield name, (None, kept), at_once
        others = np.arange(len(self.pools.read(OTHER).logits))
        for part in SHARES:
            yield f"{part:.0%} of CIFAR-100", (self.pools.read(OTHER), others), part * at_once
        rising = np.minimum(1.0, np.arange(1, HORIZON + 1) / GRADUAL)
        yield f"to CIFAR-100 over {GRADUAL} batches", (self.pools.read(OTHER), others), rising

    def _hear(self, listeners: Listeners, sums: Floats, levels: dict[str, float]) -> dict[str, Any]:
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


def measure(settings: Settings) -> dict[str, Any]:
    """Everything about one network."""
    seed, draws = settings.seed, settings.draws
    pools, started = Pools(seed), time.process_time()
    measurement = Measurement(pools, settings)
    peaks, by_part = zip(*(measurement.usual(draw, settings.passes) for draw in range(draws)), strict=True)
    per_pass = (len(measurement.labels) - settings.calibration) // settings.batch
    pooled = {name: np.concatenate([found[name] for found in peaks]) for name in DETECTORS}
    own = float(-np.log(RATE))
    # others by the level that gives the rate here: passes with an alarm are so rare that few have two
    levels = {name: float(np.quantile(values, 1 - RATE * per_pass)) for name, values in pooled.items()} | {OURS: own}
    print(f"seed {seed}: usual streams, {time.process_time() - started:.0f} s", flush=True)
    length = 2 * measurement.memory
    endless = [measurement.endless(draw, 100, length) for draw in range(draws)]
    print(f"seed {seed}: endless streams, {time.process_time() - started:.0f} s", flush=True)
    changes: dict[str, Any] = {}
    for draw in range(draws, draws + settings.listened):
        for name, found in measurement.delays(draw, settings.streams, levels):
            kept = changes.setdefault(name, {"delays": {detector: [] for detector in DETECTORS}, "part": []})
            kept["part"] += found["part"]
            for detector, delays in found["delays"].items():
                kept["delays"][detector] += delays
    print(f"seed {seed}: changes, {time.process_time() - started:.0f} s", flush=True)
    report = {
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
        "accuracies": {name: _accuracy(pools.read(name), measurement.labels) for name in CHANGES},
        "changes": changes,
        "cpu_s": time.process_time() - started,
    }
    return {"report": report}


def _accuracy(seen: HeadFeatures, labels: NDArray[np.int64]) -> float:
    return float((seen.logits.argmax(1).numpy() == labels[:NUM_CORRUPTED]).mean())


def describe(row: Run) -> str:
    alarms = {kind: (sum(row["report"][kind]["alarms"]), row["report"][kind]["num_batches"]) for kind in _KINDS}
    return ", ".join(f"{kind}: {count} alarms in {batches:,} batches" for kind, (count, batches) in alarms.items())


_KINDS = {"usual": "passes over fresh images", "endless": "endless, memory full"}


def alarms() -> str:
    """Alarms of our sentinel where nothing changed, with a 95% interval over calibrations."""
    runs = sorted(latest("shift.jsonl"), key=lambda run: int(run["seed"]))
    rows = [[f"network {run['seed']}, {said}", *_rate([run], kind)] for run in runs for kind, said in _KINDS.items()]
    rows += [[f"**all, {said}**", *_rate(runs, kind)] for kind, said in _KINDS.items() if runs]
    header = (
        "usual streams",
        "calibrations",
        "batches",
        "alarms",
        "in 10,000",
        "calibrations without any",
        "most of one",
    )
    return table(header, rows)


def delays() -> str:
    """Batches from the change to the alarm: median, 90th percentile, and how many streams were never heard."""
    runs = latest("shift.jsonl")
    if not runs:
        return "Not measured yet."
    rows = []
    for change in _order(runs[0]["report"]["changes"]):
        right = [run["report"]["accuracies"].get(change) for run in runs]
        accuracy = "" if None in right else means(100 * share for share in right)
        found = [run["report"]["changes"][change] for run in runs]
        cells = [_delay([delay for each in found for delay in each["delays"][name]]) for name in DETECTORS]
        rows.append([change, accuracy, *cells, _parts([part for each in found for part in each["part"]])])
    num_streams = sum(len(run["report"]["changes"]["nothing"]["delays"][OURS]) for run in runs)
    first = f"change ({describe_seeds(runs)}, {num_streams} streams)"
    shown = [f"**{name}**" if name == OURS else name for name in DETECTORS]
    return table((first, "right %", *shown, "what moved"), rows)


def _order(changes: Iterable[str]) -> list[str]:
    """Corruptions from weak to strong, then classes, then other images by their share."""
    first = ["nothing", *CHANGES, *LABEL_SHIFTS]
    others = [change for change in changes if change not in first]
    return first + sorted(others, key=lambda name: float(name.partition("%")[0]) if "%" in name else np.inf)


def _rate(runs: Sequence[Run], kind: str) -> list[str]:
    found = [run["report"][kind] for run in runs]
    counts = np.array([count for each in found for count in each["alarms"]])
    per_calibration = sum(each["num_batches"] for each in found) / len(counts)
    rates = 1e4 * counts / per_calibration
    half = 1.96 * rates.std(ddof=1) / len(rates) ** 0.5
    batches = f"{round(per_calibration * len(counts)):,}"
    cells = [str(len(counts)), batches, str(counts.sum()), f"{rates.mean():.2f} ± {half:.2f}"]
    return [*cells, str(int((counts == 0).sum())), str(counts.max())]


def _delay(found: Sequence[int | None]) -> str:
    values = np.array([np.inf if delay is None else delay for delay in found])
    missed = float(np.isinf(values).mean())
    # the smallest delay by which half and nine tenths of the streams were heard
    median, most = (np.sort(values)[int(np.ceil(share * len(values))) - 1] for share in (0.5, 0.9))
    if np.isinf(median):
        return f"{100 * (1 - missed):.0f}% within {HORIZON:,}"
    if np.isinf(most):
        return f"{median:,.0f}, {100 * missed:.0f}% never"
    return f"{median:,.0f} ({most:,.0f})"


def _parts(found: Sequence[str]) -> str:
    if not found:
        return ""
    name, count = Counter(found).most_common(1)[0]
    return f"{name} {100 * count / len(found):.0f}%"


SHIFT = Experiment(
    name="shift",
    settings=Settings,
    run=measure,
    describe=describe,
    tables={"shift_alarms": alarms, "shift_delays": delays},
    unrecorded=("seed", "listened", "streams"),
    full={"seed": [1, 2, 3]},
)
