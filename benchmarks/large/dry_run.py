"""What tier G would take: every recipe walked on the meta device, where shapes are real and numbers are not.

Operations of the forward and backward pass, and what autograd keeps between them, are counted for a batch; the
monitor's share is that of :mod:`benchmarks.scale.price`. How fast a device is, is assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.context import CONTEXT
from benchmarks.large.datasets import DATASETS
from benchmarks.large.recipe import Recipe
from benchmarks.records import RESULTS
from benchmarks.scale.plan import Assumptions, size_head
from benchmarks.scale.price import price
from benchmarks.tables.rows import table
from benchmarks.work import Work
from sgoif.training.schedule import Plan

LOG = "tier_g_dry_run.txt"  # below benchmarks/results
TFLOPS = 60.0  # sustained by one GPU in bf16
_GB = 1e9
_OPTIMISER_BYTES = 12  # of a parameter: itself, its gradient and its momentum, in float32
_EVIDENCE_BYTES = 320  # of an example, where one process adds up its visits (docs/howto/out-of-memory.md)
_STEP_FLOPS = 3.0  # of a forward pass, as `price` counts


def count_batch(recipe: Recipe, classes: int) -> dict[str, Any]:
    """Parameters, operations of a training step, and bytes kept for the backward pass, of one rank's batch."""
    dtype = torch.bfloat16 if recipe.amp == "bf16" else torch.float32  # autocast keeps activations in it
    batch = recipe.batch // recipe.ranks
    with torch.device("meta"), patch.object(CONTEXT, "device", "meta"):
        model = recipe.make_model(classes).to(dtype)
        images = torch.empty(batch, 3, recipe.image, recipe.image, dtype=dtype)
        labels = torch.empty(batch, dtype=torch.int64)
    own = {value.untyped_storage()._cdata for value in (*model.parameters(), *model.buffers())}
    kept: dict[int, int] = {}

    def keep(value: Tensor) -> Tensor:
        storage = value.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = storage.nbytes()
        return value

    with FlopCounterMode(display=False) as counter, saved_tensors_hooks(keep, lambda value: value):
        outputs = model(images)
        forward = counter.get_total_flops()
        F.cross_entropy(outputs.float(), labels).backward()
    assert outputs.shape == (batch, classes)
    assert all(p.grad is not None and p.grad.shape == p.shape for p in model.parameters())
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "features": model.head.in_features,
        "forward_flops": forward,
        "step_flops": counter.get_total_flops(),
        "activation_bytes": sum(kept.values()),
    }


def estimate(recipe: Recipe, tflops: float = TFLOPS, examples: int | None = None) -> dict[str, Any]:
    """Time and memory of a recipe; times are of one training, memory of one rank."""
    known = DATASETS[recipe.dataset]
    held = recipe.held_per_class * known.classes
    pictures = examples or known.pictures - (held if recipe.holdout == "as-given" else 0)
    counted = count_batch(recipe, known.classes)
    batch, steps = recipe.batch // recipe.ranks, recipe.epochs * ceil(pictures / recipe.batch)
    evidence = _EVIDENCE_BYTES if recipe.ranks == 1 else 0
    sizes = size_head(known.classes, counted["features"] + 1, held, pictures, recipe.ranks, evidence)
    assumed = Assumptions(model_tflops=tflops)
    one = Work(flops=counted["step_flops"] / _STEP_FLOPS / batch)  # so that the priced step is the counted one
    watched = price(Plan(), sizes, one, assumed.monitor_speed, batch, assumed.model_speed)
    hours = steps * watched.bare_s * (1 + watched.total_share) / 3600
    return {
        "recipe": recipe.name,
        "dataset": recipe.dataset,
        "pictures": pictures,
        "classes": known.classes,
        "model": f"{recipe.model}, {recipe.image} px",
        **counted,
        "gflops_per_picture": counted["step_flops"] / batch / 1e9,
        "ranks": recipe.ranks,
        "batch": batch,
        "steps": steps,
        "share": watched.total_share,
        "hours": hours,
        "trainings": len(recipe.seeds) * len(recipe.noises),
        "gpu_hours": hours * recipe.ranks * len(recipe.seeds) * len(recipe.noises),
        "weights_gb": _OPTIMISER_BYTES * counted["parameters"] / _GB,
        "activations_gb": counted["activation_bytes"] / _GB,
        "monitor_gb": watched.device_mb * 2**20 / _GB,
        "host_gb": watched.host_mb * 2**20 / _GB,
    }


_COLUMNS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "recipe": lambda row: row["recipe"],
    "pictures": lambda row: f"{row['pictures']:,}",
    "classes": lambda row: f"{row['classes']:,}",
    "network": lambda row: row["model"],
    "parameters, M": lambda row: f"{row['parameters'] / 1e6:.1f}",
    "GFLOP a picture": lambda row: f"{row['gflops_per_picture']:.1f}",
    "ranks x batch": lambda row: f"{row['ranks']} x {row['batch']}",
    "steps": lambda row: f"{row['steps']:,}",
    "monitor, % of a step": lambda row: f"{100 * row['share']:.1f}",
    "hours": lambda row: f"{row['hours']:.1f}",
    "trainings": lambda row: str(row["trainings"]),
    "GPU hours of all": lambda row: f"{row['gpu_hours']:,.1f}",
    "weights, GB": lambda row: f"{row['weights_gb']:.2f}",
    "activations, GB": lambda row: f"{row['activations_gb']:.1f}",
    "monitor, GB": lambda row: f"{row['monitor_gb']:.2f}",
    "host, GB": lambda row: f"{row['host_gb']:.2f}",
}


def describe(rows: Sequence[Mapping[str, Any]], tflops: float) -> str:
    """The assumptions, and a table of all recipes."""
    assumed = Assumptions()
    lines = [
        "Tier G without data or device: shapes, operations and memory are counted on the meta device.",
        f"Assumed of a GPU: {tflops:g} TFLOP/s sustained by the training, {assumed.monitor_tflops:g} by the monitor, "
        f"{assumed.memory_tb_s:g} TB/s of memory; loading of pictures and exchanges among ranks take no time.",
        "Hours are of one training with the monitor; weights hold gradients and momentum too; memory is of one rank.",
        "",
        table(tuple(_COLUMNS), [[show(row) for show in _COLUMNS.values()] for row in rows]),
        "",
        f"{sum(row['gpu_hours'] for row in rows):,.0f} GPU hours together.",
    ]
    return "\n".join(lines)


def read_table() -> str:
    """The table of the log, for the docs."""
    lines = (RESULTS / LOG).read_text().splitlines()
    return "\n".join(line for line in lines if line.startswith("|"))
