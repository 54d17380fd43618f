"""Monitored trainings on noisy images, one per setting and seed, and everything that was seen while they ran.

Several questions are asked of the same training: which signal finds the errors, which gate weighs the visits best,
whether a late audit does as well. So a training is run once and kept in the cache, under a name that holds its settings
and the source that ran it; a changed line in the library makes it run again.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

import sgoif
from benchmarks import data, loops, noise
from benchmarks.models import ResNet9
from sgoif.training.monitor import Monitor

__all__ = ["Setup", "Trained", "train"]

Fault = Literal["none", "reset", "corrupted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What is trained and watched; the defaults are tier M, pair-20, on the development set."""

    setting: str = "pair-20"
    dataset: str = "cifar10"
    split: str = "development"
    holdout: str = "trusted"
    seed: int = 0
    examples: int = 20_000
    epochs: int = 10
    cycles: int = 1  # of the learning rate
    fault: Fault = "none"  # of the tracking: forget all directions at 60%, or 5% of the draws with shuffled labels
    curvature: str = "kfac"
    solver: str = "richardson"


@dataclass(frozen=True, slots=True)
class Trained:
    """One finished training. Arrays by name; all examples in the order of ``given``."""

    given: NDArray[np.int64]  # [N]
    clean: NDArray[np.int64]  # [N]
    visits: dict[str, NDArray[Any]]  # one row per visit, ids are positions 0..N-1; `el2n` beside our signals
    table: dict[str, NDArray[Any]]  # one row per example
    audit: dict[str, NDArray[Any]]  # the same from one pass over the finished model
    residual: NDArray[np.float64]  # what each step's scores were judged by, [steps, K]; NaN before the first
    info: dict[str, Any]

    @property
    def wrong(self) -> NDArray[np.bool_]:
        return self.given != self.clean


def train(setup: Setup, *, cached: bool = True) -> Trained:
    """Run the training, or read it from the cache."""
    if not cached:
        return _train(setup)
    key = json.dumps(asdict(setup), sort_keys=True) + _source_hash()
    folder = Path(os.environ.get("SGOIF_CACHE") or Path.home() / ".cache" / "sgoif") / "trainings"
    path = folder / f"{setup.setting}-{setup.seed}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.npz"
    if path.exists():
        return _read(path)
    found = _train(setup)
    folder.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.part.npz")
    _write(partial, found)
    os.replace(partial, path)
    return found


def _train(setup: Setup) -> Trained:
    torch.set_num_threads(1)
    parts, stats = _parts(setup)
    parts = noise.thinned(setup.setting, parts)
    given, given_held = noise.apply_to_split(setup.setting, parts, setup.seed, setup.dataset)
    per_class = len(parts.trusted) // parts.train.num_classes
    is_trusted = setup.holdout == "trusted"
    held = parts.trusted if is_trusted else data.as_given_holdout(parts.held, given_held, per_class)
    images, labels = data.normalise(parts.train.pixels, *stats), torch.from_numpy(given.astype(np.int64))
    anchors = (data.normalise(held.pixels, *stats), torch.from_numpy(held.labels))
    recipe = loops.Recipe(num_epochs=setup.epochs, cycles=setup.cycles)
    started = time.perf_counter()

    torch.manual_seed(setup.seed)
    model = ResNet9(num_classes=parts.train.num_classes)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = loops.optimiser(model, recipe)
    scheduler = loops.schedule(optimizer, recipe, len(images))
    steps = setup.epochs * recipe.steps_per_epoch(len(images))
    monitor = sgoif.watch(
        model,
        optimizer,
        anchors=anchors,
        train_size=len(images),
        seed=setup.seed,
        trusted=is_trusted,
        method=sgoif.Method(planned_steps=steps, curvature=setup.curvature, solver=setup.solver),
    )
    assert isinstance(monitor, Monitor), "SGOIF_DISABLE is set"
    residuals, el2n = [], []
    model.train()
    with _faulty(monitor, setup, steps) as before_step:
        for batch in loops.epochs(images, labels, recipe, setup.seed):
            before_step(batch.step)
            reading = monitor.engine.reading
            residuals.append(None if reading is None else reading.residual.double().numpy().copy())
            with monitor.step(batch.indices, batch.labels):
                logits = loops.logits(model, batch.images, recipe)
                F.cross_entropy(logits, batch.labels).backward()
            el2n.append(_error_norm(logits.detach(), batch.labels))
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
    run = monitor.close()
    seconds = time.perf_counter() - started
    assert run.info["counters"]["faults"] == 0, run.info["faults"]
    audited = sgoif.audit(
        model,
        (images, labels),
        anchors=anchors,
        trusted=is_trusted,
        forward=lambda inputs: loops.logits(model, inputs.contiguous(memory_format=torch.channels_last), recipe),
        method=sgoif.Method(curvature=setup.curvature),
    )
    empty = np.full(monitor.engine.anchors.num_anchors, np.nan)
    return Trained(
        given=given.astype(np.int64),
        clean=parts.train.labels,
        visits={**run.visits, "el2n": torch.cat(el2n).numpy()},  # no id comes twice in a step: the rows agree
        table=_by_id(run.table),
        audit=_by_id(audited.table),
        residual=np.stack([empty if value is None else value for value in residuals]),
        info={**_plain(run.info), "seconds": seconds, "accuracy": _test_accuracy(model, setup, stats, recipe)},
    )


def _parts(setup: Setup) -> tuple[data.Split, Any]:
    if setup.dataset == "cifar100":
        return data.reported_cifar100(setup.examples, setup.seed), data.CIFAR100_STATS
    if setup.split == "development":
        return data.development(setup.examples), data.CIFAR10_STATS
    return data.reported(setup.examples, setup.seed), data.CIFAR10_STATS


def _error_norm(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """EL2N: the length of ``p - e_y``."""
    return (logits.softmax(1) - F.one_hot(labels, logits.shape[1])).norm(dim=1)


def _test_accuracy(model: torch.nn.Module, setup: Setup, stats: Any, recipe: loops.Recipe) -> float:
    """Over the 5,000 last test images: the first ones are the trusted hold-out."""
    test = (data.cifar100 if setup.dataset == "cifar100" else data.cifar10)("test").take(slice(5_000, None))
    images = data.normalise(test.pixels, *stats).contiguous(memory_format=torch.channels_last)
    return loops.accuracy(model, images, torch.from_numpy(test.labels), recipe)


@contextmanager
def _faulty(monitor: Monitor, setup: Setup, steps: int) -> Iterator[Any]:
    """What goes wrong with the tracking in a run: called before each step."""
    engine, rng = monitor.engine, np.random.default_rng(setup.seed)
    fresh = (engine.curvature.state_dict(), engine.tracker.state_dict())
    refresh, holdout = engine.anchors.refresh, engine.holdout

    def corrupted(*arguments: Any) -> Any:
        if rng.random() >= 0.05:
            return refresh(*arguments)
        kept, holdout.labels = holdout.labels, holdout.labels[torch.from_numpy(rng.permutation(len(holdout)))]
        try:
            return refresh(*arguments)
        finally:
            holdout.labels = kept

    def before_step(step: int) -> None:
        if setup.fault == "reset" and step == round(0.6 * steps):
            engine.curvature.load_state_dict(fresh[0])
            engine.tracker.load_state_dict(fresh[1])

    if setup.fault == "corrupted":
        engine.anchors.refresh = corrupted  # type: ignore[method-assign, assignment]
    yield before_step


def _by_id(table: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    order = np.argsort(table["id"])
    return {name: column[order] for name, column in table.items()}


def _plain(info: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(info, default=lambda value: np.asarray(value).tolist()))
    return plain


def _source_hash() -> str:
    root = Path(sgoif.__file__).parent
    texts = [path.read_bytes() for path in sorted(root.rglob("*.py"))]
    return hashlib.sha256(b"".join([*texts, Path(__file__).read_bytes()])).hexdigest()


def _write(path: Path, found: Trained) -> None:
    arrays: dict[str, Any] = {"info": np.array(json.dumps(found.info))}
    for field in fields(found):
        value = getattr(found, field.name)
        if isinstance(value, np.ndarray):
            arrays[field.name] = value
        elif field.name != "info":
            # reasons are text with gaps, which numpy keeps as objects only; no table of results needs them
            arrays |= {f"{field.name}/{name}": column for name, column in value.items() if column.dtype != object}
    with path.open("wb") as file:
        np.savez(file, **arrays)


def _read(path: Path) -> Trained:
    values: dict[str, Any] = {"visits": {}, "table": {}, "audit": {}}
    with np.load(path) as arrays:
        for name in arrays.files:
            group, _, column = name.partition("/")
            if column:
                values[group][column] = arrays[name]
            else:
                values[group] = arrays[name]
    return Trained(**{**values, "info": json.loads(str(values["info"]))})
