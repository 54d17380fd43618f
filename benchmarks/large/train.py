"""One training of tier G, watched: resumed where it was stopped, on one device or on the ranks of torchrun."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import sgoif
from benchmarks import context, loops
from benchmarks.context import CONTEXT
from benchmarks.label_noise import AUDITED, SUSPICIOUS_WHEN_LOW
from benchmarks.large.datasets import Pictures, openood
from benchmarks.large.pictures import Augmented, Parts, Prepared, divide
from benchmarks.large.recipe import Recipe
from benchmarks.metrics import detection_report
from benchmarks.records import append_result
from sgoif.training.monitor import Monitor

_PATIENCE = timedelta(hours=2)  # of ranks that wait while the first one evaluates


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a training finds its data, runs, and leaves what it finds."""

    root: Path
    out: Path
    device: str = "cuda"
    workers: int = 8  # processes that load pictures, for each rank
    examples: int | None = None  # trains on so many pictures alone
    stop_after: int | None = None  # ends after this epoch, to be continued


def join_ranks(device: str) -> str:
    """Join the process group of torchrun, if it started this process, and name the device of this rank."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return device
    is_cuda = torch.device(device).type == "cuda"
    dist.init_process_group("nccl" if is_cuda else "gloo", timeout=_PATIENCE)
    if not is_cuda:
        return device
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    return f"cuda:{os.environ['LOCAL_RANK']}"


def rank_and_size() -> tuple[int, int]:
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def train(recipe: Recipe, setting: str, seed: int, place: Place) -> dict[str, Any] | None:
    """Train, or go on training, and write what was found.

    None where the training was stopped or finished before, and on ranks other than the first, which writes.
    """
    context.use(device=place.device, amp=recipe.amp)
    rank, size = rank_and_size()
    folder = place.out / f"{recipe.name}-{setting}-{seed}"
    if (folder / "result.jsonl").exists():
        return None
    checkpoints = folder / "checkpoints"
    checkpoints.mkdir(parents=True, exist_ok=True)
    parts = divide(recipe, place.root, setting, seed, place.examples)
    settings = {**asdict(recipe), "noise": setting, "examples": len(parts.train), "processes": size}
    settings = {name: value for name, value in settings.items() if name not in ("seeds", "noises")}  # it is one of them
    training = _start(recipe, parts, seed, folder, size)
    for epoch in range(_resume(training, checkpoints, settings), recipe.epochs):
        started = time.perf_counter()
        _train_epoch(training, epoch, _load_epoch(recipe, parts.train, seed, epoch, place.workers))
        training.seconds += time.perf_counter() - started
        _save(training, checkpoints, epoch + 1, settings)
        if epoch + 1 == place.stop_after:
            return None
    run = training.monitor.close()
    found = None
    if rank == 0:
        row = {"settings": settings, "seed": seed, "seconds": training.seconds, "overhead": run.info["overhead"]}
        row["detection"] = report_detection(run.table, parts.train)
        row |= evaluate(training.model, recipe, parts, place)
        found = append_result(folder.resolve() / "result.jsonl", row)
    if size > 1:
        dist.barrier()
    return found


@dataclass(slots=True)
class _Training:
    """What changes while a training goes on."""

    model: nn.Module  # as it was built
    wrapped: nn.Module  # as it is called
    optimizer: torch.optim.SGD
    scheduler: torch.optim.lr_scheduler.LRScheduler
    monitor: Monitor
    plan: loops.Recipe
    seconds: float = 0.0

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "monitor": self.monitor.state_dict(),
            "seconds": self.seconds,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.monitor.load_state_dict(state["monitor"])
        self.seconds = state["seconds"]


def _save(training: _Training, folder: Path, epoch: int, settings: Mapping[str, Any]) -> None:
    """Write the state after so many epochs, a file for each rank; the one before is deleted once all have written."""
    rank, size = rank_and_size()
    path = folder / f"{epoch:04d}-{rank}.pt"
    torch.save({"settings": settings, "training": training.state_dict()}, path.with_suffix(".part"))
    path.with_suffix(".part").replace(path)
    if size > 1:
        dist.barrier()
    (folder / f"{epoch - 1:04d}-{rank}.pt").unlink(missing_ok=True)


def _resume(training: _Training, folder: Path, settings: Mapping[str, Any]) -> int:
    """Load the last state that every rank has written, and return how many epochs it has behind it."""
    rank, size = rank_and_size()
    for first in sorted(folder.glob("*-0.pt"), reverse=True):
        epoch = first.name.partition("-")[0]
        if all((folder / f"{epoch}-{each}.pt").exists() for each in range(size)):
            state = torch.load(folder / f"{epoch}-{rank}.pt", map_location="cpu")
            other = [name for name, value in settings.items() if state["settings"].get(name) != value]
            if other:
                raise ValueError(f"'{folder}' was written with another {', '.join(other)}; choose another --out")
            training.load_state_dict(state["training"])
            return int(epoch)
    if any(folder.glob("*.pt")):
        raise ValueError(f"'{folder}' has no state of all {size} ranks; use as many as before, or choose another --out")
    return 0


def _start(recipe: Recipe, parts: Parts, seed: int, folder: Path, ranks: int) -> _Training:
    torch.manual_seed(seed)
    names = parts.train.class_names
    model = recipe.make_model(len(names)).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    wrapped = DistributedDataParallel(model) if ranks > 1 else model
    steps = recipe.epochs * ceil(len(parts.train) / recipe.batch)
    if steps < 3:
        raise ValueError(f"{len(parts.train)} pictures in batches of {recipe.batch} give {steps} steps; 3 are needed")
    plan = loops.Recipe(
        num_epochs=recipe.epochs,
        batch_size=recipe.batch,
        lr=recipe.lr,
        weight_decay=recipe.weight_decay,
        warmup=max(recipe.warmup, 2 / steps),  # the schedule cannot rise in one step
    )
    optimizer = loops.optimiser(model, plan)
    monitor = sgoif.watch(
        wrapped,
        optimizer,
        anchors=Prepared(parts.held, recipe),
        train_size=len(parts.train),
        out=str(folder / "run"),
        overwrite=True,  # of a run that was stopped before its first checkpoint
        class_names=names,
        trusted=recipe.holdout == "trusted",
        method=recipe.make_method(steps),
        seed=seed,
    )
    assert isinstance(monitor, Monitor), "SGOIF_DISABLE is set"
    return _Training(model, wrapped, optimizer, loops.schedule(optimizer, plan, len(parts.train)), monitor, plan)


def _load_epoch(recipe: Recipe, pictures: Pictures, seed: int, epoch: int, workers: int) -> DataLoader[Any]:
    """This rank's batches of an epoch, in an order that depends on seed and epoch alone."""
    rank, size = rank_and_size()
    if recipe.batch % size:
        raise ValueError(f"a batch of {recipe.batch} cannot be shared by {size} ranks")
    dataset = Augmented(pictures, recipe, seed, epoch)
    sampler: DistributedSampler[Any] = DistributedSampler(dataset, size, rank, seed=seed)
    sampler.set_epoch(epoch)
    return DataLoader(
        dataset,
        batch_size=recipe.batch // size,
        sampler=sampler,
        num_workers=workers,
        pin_memory=torch.device(CONTEXT.device).type == "cuda",
    )


def _train_epoch(training: _Training, epoch: int, loader: DataLoader[Any]) -> None:
    training.wrapped.train()
    for images, labels, ids in loader:
        images, labels = _to_device(images), labels.to(CONTEXT.device, non_blocking=True)
        with training.monitor.step(ids, labels):
            with loops.autocast(training.plan):
                outputs = training.wrapped(images)
            loss = F.cross_entropy(outputs.float(), labels)
            loss.backward()
        training.optimizer.step()
        training.optimizer.zero_grad()
        training.scheduler.step()
    if rank_and_size()[0] == 0:
        print(f"epoch {epoch + 1} of {training.plan.num_epochs}: last loss {loss.item():.3f}", flush=True)


def _to_device(images: Tensor) -> Tensor:
    return images.to(CONTEXT.device, non_blocking=True).contiguous(memory_format=torch.channels_last)


def report_detection(table: Mapping[str, NDArray[Any]], pictures: Pictures) -> dict[str, Any] | None:
    """What each signal finds among the verified labels; None where none of them is known to be wrong, or all are."""
    positions = {str(name): position for position, name in enumerate(pictures.ids)}
    rows = np.array([positions[str(name)] for name in table["id"]])
    seen = pictures.is_verified[rows]
    wrong = pictures.is_wrong[rows][seen]
    if not wrong.any() or wrong.all():
        return None
    found = {}
    for name in (*AUDITED, "p_mislabeled"):
        values = table[name][seen].astype(np.float64) if name in table else np.array([])
        if np.isfinite(values).any():
            values = np.nan_to_num(values)
            found[name] = detection_report(-values if name in SUSPICIOUS_WHEN_LOW else values, wrong)
    return found


def describe(row: Mapping[str, Any]) -> str:
    """What was found, in a line."""
    found = row["detection"] or {}
    told = [f"{name} AP {item['ap']:.1f}, P@1% {item['p@1%']:.1f}" for name, item in found.items()]
    told += [f"{name} AUROC {item['auroc']:.1f}" for name, item in row.get("ood", {}).items()]
    return "; ".join([*(told or ["no label is known to be wrong"]), f"accuracy {row['accuracy']}"])


def evaluate(model: nn.Module, recipe: Recipe, parts: Parts, place: Place) -> dict[str, Any]:
    """Accuracy over the test pictures in percent, and how well OpenOOD's lists are told from ImageNet's pictures."""
    model.eval()
    right = total = 0
    loader = DataLoader(Prepared(parts.test, recipe), batch_size=recipe.batch, num_workers=place.workers)
    with torch.no_grad():
        for images, labels in loader:
            predicted = loops.logits(model, _to_device(images), loops.Recipe()).argmax(1)
            right, total = right + int((predicted.cpu() == labels).sum()), total + len(labels)
    measured: dict[str, Any] = {"accuracy": 100 * right / total if total else None}
    if recipe.ood:
        measured["ood"] = _evaluate_ood(model, recipe, place)
    return measured


def _evaluate_ood(model: nn.Module, recipe: Recipe, place: Place) -> dict[str, Any]:
    """AUROC and others of the scorer on each list, calibrated by OpenOOD's validation pictures of ImageNet."""
    from benchmarks.ood.measure import compare_scores
    from sgoif.ood import OodScorer

    def load(name: str) -> DataLoader[Any]:
        pictures = Prepared(openood(place.root, name), recipe)
        return DataLoader(pictures, batch_size=256, num_workers=place.workers)

    scorer = OodScorer.fit(model, load("val_imagenet"))
    usual = scorer(load("test_imagenet"))
    return {name: compare_scores(usual, scorer(load(f"test_{name}"))) for name in recipe.ood}
