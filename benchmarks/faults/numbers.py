"""Numbers that are none, pictures that are none, classes that are missing, clocks that jump."""

from __future__ import annotations

import io
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import Dataset

import sgoif
from benchmarks.faults.training import PLAN, Pictures, Row, Training, load_pictures, same_weights
from benchmarks.timing import run_in_process
from sgoif.scoring.score import score

STEPS, BATCH = 96, 64
_FROM, _LATE = 40, 72  # where faults begin, and where nothing of them may be left
_SAME = "; weights those of the bare training"


def spoil_numbers(folder: Path, times: int = 3, seed: int = 0) -> Iterator[Row]:
    """Every fault at so many random steps or examples, each in a training of its own."""
    pictures = load_pictures()
    bare = Training(pictures, None, batch=BATCH)
    bare.steps(STEPS)
    trials = Trials(folder, pictures, bare, times, np.random.default_rng(seed))
    yield trials.spoil_step("NaN loss at one step", _nan_loss)
    yield trials.spoil_step("infinite gradient at one step", _inf_gradient)
    yield trials.break_picture()
    yield trials.put_nan()
    yield trials.leave_class_out()
    yield trials.break_record()
    yield trials.move_clock()


@dataclass(frozen=True)
class Trials:
    """What all faults are tried on."""

    folder: Path
    pictures: Pictures
    bare: Training
    times: int
    rng: np.random.Generator

    def watch(self, place: str, **more: Any) -> tuple[Training, sgoif.Run]:
        spoil = more.pop("spoil", None)
        training = Training(self.pictures, {"out": str(self.folder / place), **more}, batch=BATCH, spoil=spoil)
        training.steps(STEPS)
        return training, training.monitor.close()

    def watch_with(self, place: str, **more: Any) -> tuple[sgoif.Run, dict[str, Any]]:
        """A run of other settings, whether its weights are those of the bare training, and whether it is sound."""
        training, run = self.watch(place, **more)
        return run, {"same": same_weights(training.model, self.bare.model), "sound": _is_sound(run)}

    def spoil_step(self, fault: str, spoil: Callable[..., Tensor]) -> Row:
        """At plain steps, steps that observe curvature and steps that refresh, in turn."""
        found = []
        for i in range(self.times):
            at = _FROM + 8 * int(self.rng.integers(0, 3)) + (1, PLAN.observe_every, 0)[i % 3]
            mine = partial(spoil, at)
            bare = Training(self.pictures, None, batch=BATCH, spoil=mine)
            bare.steps(STEPS)
            training, run = self.watch(f"{spoil.__name__}-{i}", spoil=mine)
            same = same_weights(training.model, bare.model) and training.num_skipped == bare.num_skipped == 1
            not_finite, faults = run.info["counters"]["visits_not_finite"], sum(run.info["faults"].values())
            counts = {"not_finite": not_finite, "faults": faults}
            found.append({"step": at, "same": same, **counts, "sound": _is_sound(run)})
        met = all(item["same"] and item["sound"] and item["not_finite"] > 0 and not item["faults"] for item in found)
        counted = " or ".join(map(str, sorted({item["not_finite"] for item in found})))
        outcome = f"{counted} of {BATCH} visits flagged NOT_FINITE and counted; no later score harmed{_SAME}"
        return Row.of(fault, found, met, outcome)

    def break_picture(self) -> Row:
        found = []
        for i in range(self.times):
            held = _Broken(self.pictures.held, int(self.rng.integers(2, len(self.pictures.held[1]))))
            run, seen = self.watch_with(f"held-{i}", anchors=held)
            found.append({**seen, "faults": sum(run.info["faults"].values())})
        met = all(item["same"] and item["sound"] and item["faults"] == 1 for item in found)
        outcome = f"one refresh lost, counted as a fault; then left out{_SAME}"
        return Row.of("a broken picture in the hold-out", found, met, outcome)

    def put_nan(self) -> Row:
        found = []
        for i in range(self.times):
            pixels = self.pictures.held[0].clone()
            pixels[int(self.rng.integers(2, len(pixels)))] = float("nan")
            run, seen = self.watch_with(f"nan-held-{i}", anchors=(pixels, self.pictures.held[1]))
            found.append({**seen, "counted": run.info["counters"]["holdout_not_finite"]})
        met = all(item["same"] and item["sound"] and item["counted"] > 0 for item in found)
        counted = f"{max(item['counted'] for item in found)} of {STEPS // PLAN.refresh_every} refreshes"
        outcome = f"left out of each refresh that drew it, counted ({counted}){_SAME}"
        return Row.of("a held-out picture of NaN", found, met, outcome)

    def leave_class_out(self) -> Row:
        found = []
        for i, missing in enumerate(self.rng.permutation(10)[: self.times].tolist()):
            is_there = self.pictures.held[1] != missing
            held = (self.pictures.held[0][is_there], self.pictures.held[1][is_there])
            run, seen = self.watch_with(f"class-{i}", anchors=held, num_classes=10)
            suggested = int((run.table["suggested_label"] == missing).sum())
            found.append({**seen, "told": run.info["held_out_per_class"][missing] == 0, "suggested": suggested})
        met = all(item["same"] and item["sound"] and item["told"] and not item["suggested"] for item in found)
        outcome = f"the others are judged, the class is never suggested; 0 in held_out_per_class{_SAME}"
        return Row.of("a class without held-out examples", found, met, outcome)

    def break_record(self, count: int = 200) -> Row:
        training = Training(self.pictures, None, batch=BATCH)
        training.steps(STEPS)
        snapshot, model = str(self.folder / "snapshot.safetensors"), _Grey(training.model)
        sets = (self.pictures.pixels, self.pictures.labels), self.pictures.held
        three = [(pixels.expand(-1, 3, -1, -1), labels) for pixels, labels in sets]
        sgoif.audit(model, three[0], anchors=three[1], trusted=True, snapshot=snapshot)
        encoded, found = [_encode(pixels) for pixels in self.pictures.pixels[:count]], []
        for i, broken in enumerate(self.rng.choice(count, self.times, replace=False).tolist()):
            records = [data[:40] if j == broken else data for j, data in enumerate(encoded)]
            table = {"id": list(range(count)), "image": records, "label": self.pictures.labels[:count].tolist()}
            source, out = self.folder / f"data-{i}.parquet", self.folder / f"scored-{i}"
            pq.write_table(pa.table(table), source)
            run = score(snapshot, model, str(source), str(out))
            aside = len(pq.read_table(out / "quarantine").to_pylist())
            found.append({"scored": len(run.table["id"]), "counted": run.info["num_quarantined"], "aside": aside})
        met = all((item["scored"], item["counted"], item["aside"]) == (count - 1, 1, 1) for item in found)
        outcome = f"{count - 1} of {count} scored, the record in quarantine/ with its id and reason, num_quarantined 1"
        return Row.of("a broken record in data that is scored", found, met, outcome)

    def move_clock(self) -> Row:
        fault = "the system clock jumps by days, forth and back"
        libraries = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
        if shutil.which("faketime") is None or not libraries:
            return Row(fault, 0, "not tried: needs faketime", True, {})
        found = []
        for i in range(self.times):
            place = self.folder / f"clock-{i}"
            place.mkdir(parents=True)
            clock, jumps = place / "clock", self.rng.uniform(-4e5, 4e5, 6).tolist()
            clock.write_text("+0s\n")
            fake = {"LD_PRELOAD": str(libraries[0]), "FAKETIME_TIMESTAMP_FILE": str(clock), "FAKETIME_NO_CACHE": "1"}
            with patch.dict(os.environ, {**fake, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}):
                told = run_in_process(train_by_clock, place, clock, jumps)
            same = same_weights(self.bare.model, torch.load(place / "weights.pt"))
            jumped = min(told["seen"]) < told["seen"][0] - 3600 or max(told["seen"]) > told["seen"][0] + 3600
            found.append({**told, "same": same, "jumped": jumped})
        met = all(item["same"] and item["sound"] and item["jumped"] and not item["faults"] for item in found)
        outcome = f"nothing but the times in run.json moves: durations use monotonic clocks{_SAME}"
        return Row.of(fault, found, met, outcome)


def _nan_loss(at: int, step: int, outputs: Tensor, loss: Tensor) -> Tensor:
    return loss * float("nan") if step == at else loss


def _inf_gradient(at: int, step: int, outputs: Tensor, loss: Tensor) -> Tensor:
    zero = outputs[0, 0] - outputs[0, 0].detach()  # whose root has an infinite slope: the loss itself is finite
    return loss + zero.sqrt() if step == at else loss


def _is_sound(run: sgoif.Run, after: int = _LATE) -> bool:
    """Whether every visit is there once, and the late ones are judged with finite scores."""
    late = run.visits["step"] >= after
    finite = all(bool(np.isfinite(run.visits[name][late]).all()) for name in ("harm", "worst", "harm_std", "loss"))
    judged = bool((run.visits["confidence"][late] > 0).any())
    return len(run.visits["id"]) == STEPS * BATCH == int(run.table["n_visits"].sum()) and finite and judged


class _Broken(Dataset[tuple[Tensor, int]]):
    """A hold-out of which one picture cannot be decoded."""

    def __init__(self, held: tuple[Tensor, Tensor], broken: int) -> None:
        self.pixels, self.targets, self.broken = *held, broken

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if index == self.broken:
            raise OSError("cannot identify image file")
        return self.pixels[index], int(self.targets[index])


class _Grey(nn.Module):
    """The subject for RGB pictures in [0, 1], as ``sgoif score`` decodes them."""

    input_size = 28

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.inner(images.mean(1, keepdim=True))
        return out


def _encode(pixels: Tensor) -> bytes:
    out = io.BytesIO()
    Image.fromarray((pixels[0].clamp(0, 1) * 255).byte().numpy()).save(out, "PNG")
    return out.getvalue()


def train_by_clock(folder: Path, clock: Path, jumps: list[float]) -> dict[str, Any]:
    """Train while the system clock jumps: libfaketime reads its offset from a file."""
    training = Training(load_pictures(), {"out": str(folder / "run")}, batch=BATCH)
    seen = []
    for jump in jumps:
        clock.write_text(f"{jump:+.0f}s\n")
        training.steps(STEPS // len(jumps))
        seen.append(time.time())
        training.monitor.state_dict()
    run = training.monitor.close()
    sound = _is_sound(run) and run.info["state"] == "finished" and not run.info["writing_faults"]
    torch.save(training.model.state_dict(), folder / "weights.pt")
    faults = sum(run.info["faults"].values())
    return {"sound": sound, "faults": faults, "overhead": run.info["overhead"], "seen": seen}
