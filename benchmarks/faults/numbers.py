"""Numbers that are none, pictures that are none, classes that are missing, clocks that jump."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import sgoif
from benchmarks.faults.subject import PLAN, Pictures, Row, Training, load_pictures, same_weights
from sgoif.scoring.score import score

__all__ = ["clock_child", "spoil_numbers"]

STEPS, BATCH = 96, 64
_FROM, _LATE = 40, 72  # where faults begin, and where nothing of them may be left


def spoil_numbers(folder: Path, times: int = 3, seed: int = 0) -> Iterator[Row]:
    """Every fault at so many random steps or examples, each in a training of its own."""
    rng, pictures = np.random.default_rng(seed), load_pictures()
    bare = Training(pictures, None, batch=BATCH)
    bare.steps(STEPS)
    yield _spoilt_step(folder / "nan", "NaN loss at one step", _nan_loss, pictures, times, rng)
    yield _spoilt_step(folder / "inf", "infinite gradient at one step", _inf_gradient, pictures, times, rng)
    yield _broken_picture(folder / "held", pictures, bare, times, rng)
    yield _nan_picture(folder / "nan-held", pictures, bare, times, rng)
    yield _missing_class(folder / "class", pictures, bare, times, rng)
    yield _broken_record(folder / "record", pictures, times, rng)
    yield _clock(folder / "clock", bare, times, rng)


def _nan_loss(at: int, step: int, outputs: Tensor, loss: Tensor) -> Tensor:
    return loss * float("nan") if step == at else loss


def _inf_gradient(at: int, step: int, outputs: Tensor, loss: Tensor) -> Tensor:
    zero = outputs[0, 0] - outputs[0, 0].detach()  # whose root has an infinite slope: the loss itself is finite
    return loss + zero.sqrt() if step == at else loss


def _watched(folder: Path, pictures: Pictures, **more: Any) -> tuple[Training, sgoif.Run]:
    spoil = more.pop("spoil", None)
    training = Training(pictures, {"out": str(folder), **more}, batch=BATCH, spoil=spoil)
    training.steps(STEPS)
    return training, training.monitor.close()


def _is_sound(run: sgoif.Run, after: int = _LATE) -> bool:
    """Whether every visit is there once, and the late ones are judged with finite scores."""
    late = run.visits["step"] >= after
    finite = all(bool(np.isfinite(run.visits[name][late]).all()) for name in ("harm", "worst", "harm_std", "loss"))
    judged = bool((run.visits["confidence"][late] > 0).any())
    return len(run.visits["id"]) == STEPS * BATCH == int(run.table["n_visits"].sum()) and finite and judged


def _spoilt_step(
    folder: Path, fault: str, spoil: Callable[..., Tensor], pictures: Pictures, times: int, rng: np.random.Generator
) -> Row:
    """At plain steps, steps that observe curvature and steps that refresh, in turn."""
    found = []
    for i in range(times):
        at = _FROM + 8 * int(rng.integers(0, 3)) + (1, PLAN.observe_every, 0)[i % 3]
        mine = partial(spoil, at)
        bare = Training(pictures, None, batch=BATCH, spoil=mine)
        bare.steps(STEPS)
        training, run = _watched(folder / str(i), pictures, spoil=mine)
        found.append(
            {
                "step": at,
                "same": same_weights(training.model, bare.model) and training.num_skipped == bare.num_skipped == 1,
                "not_finite": run.info["counters"]["visits_not_finite"],
                "faults": sum(run.info["faults"].values()),
                "sound": _is_sound(run),
            }
        )
    met = all(item["same"] and item["sound"] and item["not_finite"] > 0 and not item["faults"] for item in found)
    counted = sorted({item["not_finite"] for item in found})
    outcome = (
        f"{' or '.join(map(str, counted))} of {BATCH} visits flagged NOT_FINITE and counted; no later score harmed"
    )
    return _row(fault, found, met, outcome)


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


def _broken_picture(folder: Path, pictures: Pictures, bare: Training, times: int, rng: np.random.Generator) -> Row:
    found = []
    for i in range(times):
        held = _Broken(pictures.held, int(rng.integers(2, len(pictures.held[1]))))
        training, run = _watched(folder / str(i), pictures, anchors=held)
        faults = sum(run.info["faults"].values())
        found.append({"same": same_weights(training.model, bare.model), "faults": faults, "sound": _is_sound(run)})
    met = all(item["same"] and item["sound"] and item["faults"] == 1 for item in found)
    return _row("a broken picture in the hold-out", found, met, "one refresh lost, counted as a fault; then left out")


def _nan_picture(folder: Path, pictures: Pictures, bare: Training, times: int, rng: np.random.Generator) -> Row:
    found = []
    for i in range(times):
        pixels = pictures.held[0].clone()
        pixels[int(rng.integers(2, len(pixels)))] = float("nan")
        training, run = _watched(folder / str(i), pictures, anchors=(pixels, pictures.held[1]))
        counted = run.info["counters"]["holdout_not_finite"]
        found.append({"same": same_weights(training.model, bare.model), "counted": counted, "sound": _is_sound(run)})
    met = all(item["same"] and item["sound"] and item["counted"] > 0 for item in found)
    counted = max(item["counted"] for item in found)
    outcome = f"left out of each refresh that drew it, counted ({counted} of {STEPS // PLAN.refresh_every} refreshes)"
    return _row("a held-out picture of NaN", found, met, outcome)


def _missing_class(folder: Path, pictures: Pictures, bare: Training, times: int, rng: np.random.Generator) -> Row:
    found = []
    for i, missing in enumerate(rng.permutation(10)[:times].tolist()):
        is_there = pictures.held[1] != missing
        held = (pictures.held[0][is_there], pictures.held[1][is_there])
        training, run = _watched(folder / str(i), pictures, anchors=held, num_classes=10)
        suggested = int((run.table["suggested_label"] == missing).sum())
        told = run.info["held_out_per_class"][missing] == 0
        same = same_weights(training.model, bare.model)
        found.append({"same": same, "told": told, "sound": _is_sound(run), "suggested": suggested})
    met = all(item["same"] and item["sound"] and item["told"] and not item["suggested"] for item in found)
    outcome = "the others are judged, the class is never suggested; 0 in held_out_per_class"
    return _row("a class without held-out examples", found, met, outcome)


class _Grey(nn.Module):
    """The subject for RGB pictures in [0, 1], as ``sgoif score`` decodes them."""

    input_size = 28

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.inner(images.mean(1, keepdim=True))
        return out


def _broken_record(folder: Path, pictures: Pictures, times: int, rng: np.random.Generator) -> Row:
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    folder.mkdir(parents=True)
    training = Training(pictures, None, batch=BATCH)
    training.steps(STEPS)
    snapshot, model = str(folder / "snapshot.safetensors"), _Grey(training.model)
    three = [(x.expand(-1, 3, -1, -1), y) for x, y in ((pictures.pixels, pictures.labels), pictures.held)]
    sgoif.audit(model, three[0], anchors=three[1], trusted=True, snapshot=snapshot)
    encoded, count, found = [], 200, []
    for pixels in pictures.pixels[:count]:
        out = io.BytesIO()
        Image.fromarray((pixels[0].clamp(0, 1) * 255).byte().numpy()).save(out, "PNG")
        encoded.append(out.getvalue())
    for i, broken in enumerate(rng.choice(count, times, replace=False).tolist()):
        records = [data[:40] if j == broken else data for j, data in enumerate(encoded)]
        table = {"id": list(range(count)), "image": records, "label": pictures.labels[:count].tolist()}
        pq.write_table(pa.table(table), folder / f"data-{i}.parquet")
        run = score(snapshot, model, str(folder / f"data-{i}.parquet"), str(folder / f"scored-{i}"))
        aside = pq.read_table(folder / f"scored-{i}" / "quarantine").to_pylist()
        found.append({"scored": len(run.table["id"]), "counted": run.info["num_quarantined"], "aside": len(aside)})
    met = all((item["scored"], item["counted"], item["aside"]) == (count - 1, 1, 1) for item in found)
    outcome = f"{count - 1} of {count} scored, the record in quarantine/ with its id and reason, num_quarantined 1"
    return _row("a broken record in data that is scored", found, met, outcome)


def clock_child(folder: Path, clock: Path, jumps: list[float]) -> None:
    """Train while the system clock jumps: libfaketime reads its offset from a file."""
    import time

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
    told = {"sound": sound, "faults": sum(run.info["faults"].values()), "overhead": run.info["overhead"], "seen": seen}
    print(json.dumps(told))


def _clock(folder: Path, bare: Training, times: int, rng: np.random.Generator) -> Row:
    fault = "the system clock jumps by days, forth and back"
    libraries = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    if shutil.which("faketime") is None or not libraries:
        return Row(fault, 0, "not tried: needs faketime", True, {})
    found = []
    for i in range(times):
        place = folder / str(i)
        place.mkdir(parents=True)
        clock, jumps = place / "clock", rng.uniform(-4e5, 4e5, 6).tolist()
        clock.write_text("+0s\n")
        preload = {"LD_PRELOAD": str(libraries[0]), "FAKETIME_TIMESTAMP_FILE": str(clock), "FAKETIME_NO_CACHE": "1"}
        child = [sys.executable, "-m", "benchmarks.faults", "--child", json.dumps([str(place), str(clock), jumps])]
        environment = {**os.environ, **preload, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        done = subprocess.run(child, env=environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr[-2000:]
        told = json.loads(done.stdout.splitlines()[-1])
        weights = torch.load(place / "weights.pt")
        same = all(torch.equal(value, weights[name]) for name, value in bare.model.state_dict().items())
        jumped = min(told["seen"]) < told["seen"][0] - 3600 or max(told["seen"]) > told["seen"][0] + 3600
        found.append({**told, "same": same, "jumped": jumped})
    met = all(item["same"] and item["sound"] and item["jumped"] and not item["faults"] for item in found)
    return _row(fault, found, met, "nothing but the times in run.json moves: durations use monotonic clocks")


def _row(fault: str, found: list[dict[str, Any]], met: bool, outcome: str) -> Row:
    outcome = f"{outcome}; weights those of the bare training" if all("same" in item for item in found) else outcome
    return Row(fault, len(found), outcome if met else f"**not as promised** {found[0]}", met, {"runs": found})
