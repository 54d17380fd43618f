"""All per-example gradients of a model, whole and projected, by our rules and by other libraries.

Everyone gets a copy of the same model and the same batch in float32 and hands back the same tensors: they are compared
with vmap's before the clock starts. A call is the whole work: forward pass, backward pass, and what is done with the
gradients. Ours projects as the gradients arrive; the others build them first, as they must.

The model is made so that as many as possible run: batch norms use their running statistics, since vmap cannot mix
examples; activations are not in place, for BackPACK; and what belongs to no layer (the ViT's positions) is frozen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks import timing
from benchmarks.tables.rows import latest, table
from sgoif.gradients import Capture, ExactSpace, Layer, LayerCapture, ProjectedSpace, select_layers, survey
from sgoif.gradients.functional import per_example_gradients
from sgoif.gradients.rules import WeightRule

Gradients = dict[str, Tensor]  # by parameter, or by layer where they are projected
Build = Callable[[], Gradients]

BATCH = 32  # whole gradients of 11 million parameters: 128 of them need 6 GB
TOLERANCE = 1e-4  # of the norm, of what float32 rounds differently
OURS = "sgoif"


def prepare(make: Callable[[], nn.Module]) -> nn.Module:
    """The same model at every call, in a form that the most libraries accept."""
    torch.manual_seed(0)
    model = make().train()  # opacus reads a module in training mode only
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()
        if isinstance(module, nn.ReLU):
            module.inplace = False
    bare = {name for item in survey(model).uncovered for name in item.parameters}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in bare)
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def build_ours(model: nn.Module, images: Tensor, labels: Tensor, rank: int | None = None) -> Build:
    """Our rules: every gradient built, or projected to a rank, the moment its layer's arrives."""
    layers = {layer.name: layer for layer in select_layers(model)}
    spaces = {name: ProjectedSpace(la, rank=rank) if rank else ExactSpace(la) for name, la in layers.items()}

    def build() -> Gradients:
        found: Gradients = {}

        def consume(call: LayerCapture) -> None:
            examples = spaces[call.layer].examples(call)
            found.update({call.layer: examples} if rank else layers[call.layer].tensors(examples))

        with Capture(layers.values(), consume=consume) as capture:
            capture.differentiate(F.cross_entropy(model(images), labels, reduction="sum"))
        return found

    return build


def build_vmap(model: nn.Module, images: Tensor, labels: Tensor) -> Build:
    return lambda: per_example_gradients(model, F.cross_entropy, images, labels)


def build_opacus(model: nn.Module, images: Tensor, labels: Tensor) -> Build:
    from opacus import GradSampleModule

    images = images.contiguous()  # of channels_last images it makes wrong gradients of convolutions
    wrapped = GradSampleModule(model, loss_reduction="sum")

    def build() -> Gradients:
        F.cross_entropy(wrapped(images), labels, reduction="sum").backward()
        found = {name: cast(Any, p).grad_sample for name, p in model.named_parameters() if p.requires_grad}
        wrapped.zero_grad()
        return found

    return build


def build_backpack(model: nn.Module, images: Tensor, labels: Tensor) -> Build:
    from backpack import backpack, extend
    from backpack.extensions import BatchGrad

    extended, loss = extend(model), extend(nn.CrossEntropyLoss(reduction="sum"))
    owners = {p: type(m).__name__ for m in model.modules() for p in m.parameters(recurse=False) if p.requires_grad}

    def build() -> Gradients:
        with backpack(BatchGrad()):
            loss(extended(images), labels).backward()
        lacking = sorted({owner for p, owner in owners.items() if not hasattr(p, "grad_batch")})
        if lacking:  # BackPACK warns, and leaves them out
            raise NotImplementedError(f"BackPACK has no extension for {', '.join(lacking)}")
        found = {name: cast(Any, p).grad_batch for name, p in model.named_parameters() if p.requires_grad}
        for parameter in model.parameters():
            parameter.grad = None
            parameter.__dict__.pop("grad_batch", None)
        return found

    return build


def project(build: Build, model: nn.Module, rank: int) -> Build:
    """Project what a library has built, weights and biases apart, so that neither is copied into a block."""
    spaces = [ProjectedSpace(layer, rank=rank) for layer in select_layers(model)]

    def projected() -> Gradients:
        found = build()
        return {space.layer.name: _project(space.layer, space.left, space.right, found) for space in spaces}

    return projected


def _project(layer: Layer, left: Tensor, right: Tensor, gradients: Mapping[str, Tensor]) -> Tensor:
    if not (isinstance(layer.rule, WeightRule) and layer.shape.has_bias):
        return left @ layer.block(gradients) @ right.mT
    weight, bias = (gradients[f"{layer.module_name}.{name}"] for name in ("weight", "bias"))
    folded = layer.rule.fold(layer.module, weight)
    return left @ folded @ right[..., :-1].mT + (left @ bias.view(*folded.shape[:-1], 1)) @ right[..., -1:].mT


PEERS: dict[str, Callable[[nn.Module, Tensor, Tensor], Build]] = {
    "vmap": build_vmap,
    "opacus": build_opacus,
    "BackPACK": build_backpack,
}


def compare(make: Callable[[], nn.Module], rank: int, blocks: int, batch: int = BATCH) -> dict[str, Any]:
    """Time everyone who runs against ours; who does not run is recorded with the reason."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(batch, 3, 32, 32, generator=generator).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(0, 10, (batch,), generator=generator)
    peers, refused = {}, {}
    for name, build in PEERS.items():
        model = prepare(make)
        try:
            peers[name] = build(model, images, labels)
            peers[name]()
        except Exception as error:  # a peer that does not run here is recorded, not hidden
            peers.pop(name, None)
            refused[name] = f"{type(error).__name__}: {str(error)[:200]}"
    model = prepare(make)
    whole = {OURS: build_ours(model, images, labels), **peers}
    small = {OURS: build_ours(model, images, labels, rank)}
    small |= {name: project(build, model, rank) for name, build in peers.items()}
    found = {
        "materialise": {"differences": measure_differences(whole), **time_builds(whole, blocks)},
        "project": {"differences": measure_differences(small), **time_builds(small, blocks)},
    }
    return {"peers": found, "refused": refused}


def measure_differences(builds: Mapping[str, Build]) -> dict[str, float]:
    """The largest relative difference of a tensor from vmap's; raises where it is not the same gradient."""
    truth, found = builds["vmap"](), {}
    for name, build in builds.items():
        own = build()
        if own.keys() != truth.keys():
            raise AssertionError(f"{name} has other tensors: {sorted(own.keys() ^ truth.keys())}")
        found[name] = max(float((own[key] - value).norm() / value.norm()) for key, value in truth.items())
        if not found[name] <= TOLERANCE:
            raise AssertionError(f"{name} differs from vmap by {found[name]:.1e} of the norm")
    return found


def time_builds(builds: Mapping[str, Build], blocks: int) -> dict[str, Any]:
    """Wall time in turns of one call each, relative to the first one, and the CPU time of the same calls."""
    cpu_s: dict[str, list[float]] = {name: [] for name in builds}

    def timed(name: str) -> Callable[[], None]:
        def step() -> None:
            begun = time.process_time()
            builds[name]()
            cpu_s[name].append(time.process_time() - begun)

        return step

    wall = timing.alternate({name: timed(name) for name in builds}, blocks=blocks, steps_per_block=1, warmup=0)
    rounds = np.stack([np.reshape(cpu_s[name], (-1, 2)).mean(1) for name in builds], 1)
    return {"wall": wall.summary(), "cpu": timing.Timings(tuple(builds), rounds).summary()}


def per_example() -> str:
    """Each library's time as a multiple of ours, and whether the fastest of them is slower than ours."""
    models = {"resnet18": "ResNet-18", "vit": "small ViT"}
    rows = []
    for run in latest("contraction.jsonl", key=lambda run: (run["settings"].get("part"), run["model"])):
        if "refused" not in run:
            continue
        for task, found in run["peers"].items():
            cpu, wall = found["cpu"], found["wall"]
            cells = [
                "does not run" if name in run["refused"] else f"{wall[name]['ratio']:.2f} / {cpu[name]['ratio']:.2f}"
                for name in PEERS
            ]
            fastest = min(part[name]["ratio"] for part in (wall, cpu) for name in part if name != OURS)
            verdict = "met" if fastest >= 1 else "**missed**"
            ours = f"{1e3 * wall[OURS]['median_s']:.0f} / {1e3 * cpu[OURS]['median_s']:.0f}"
            rows.append([f"{models[run['model']]}, {task}", ours, *cells, verdict])
    return table(("wall / CPU", "ours, ms", *(f"{name}, times ours" for name in PEERS), ""), rows)
