"""What per-example gradients cost beside a bare training step.

Every variant is a whole forward and backward pass of the same model on the same batch, with or without scoring inside
it; they alternate in one process and are reported as ratios to the bare one. The part ``peers`` builds all gradients
beside other libraries instead, see :mod:`benchmarks.peers`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks import peers, timing
from benchmarks.experiment import Experiment, option
from benchmarks.models import ResNet18, SmallViT
from sgoif.gradients import (
    Capture,
    ExactSpace,
    Layer,
    LayerCapture,
    ProjectedSpace,
    Space,
    find_head,
    quiet_eval,
    select_layers,
    survey,
)

Step = Callable[[], None]

MODELS: dict[str, Callable[[], nn.Module]] = {"resnet18": ResNet18, "vit": SmallViT}
# Bars: capture alone 1.03, head + projected last block 1.08 (and 1.10 of the memory), all layers 1.40.
MEASURED_MEMORY = ("bare", "head + projected last block", "one direction, all layers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One model and precision; ``peers`` measures everyone's gradients in float32 on a smaller batch."""

    part: Literal["variants", "peers"] = "variants"
    model: str = option("resnet18", MODELS)
    precision: Literal["bf16", "fp32"] = "bf16"
    batch: int = 128
    blocks: int = option(10, help="interleaved blocks per variant (even)")
    steps: int = option(2, help="per block")
    rank: int = option(16, help="of projections")
    memory: bool = True


class Workload:
    """One model, one batch, and the variants of a step on them."""

    def __init__(self, name: str, batch: int, bf16: bool, rank: int = 16) -> None:
        torch.manual_seed(0)
        self.model = MODELS[name]().train()
        self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.images = torch.randn(batch, 3, 32, 32).contiguous(memory_format=torch.channels_last)
        self.labels = torch.randint(0, 10, (batch,))
        self.bf16, self.rank = bf16, rank
        self.head = find_head(self.model, lambda: self.model(self.images[:2]))
        self.block = _last_block(_call_order(self.model, lambda: self.model(self.images[:2])), self.head)

    def forward_backward(self) -> None:
        with torch.autocast("cpu", torch.bfloat16) if self.bf16 else nullcontext():
            logits = self.model(self.images)
        F.cross_entropy(logits.float(), self.labels).backward()
        self.model.zero_grad()

    def score(self, spaces: Iterable[Space]) -> Step:
        """A step that contracts each layer's gradients with a random direction the moment they arrive."""
        generator, total = torch.Generator().manual_seed(1), torch.zeros(len(self.labels))
        known = {space.layer.name: space for space in spaces}
        directions = {name: torch.randn(1, *space.shape.dims, generator=generator) for name, space in known.items()}

        def consume(call: LayerCapture) -> None:
            total.add_(known[call.layer].dots(call, directions[call.layer])[:, 0])

        capture = Capture([space.layer for space in known.values()], consume=consume)
        capture.scale = float(len(self.labels))

        def step() -> None:
            total.zero_()
            with capture:
                self.forward_backward()

        return step

    def capture_alone(self) -> Step:
        capture = Capture(select_layers(self.model), consume=lambda call: None)

        def step() -> None:
            with capture:
                self.forward_backward()

        return step

    def variants(self) -> dict[str, Step]:
        layers = select_layers(self.model)
        head = ExactSpace(self.head)
        return {
            "bare": self.forward_backward,
            "capture alone": self.capture_alone(),
            "one direction, head": self.score([head]),
            "one direction, head + last block": self.score([head, *map(ExactSpace, self.block)]),
            "head + projected last block": self.score(
                [head, *(ProjectedSpace(la, rank=self.rank) for la in self.block)]
            ),
            "one direction, all layers": self.score(map(ExactSpace, layers)),
            "projected, all layers": self.score(ProjectedSpace(layer, rank=self.rank) for layer in layers),
        }


def _call_order(model: nn.Module, run: Callable[[], object]) -> tuple[Layer, ...]:
    """Run the model once, leaving no trace, and return its scorable layers in the order of their first call."""
    layers = survey(model).layers
    seen: dict[str, None] = {}
    handles = [
        module.register_forward_hook(lambda _m, _i, _o, key=key: seen.setdefault(key))
        for key, module in {layer.module_name: layer.module for layer in layers}.items()
    ]
    try:
        with quiet_eval(model), torch.no_grad():
            run()
    finally:
        for handle in handles:
            handle.remove()
    return tuple(layer for key in seen for layer in layers if layer.module_name == key)


def _last_block(order: tuple[Layer, ...], head: Layer, *, share: float = 0.2, most: int = 4) -> tuple[Layer, ...]:
    """The layers before the head that are worth scoring: among the last ``share`` of the calls, at most ``most``.

    Norms (one output per group) are left out: they hold about 0.1% of the parameters, and each costs a pass over its
    activations.
    """
    body = [layer for layer in order if layer.name != head.name]
    tail = body[len(body) - max(1, round(share * len(body))) :] if body else []
    return tuple([layer for layer in tail if layer.shape.outputs > 1][-most:])


def probe(name: str, batch: int, bf16: bool, variant: str) -> None:
    """Three steps of one variant: what raises the peak memory of a fresh process."""
    step = Workload(name, batch, bf16).variants()[variant]
    for _ in range(3):
        step()


def measure(settings: Settings) -> dict[str, Any]:
    warnings.filterwarnings("ignore", message=".*(hook|performance drop|batching rule).*")
    name, bf16 = settings.model, settings.precision == "bf16"
    if settings.part == "peers":
        found = peers.compare(MODELS[name], settings.rank, settings.blocks)
        return {"model": name, "precision": "fp32", "batch": peers.BATCH, **found}
    variants = Workload(name, settings.batch, bf16, settings.rank).variants()
    timings = timing.alternate(variants, blocks=settings.blocks, steps_per_block=settings.steps, warmup=2)
    known = {"model": name, "precision": settings.precision, "batch": settings.batch}
    if not settings.memory:
        return {**known, "timing": timings.summary()}
    peaks = {key: timing.raised_peak_mb(probe, name, settings.batch, bf16, key) for key in MEASURED_MEMORY}
    return {**known, "timing": timings.summary(), "peak_mb": peaks}


def describe(row: dict[str, Any]) -> str:
    if "timing" in row:
        return ", ".join(f"{variant} {found['ratio']:.3f}x" for variant, found in row["timing"].items())
    lines = [
        f"{task} {name} {found['cpu'][name]['ratio']:.3f}x CPU, {took['ratio']:.3f}x"
        for task, found in row["peers"].items()
        for name, took in found["wall"].items()
    ]
    return "; ".join([*lines, *(f"{name} does not run: {why}" for name, why in row["refused"].items())])


CONTRACTION = Experiment(
    name="contraction",
    settings=Settings,
    run=measure,
    describe=describe,
    tables={"per_example": peers.per_example},
    full=[
        {"model": list(MODELS), "precision": ["bf16", "fp32"]},
        {"part": "peers", "model": "vit", "precision": "fp32", "blocks": 16},
        {"part": "peers", "model": "resnet18", "precision": "fp32", "blocks": 2},
    ],
)
