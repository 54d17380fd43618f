"""A small training loop that runs on any number of ranks; each step's examples are the same whatever their number."""

import copy
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import sgoif
from sgoif.errors import SgoifError
from tests.grouped import grouped
from tests.training.loops import GroupNormNet, data, fresh

PLAN = sgoif.Plan(refresh_every=4, examples_per_refresh=15, observe_every=2)


@dataclass(frozen=True)
class Recipe:
    """How one training goes."""

    steps: int = 8
    batch: int = 16  # of all ranks together
    accumulate: int = 1
    lr: float = 0.05
    dtype: torch.dtype = torch.float64
    autocast: torch.dtype | None = None
    make: Callable[[], nn.Module] = GroupNormNet
    is_watched: bool = True
    wrap: str | None = "ddp"  # or "fsdp", where there are several ranks
    mixed: torch.dtype | None = None  # the precision that FSDP computes in
    saves_at: int | None = None  # the step after which the state is kept
    saves_to: str | None = None  # a folder for torch.distributed.checkpoint; else it is kept in memory
    saves_async: bool = False


def rank_and_size():
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


@dataclass(frozen=True)
class Trouble:
    """Something that goes wrong inside the monitor of one rank, from a step on."""

    kind: str
    rank: int = 1
    step: int = 5

    def __call__(self, step, monitor):
        if (step, dist.get_rank()) == (self.step, self.rank):
            if self.kind == "forgets":
                monitor.step_count += 1
            elif self.kind == "cannot_write":
                monitor.recorder.sink.opened.trouble.patiently = self.raises
            elif self.kind == "stalls":
                monitor.engine._score_queue = self.stall_once()
            else:
                monitor.engine._score_queue = getattr(self, self.kind)

    def raises(self, *_, **__):
        raise ValueError("a bug on one rank")

    def stall_once(self):
        pauses = iter([7])

        def stalls(*_, **__):
            time.sleep(next(pauses, 0))
            raise TimeoutError("woke up")

        return stalls

    def dies(self, *_, **__):
        os.kill(os.getpid(), signal.SIGKILL)


def hear(ask, *arguments):
    """What is said where something is refused."""
    try:
        ask(*arguments)
    except SgoifError as error:
        return str(error)
    return None


def is_refused_weights(step, monitor):
    """What an example weighs is known to nobody where each rank has seen some of its visits."""
    assert "one process" in hear(monitor.weights, [0])


def wrapped(model, recipe, parts):
    """The model as several ranks train it, sharded in parts where it is."""
    if recipe.wrap == "fsdp":
        mesh, policy = init_device_mesh("cpu", (dist.get_world_size(),)), MixedPrecisionPolicy(recipe.mixed)
        for part in parts:
            fully_shard(part, mesh=mesh, mp_policy=policy)
        return fully_shard(model, mesh=mesh, mp_policy=policy)
    return model if recipe.wrap is None else DistributedDataParallel(model)


def whole(value):
    return (value.full_tensor() if hasattr(value, "full_tensor") else value).detach().numpy().copy()


@dataclass(frozen=True)
class Trained:
    """Model and optimizer as torch.distributed.checkpoint takes them, whole or in pieces, by any number of ranks."""

    model: nn.Module
    optimizer: torch.optim.Optimizer

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state):
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def train(recipe, settings, at_step=None, saved=None):
    """Train, and return the visits of this rank, the weights at the end, and the monitor."""
    rank, size = rank_and_size()
    (pixels, labels), holdout = data(dtype=recipe.dtype)
    inner = fresh(recipe.make, dtype=recipe.dtype)
    model = wrapped(inner, recipe, [next(inner.children())]) if size > 1 else inner
    optimizer = torch.optim.SGD(inner.parameters(), lr=recipe.lr, momentum=0.9)
    monitor = None
    if recipe.is_watched:
        arguments = {"train_size": 48, "plan": PLAN, "accumulate": recipe.accumulate, "trusted": True, **settings}
        monitor = sgoif.watch(model, optimizer, anchors=holdout, **grouped(arguments))
    first, parts = 0, {"trained": Trained(model, optimizer), "monitor": monitor}
    if isinstance(saved, str):
        dcp.load(parts, checkpoint_id=saved)
        first = recipe.saves_at
    elif saved is not None:
        inner.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        monitor.load_state_dict(saved["monitor"])
        first = saved["step"]
    kept, generator = None, torch.Generator().manual_seed(1)
    for step in range(recipe.steps):
        picked = torch.randperm(48, generator=generator)[: recipe.batch]
        if step < first:
            continue
        if at_step is not None:
            at_step(step, monitor)
        for index, part in enumerate(picked.chunk(recipe.accumulate)):
            mine = part[rank::size]
            is_last = index + 1 == recipe.accumulate
            watched = monitor.step(mine, labels[mine]) if monitor else nullcontext()
            if size > 1 and recipe.wrap == "fsdp":
                model.set_requires_gradient_sync(is_last)
            with watched, model.no_sync() if model is not inner and not is_last else nullcontext():
                with torch.autocast("cpu", recipe.autocast, enabled=recipe.autocast is not None):
                    outputs = model(pixels[mine])
                loss = F.cross_entropy(outputs.to(recipe.dtype), labels[mine]) / recipe.accumulate
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step + 1 == recipe.saves_at and recipe.saves_to is not None:
            if recipe.saves_async:  # its collectives run beside the training's, so in a group of their own
                kept = dcp.async_save(parts, checkpoint_id=recipe.saves_to, process_group=dist.new_group())
            else:
                dcp.save(parts, checkpoint_id=recipe.saves_to)
        elif step + 1 == recipe.saves_at:
            states = {"model": inner, "optimizer": optimizer, "monitor": monitor}
            kept = {"step": step + 1, **{name: copy.deepcopy(part.state_dict()) for name, part in states.items()}}
    if isinstance(kept, Future):
        kept = kept.result()
    return inner, monitor, kept


def trained(recipe, settings=None, at_step=None, saved=None):
    """Train and close: visits of this rank, weights, faults, whether the monitor was on, what was kept, bytes."""
    inner, monitor, kept = train(recipe, settings or {}, at_step, saved)
    weights = {key: whole(value) for key, value in inner.state_dict().items()}
    if monitor is None:
        return {"weights": weights}
    found = {"weights": weights, "faults": dict(monitor.faults), "is_on": monitor.is_on}
    found["kept"] = None if recipe.saves_to else kept
    found["num_bytes"] = monitor.peers.num_bytes
    run = monitor.close()
    found["visits"] = dict(run.visits) if run is not None else None
    found["info"] = {**run.info, "url": run.url} if run is not None else None
    return found


def joined(parts):
    """The visits of all ranks, in the order of steps and ids."""
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    order = np.lexsort((columns["id"], columns["step"]))
    return {name: column[order] for name, column in columns.items()}


def resumed(recipe, kept):
    """Go on from states that each rank kept."""
    own = copy.deepcopy(kept[rank_and_size()[0]])  # what comes through a pipe lies in memory that processes share
    return trained(recipe, saved=own)


def stopped(recipe, settings):
    """Train past the saved state and stop as a killed job does, then resume from the state and finish."""
    _, first, kept = train(replace(recipe, steps=10), settings)
    first.recorder.sink.checkpoint()
    dist.barrier()
    return trained(recipe, settings, saved=kept)


def killed(recipe, settings):
    """Train past the saved state and stop as a killed job does."""
    _, monitor, _ = train(recipe, settings)
    monitor.recorder.sink.checkpoint()
    if dist.is_initialized():
        dist.barrier()


def refusals():
    """What is said of a tensor-parallel model, and of one that is sharded within replicas."""
    columns = parallelize_module(GroupNormNet(), init_device_mesh("cpu", (2,)), {"fc": ColwiseParallel()})
    hybrid = fully_shard(GroupNormNet(), mesh=init_device_mesh("cpu", (1, 2), mesh_dim_names=("replicas", "shards")))
    holdout = data(dtype=torch.float32)[1]
    return [hear(lambda model=model: sgoif.watch(model, anchors=holdout, train_size=48)) for model in (columns, hybrid)]


def with_odd_rows(settings):
    """Train with labels that are no classes on every rank, and on rank 1 a batch of ids that are no ids."""
    rank, size = rank_and_size()
    (pixels, labels), holdout = data()
    labels = labels.clone()
    labels[::6] = -100
    model = DistributedDataParallel(fresh(GroupNormNet)) if size > 1 else fresh(GroupNormNet)
    monitor = sgoif.watch(model, anchors=holdout, train_size=48, **grouped({"plan": PLAN, **settings}))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(12):
        part = (torch.arange(8) + 8 * (step * size + rank)) % 48
        ids = part.float() if (step, rank) == (6, 1) else part
        with monitor.step(ids, labels[part]):
            F.cross_entropy(model(pixels[part]), labels[part]).backward()
        optimizer.step()
        optimizer.zero_grad()
    is_on, own = monitor.is_on, dict(monitor.counters)
    run = monitor.close()
    return {"is_on": is_on, "own": own, "faults": dict(monitor.faults), "info": None if run is None else run.info}
