"""Monitored trainings on noisy images, one per setting and seed, and everything that was seen while they ran.

Several questions are asked of the same training: which signal finds the errors, which gate weighs the visits best,
whether a late audit does as well. So a training is run once and kept in the cache, under a name that holds its settings
and the source that ran it; a changed line in the library makes it run again.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

import sgoif
from benchmarks import cache, context, data, loops, noise
from benchmarks.experiment import option
from benchmarks.models import fresh_model
from sgoif.training.monitor import Monitor


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What is trained and watched; the defaults are tier M, pair-20, on the development set."""

    setting: str = "pair-20"
    dataset: str = option("cifar10", ("cifar10", "cifar100"))
    split: str = option("development", ("development", "reported"))
    holdout: Literal["trusted", "as-given"] = "trusted"
    seed: int = 0
    examples: int = 20_000
    epochs: int = 10
    cycles: int = 1  # of the learning rate
    fault: Literal["none", "reset", "corrupted"] = "none"  # forget all directions at 60%; 5% of the draws go wrong
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
    key = json.dumps({**asdict(setup), **context.changed()}, sort_keys=True) + _source_hash()
    name = f"{setup.setting}-{setup.seed}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.pickle"
    return cache.keep(f"trainings/{name}", lambda: _train(setup))


def _train(setup: Setup) -> Trained:
    parts, stats = draw_parts(setup)
    parts = noise.thin_classes(setup.setting, parts)
    given, given_held = noise.apply_to_split(setup.setting, parts, setup.seed, setup.dataset)
    per_class = len(parts.trusted) // parts.train.num_classes
    is_trusted = setup.holdout == "trusted"
    held = parts.trusted if is_trusted else data.as_given_holdout(parts.held, given_held, per_class)
    images, labels = data.normalise(parts.train.pixels, *stats), torch.from_numpy(given.astype(np.int64))
    anchors = (data.normalise(held.pixels, *stats), torch.from_numpy(held.labels))
    recipe = loops.Recipe(num_epochs=setup.epochs, cycles=setup.cycles)
    started = time.perf_counter()
    model = fresh_model(setup.seed, parts.train.num_classes)
    residuals: list[NDArray[np.float64] | None] = []
    el2n: list[torch.Tensor] = []
    spoil = _fault(setup, recipe.num_epochs * recipe.steps_per_epoch(len(images)))

    def before_step(monitor: Monitor, step: int) -> None:
        spoil(monitor, step)
        reading = monitor.engine.reading
        residuals.append(None if reading is None else reading.residual.double().numpy().copy())

    monitor = loops.watch(
        *(model, images, labels, recipe, setup.seed),
        anchors=anchors,
        trusted=is_trusted,
        method=sgoif.Method(curvature=setup.curvature, solver=setup.solver),
        before_step=before_step,
        after_step=lambda batch, logits: el2n.append(_error_norm(logits, batch.labels)),
    )
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


def draw_parts(setup: Setup) -> tuple[data.Split, Any]:
    if setup.dataset == "cifar100":
        return data.reported_cifar100(setup.examples, setup.seed), data.CIFAR100_STATS
    return data.draw(setup.split, setup.examples, setup.seed), data.CIFAR10_STATS


def _error_norm(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """EL2N: the length of ``p - e_y``."""
    return (logits.softmax(1) - F.one_hot(labels, logits.shape[1])).norm(dim=1)


def _test_accuracy(model: torch.nn.Module, setup: Setup, stats: Any, recipe: loops.Recipe) -> float:
    """Over the 5,000 last test images: the first ones are the trusted hold-out."""
    test = (data.cifar100 if setup.dataset == "cifar100" else data.cifar10)("test").take(slice(5_000, None))
    images = data.normalise(test.pixels, *stats).contiguous(memory_format=torch.channels_last)
    return loops.accuracy(model, images, torch.from_numpy(test.labels), recipe)


def _fault(setup: Setup, steps: int) -> Callable[[Monitor, int], None]:
    """What goes wrong with the tracking in a run: called before each step."""
    rng, fresh = np.random.default_rng(setup.seed), {}

    def corrupt(monitor: Monitor) -> None:
        refresh, holdout = monitor.engine.anchors.refresh, monitor.engine.holdout

        def corrupted(*arguments: Any) -> Any:
            if rng.random() >= 0.05:
                return refresh(*arguments)
            kept, holdout.labels = holdout.labels, holdout.labels[torch.from_numpy(rng.permutation(len(holdout)))]
            try:
                return refresh(*arguments)
            finally:
                holdout.labels = kept

        monitor.engine.anchors.refresh = corrupted  # type: ignore[method-assign, assignment]

    def spoil(monitor: Monitor, step: int) -> None:
        parts = (monitor.engine.curvature, monitor.engine.tracker)
        if step == 0:
            fresh.update({part: part.state_dict() for part in parts})
            if setup.fault == "corrupted":
                corrupt(monitor)
        if setup.fault == "reset" and step == round(0.6 * steps):
            for part in parts:
                part.load_state_dict(fresh[part])

    return spoil


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
