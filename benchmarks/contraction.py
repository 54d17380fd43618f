"""What per-example gradients cost beside a bare training step: ``python -m benchmarks.contraction``.

Every variant is a whole forward and backward pass of the same model on the same batch, with or without scoring inside
it; they alternate in one process and are reported as ratios to the bare one. Peers (vmap per-sample gradients,
opacus) run on the same model where they can: vmap needs a model that does not mix examples, opacus refuses BatchNorm.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks import timing
from benchmarks.models import ResNet18, SmallViT
from benchmarks.records import append_result
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
from sgoif.gradients.functional import per_example_gradients

MODELS: dict[str, Callable[[], nn.Module]] = {"resnet18": ResNet18, "vit": SmallViT}
BARS = {"capture alone": 1.03, "head + projected last block": 1.08, "one direction, all layers": 1.40}
MEMORY_BAR = 1.10
PEER_BATCH = 32  # whole per-sample gradients of 11 million parameters: 128 of them need 6 GB


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

    def scored(self, spaces: dict[str, Space], directions: dict[str, Tensor]) -> Callable[[], None]:
        """A step that contracts each layer's gradients with its direction the moment they arrive."""
        total = torch.zeros(len(self.labels))

        def consume(call: LayerCapture) -> None:
            total.add_(spaces[call.layer].dots(call, directions[call.layer])[:, 0])

        capture = Capture([space.layer for space in spaces.values()], consume=consume)
        capture.scale = float(len(self.labels))

        def step() -> None:
            total.zero_()
            with capture:
                self.forward_backward()

        return step

    def capture_alone(self) -> Callable[[], None]:
        capture = Capture(select_layers(self.model), consume=lambda call: None)

        def step() -> None:
            with capture:
                self.forward_backward()

        return step

    def variants(self) -> dict[str, Callable[[], None]]:
        everything = select_layers(self.model)
        exact = {layer.name: ExactSpace(layer) for layer in everything}
        projected: dict[str, Space] = {la.name: ProjectedSpace(la, rank=self.rank) for la in self.block}
        head: dict[str, Space] = {self.head.name: ExactSpace(self.head)}
        block: dict[str, Space] = {layer.name: ExactSpace(layer) for layer in self.block}
        return {
            "bare": self.forward_backward,
            "capture alone": self.capture_alone(),
            "one direction, head": self.scored(head, _directions(head)),
            "one direction, head + last block": self.scored(head | block, _directions(head | block)),
            "head + projected last block": self.scored(head | projected, _directions(head | projected)),
            "one direction, all layers": self.scored(dict(exact), _directions(dict(exact))),
            "projected, all layers": self._all_projected(everything),
        }

    def _all_projected(self, layers: tuple[Layer, ...]) -> Callable[[], None]:
        spaces: dict[str, Space] = {layer.name: ProjectedSpace(layer, rank=self.rank) for layer in layers}
        return self.scored(spaces, _directions(spaces))


def _directions(spaces: dict[str, Space]) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {name: torch.randn(1, *space.shape.dims, generator=generator) for name, space in spaces.items()}


def peers(name: str) -> dict[str, Callable[[], None]]:
    """The same gradients built by others, on a batch small enough to hold them, beside a bare step of that batch."""
    work = Workload(name, PEER_BATCH, bf16=False)
    variants: dict[str, Callable[[], None]] = {"bare": work.forward_backward}
    variants["one direction, all layers (ours)"] = work.variants()["one direction, all layers"]
    frozen_statistics = MODELS[name]().eval()  # vmap cannot follow train-mode BatchNorm

    def vmapped() -> None:
        per_example_gradients(frozen_statistics, F.cross_entropy, work.images, work.labels)

    variants["vmap per-sample gradients"] = vmapped
    try:
        from opacus import GradSampleModule

        twin = MODELS[name]().train()
        if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in twin.modules()):
            raise ValueError("opacus refuses BatchNorm")
        wrapped = GradSampleModule(twin, loss_reduction="mean")
        F.cross_entropy(wrapped(work.images), work.labels).backward()
        wrapped.zero_grad()

        def opacus_step() -> None:
            F.cross_entropy(wrapped(work.images), work.labels).backward()
            wrapped.zero_grad()

        variants["opacus GradSampleModule"] = opacus_step
    except Exception as error:  # a peer that does not run here is reported, not hidden
        print(f"  opacus does not run on {name}: {str(error).splitlines()[0]}", flush=True)
    return variants


def memory_probes(batch: int) -> dict[str, Callable[[], None]]:
    """Each does three steps of one variant in a process of its own."""

    def probe(name: str, bf16: bool, variant: str) -> Callable[[], None]:
        def run() -> None:
            torch.set_num_threads(1)
            step = Workload(name, batch, bf16).variants()[variant]
            for _ in range(3):
                step()

        return run

    return {
        f"{name}/{precision}/{variant}": probe(name, precision == "bf16", variant)
        for name in MODELS
        for precision in ("bf16", "fp32")
        for variant in ("bare", "head + projected last block", "one direction, all layers")
    }


def measure(
    name: str, precision: str, batch: int, blocks: int, steps: int, with_memory: bool, barred_only: bool = False
) -> dict[str, object]:
    work = Workload(name, batch, precision == "bf16")
    variants = {key: step for key, step in work.variants().items() if not barred_only or key in ("bare", *BARS)}
    timings = timing.alternate(variants, blocks=blocks, steps_per_block=steps, warmup=2)
    summary: dict[str, object] = {"model": name, "precision": precision, "batch": batch, "timing": timings.summary()}
    print(f"\n{name}, {precision}, batch {batch}, one thread; last block: {', '.join(la.name for la in work.block)}")
    print(f"  bare forward + backward {timings.median_s('bare') * 1e3:.0f} ms")
    for variant in timings.names[1:]:
        ratio = timings.ratio(variant)
        verdict = "" if variant not in BARS else f"  bar {BARS[variant]:.2f}: {_verdict(ratio.value, BARS[variant])}"
        print(f"  {variant:34s} {ratio}{verdict}", flush=True)
    if with_memory:
        peaks = {
            variant: timing.peak_rss_mb("benchmarks.contraction", f"{name}/{precision}/{variant}")
            for variant in ("bare", "head + projected last block", "one direction, all layers")
        }
        summary["peak_mb"] = peaks
        growth = peaks["head + projected last block"] / peaks["bare"]
        print(f"  peak memory: bare {peaks['bare']:.0f} MiB, head + projected last block {growth:.3f}x", end="")
        print(f"  bar {MEMORY_BAR:.2f}: {_verdict(growth, MEMORY_BAR)}", end="")
        print(f"; all layers {peaks['one direction, all layers'] / peaks['bare']:.3f}x", flush=True)
    return summary


def _verdict(value: float, bar: float) -> str:
    return "met" if value <= bar else "MISSED"


def measure_peers(name: str, blocks: int) -> dict[str, object]:
    variants = peers(name)
    timings = timing.alternate(variants, blocks=blocks, steps_per_block=1, warmup=1)
    print(f"\n{name}, fp32, batch {PEER_BATCH}, beside others' whole per-sample gradients")
    for variant in timings.names[1:]:
        print(f"  {variant:34s} {timings.ratio(variant)}", flush=True)
    return {"model": name, "precision": "fp32", "batch": PEER_BATCH, "peers": timings.summary()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=sorted(MODELS), default=sorted(MODELS))
    parser.add_argument("--precisions", nargs="+", choices=["bf16", "fp32"], default=["bf16", "fp32"])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--blocks", type=int, default=10, help="interleaved blocks per variant (even)")
    parser.add_argument("--steps", type=int, default=2, help="steps per block")
    parser.add_argument("--barred-only", action="store_true", help="only the variants that have a bar")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--json", action="store_true", help="print the results as one JSON line at the end")
    parser.add_argument("--save", metavar="FILE", help="append to a JSONL file under benchmarks/results")
    parser.add_argument("--probe", help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message=".*(hook|performance drop|batching rule).*")
    torch.set_num_threads(1)
    if options.probe:
        timing.run_probe(memory_probes(options.batch), ["--probe", options.probe])
        return
    results = [
        measure(
            name,
            precision,
            options.batch,
            options.blocks,
            options.steps,
            not options.no_memory,
            options.barred_only,
        )
        for name in options.models
        for precision in options.precisions
    ]
    if not options.no_peers:
        results += [measure_peers(name, blocks=4) for name in options.models]
    if options.save:
        for result in results:
            settings = {"blocks": options.blocks, "steps": options.steps, "rank": 16}
            append_result(options.save, {"benchmark": "contraction", "settings": settings, "seed": 0, **result})
    if options.json:
        print(json.dumps(results))


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


if __name__ == "__main__":
    main()
