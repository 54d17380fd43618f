"""A small training of a language model that runs on any number of ranks, with the same global batches."""

from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.nn import ModuleList
from torch.nn.parallel import DistributedDataParallel

import sgoif
from tests.distributed.loops import hear, rank_and_size, wrapped
from tests.language_models import build, padded_batch

PLAN = sgoif.Plan(refresh_every=3, examples_per_refresh=6, observe_every=2, early_steps=0)
TASK = "sequences"
COUNT, BATCH = 10, 4  # sequences, and those of all ranks together in a micro-batch


@dataclass(frozen=True)
class Recipe:
    curvature: str = "identity"
    family: str = "llama"
    lora: bool = True
    wrap: str = "ddp"  # or "fsdp", where there are several ranks
    mixed: torch.dtype | None = None  # the precision that FSDP computes in
    adam: bool = False  # in place of SGD
    checkpointed: bool = False  # whether activations are computed again in the backward pass
    looks: int = 6  # evaluation sequences of a look, at least
    uneven: bool = False  # whether the last rank has one sequence of a batch, and the others the rest
    steps: int = 8
    accumulate: int = 1
    out: str | None = None
    is_watched: bool = True
    strings: bool = False  # whether the ids of rank 1 are strings
    breaks: int | None = None  # the rank whose monitor fails
    breaks_at: str = "measure"  # or "draw", the reading of evaluation sequences
    saves_at: int | None = None
    closes: bool = True
    out_is_of_first: bool = False  # whether rank 0 alone is given out=
    halved: bool = False  # whether rank 1 divides its last losses by what it does not say
    state: dict | None = None  # to resume from, by rank


def watch(model, optimizer, recipe):
    held = {name: padded_batch(recipe.family, "right", count=3, seed=seed) for name, seed in (("a", 20), ("b", 21))}
    groups = {name: [{k: v[i] for k, v in batch.items()} for i in range(3)] for name, batch in held.items()}
    plan = replace(PLAN, examples_per_refresh=recipe.looks)
    out = None if recipe.out_is_of_first and dist.get_rank() else recipe.out
    return sgoif.watch(
        model, optimizer, anchors=groups, train_size=COUNT, task=TASK, out=out,
        method=sgoif.Method(curvature=recipe.curvature), budget=sgoif.Budget(plan=plan),
        loss=sgoif.Loss(accumulate=recipe.accumulate),
    )  # fmt: skip


def layers(model):
    return next(part for part in model.modules() if isinstance(part, ModuleList) and len(part) > 1)


def weights(model):
    """All of them, whole."""
    found = model.state_dict().items()
    return {name: value.full_tensor() if hasattr(value, "full_tensor") else value for name, value in found}


def trained(recipe):
    """Train, and give what this rank has at the end."""
    rank, size = rank_and_size()
    model = build(recipe.family, lora=recipe.lora)
    model = model if recipe.mixed else model.double()
    if recipe.checkpointed:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    whole = wrapped(model, recipe, layers(model)) if size > 1 else model
    kind, rate = (torch.optim.Adam, 0.01) if recipe.adam else (torch.optim.SGD, 0.05)
    optimizer = kind([p for p in model.parameters() if p.requires_grad], lr=rate)
    monitor = watch(whole, optimizer, recipe) if recipe.is_watched else None
    if recipe.breaks == rank:
        broken = monitor.engine if recipe.breaks_at == "measure" else monitor.engine.groups
        setattr(broken, recipe.breaks_at, lambda *_: 1 / 0)
    data, generator = padded_batch(recipe.family, "right", count=COUNT, seed=3), torch.Generator().manual_seed(0)
    begin = 0
    if recipe.state is not None:
        begin = recipe.state["step"]
        set_model_state_dict(model, recipe.state["model"], options=StateDictOptions(full_state_dict=True))
        monitor.load_state_dict(recipe.state["monitor"][rank])
    for step in range(recipe.steps):
        order = torch.randperm(COUNT, generator=generator)
        if step < begin:
            continue
        for micro in range(recipe.accumulate):
            chosen = order[micro * BATCH : (micro + 1) * BATCH]
            mine = chosen[:-1] if recipe.uneven and rank == 0 else chosen[-1:] if recipe.uneven else chosen[rank::size]
            tokens = int((data["labels"][chosen][:, 1:] != -100).sum()) * recipe.accumulate
            part = {name: value[mine] for name, value in data.items()}
            if size > 1 and recipe.wrap == "fsdp":
                whole.set_requires_gradient_sync(micro == recipe.accumulate - 1)
            ids = [str(id) for id in mine.tolist()] if recipe.strings and rank == 1 else mine

            watched = monitor.step(ids, part["labels"], grad_factor=tokens / size) if monitor else nullcontext()
            with watched:
                logits = whole(input_ids=part["input_ids"], attention_mask=part["attention_mask"]).logits
                wanted = part["labels"][:, 1:]
                loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).double(), wanted.flatten(), reduction="sum")
                loss = loss / 2 if recipe.halved and rank == 1 and step > 5 else loss
                (loss * size / tokens).backward()  # DDP divides by the number of ranks
        optimizer.step()
        optimizer.zero_grad()
        if recipe.saves_at == step + 1:
            return {"step": step + 1, "model": weights(model), "monitor": monitor.state_dict()}
    found = {"weights": {name: value.numpy() for name, value in weights(model).items()}, "rank": rank}
    if monitor is not None and not recipe.closes:  # as at the end of a process
        monitor.flush()
        monitor.sink.end(10.0)
    if monitor is None or not recipe.closes:
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


def with_other_groups():
    """The message of every rank where the second has no group called b."""
    model, batch = DistributedDataParallel(build("llama", lora=True)), padded_batch("llama", "right", count=3)
    items = [{name: value[i] for name, value in batch.items()} for i in range(3)]
    groups = dict.fromkeys("ab" if dist.get_rank() == 0 else "ac", items)
    return hear(lambda: sgoif.watch(model, None, anchors=groups, train_size=COUNT, task=TASK))


def needing_the_whole():
    """The messages of what cannot be done with a model in pieces."""
    model = build("llama", lora=False)
    model = wrapped(model, Recipe(wrap="fsdp"), layers(model))
    monitor, batch = watch(model, None, Recipe()), padded_batch("llama", "right", count=3)
    items = [{name: value[i] for name, value in batch.items()} for i in range(3)]
    audited = hear(lambda: sgoif.audit(model, items, anchors={"a": items}, task=TASK))
    return hear(monitor.explain_tokens, items[0]), audited
