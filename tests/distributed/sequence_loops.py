"""A small training of a language model that runs on any number of ranks, with the same global batches."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import sgoif
from sgoif.errors import SgoifError
from tests.language_models import build, padded_batch

PLAN = sgoif.Plan(refresh_every=3, examples_per_refresh=6, observe_every=2, early_steps=0)
COUNT, BATCH = 10, 4  # sequences, and those of all ranks together in a micro-batch


@dataclass(frozen=True)
class Recipe:
    curvature: str = "identity"
    steps: int = 8
    accumulate: int = 1
    out: str | None = None
    is_watched: bool = True
    breaks: int | None = None  # the rank whose monitor fails
    saves_at: int | None = None
    state: dict | None = None  # to resume from, by rank


def watch(model, optimizer, recipe):
    held = {name: padded_batch("llama", "right", count=3, seed=seed) for name, seed in (("a", 20), ("b", 21))}
    groups = {name: [{k: v[i] for k, v in batch.items()} for i in range(3)] for name, batch in held.items()}
    return sgoif.watch(
        model, optimizer, anchors=groups, train_size=COUNT, task="sequences", out=recipe.out,
        method=sgoif.Method(curvature=recipe.curvature), budget=sgoif.Budget(plan=PLAN),
        loss=sgoif.Loss(accumulate=recipe.accumulate),
    )  # fmt: skip


def trained(recipe):
    """Train, and give what this rank has at the end."""
    rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    model = build("llama", lora=True).double()
    whole = DistributedDataParallel(model) if size > 1 else model
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)
    monitor = watch(whole, optimizer, recipe) if recipe.is_watched else None
    if recipe.breaks == rank:
        monitor.engine.measure = lambda calls: 1 / 0
    data, generator = padded_batch("llama", "right", count=COUNT, seed=3), torch.Generator().manual_seed(0)
    saved, begin = None, 0
    if recipe.state is not None:
        begin = recipe.state["step"]
        model.load_state_dict(recipe.state["model"])
        monitor.load_state_dict(recipe.state["monitor"][rank])
    for step in range(recipe.steps):
        order = torch.randperm(COUNT, generator=generator)
        if step < begin:
            continue
        for micro in range(recipe.accumulate):
            chosen = order[micro * BATCH : (micro + 1) * BATCH]
            mine = chosen[rank::size]
            tokens = int((data["labels"][chosen][:, 1:] != -100).sum()) * recipe.accumulate
            part = {name: value[mine] for name, value in data.items()}

            def backward(part=part, tokens=tokens):
                logits = whole(input_ids=part["input_ids"], attention_mask=part["attention_mask"]).logits
                wanted = part["labels"][:, 1:]
                loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), wanted.flatten(), reduction="sum")
                (loss * size / tokens).backward()  # DDP divides by the number of ranks

            if monitor is None:
                backward()
            else:
                with monitor.step(mine, part["labels"], grad_factor=tokens / size):
                    backward()
        optimizer.step()
        optimizer.zero_grad()
        if recipe.saves_at == step + 1:
            saved = {"step": step + 1, "model": model.state_dict(), "monitor": monitor.state_dict()}
            return saved
    found = {"weights": {name: value.numpy() for name, value in model.state_dict().items()}, "rank": rank}
    if monitor is None:
        return found
    directions = {} if monitor.engine._directions is None else monitor.engine._directions
    run = monitor.close()
    return found | {
        "directions": {name: value.numpy() for name, value in directions.items()},
        "info": {name: run.info[name] for name in ("counters", "faults", "switched_off", "num_examples")},
        "warnings": run.info.get("warnings"),
        "examples": run.sql("select * from examples order by id").to_pydict(),
        "effects": run.sql("select * from group_effects order by id, group_name").to_pydict(),
    }


def refused(out):
    """The message of every rank where the folder holds another run."""
    try:
        trained(Recipe(steps=1, out=out))
    except SgoifError as error:
        return str(error)
    return None


def sharded():
    """The message for a model in pieces."""
    model = fully_shard(build("llama", lora=False), mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    try:
        watch(model, None, Recipe())
    except SgoifError as error:
        return str(error)
    return None
