"""What the monitor costs: ``python -m benchmarks.overhead``, last line ``overhead_ratio X``.

Whole training steps (forward, backward, optimiser) with the monitor at its defaults, over the bare PyTorch loop, in
alternating blocks of one process, one thread. A block spans whole refresh periods, so that every cost is in it. The
two loops train twins of one model on the same batches.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

import sgoif
from benchmarks import timing
from benchmarks.models import ResNet9, ResNet18, SmallViT
from benchmarks.records import append_result

MODELS: dict[str, Callable[[int], nn.Module]] = {
    "resnet9": lambda classes: ResNet9(num_classes=classes),
    "resnet18": lambda classes: ResNet18(num_classes=classes),
    "vit": lambda classes: SmallViT(num_classes=classes),
}
BAR, MEMORY_BAR, BATCH = 1.10, 1.15, 250


class Loop:
    """A training loop on fixed random batches, watched or bare; timing does not depend on what the pictures show."""

    def __init__(self, name: str, classes: int, *, watched: bool, batch: int = BATCH, bf16: bool = True) -> None:
        torch.manual_seed(0)
        self.model = MODELS[name](classes).train()
        self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)
        self.images = torch.randn(batch, 3, 32, 32).contiguous(memory_format=torch.channels_last)
        self.labels = torch.randint(0, classes, (batch,))
        self.ids, self.bf16, self.step_count = torch.arange(batch), bf16, 0
        self.monitor = None
        if watched:
            held = max(1000, 2 * classes)
            anchors = (torch.randn(held, 3, 32, 32), torch.arange(held) % classes)
            self.monitor = sgoif.watch(
                self.model, self.optimizer, anchors=anchors, train_size=50_000, plan=sgoif.Plan(), keep_visits=False
            )

    def step(self) -> None:
        if self.monitor is None:
            self._forward_backward()
        else:
            ids = self.ids + BATCH * (self.step_count % 200)  # 50,000 examples in all
            with self.monitor.step(ids, self.labels):
                self._forward_backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step_count += 1

    def _forward_backward(self) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
            logits = self.model(self.images)
        F.cross_entropy(logits.float(), self.labels).backward()


def measure(name: str, classes: int, blocks: int, with_memory: bool) -> dict[str, object]:
    bare, watched = Loop(name, classes, watched=False), Loop(name, classes, watched=True)
    variants = {"bare": bare.step, "watched": watched.step}
    timings = timing.alternate(variants, blocks=blocks, steps_per_block=20, warmup=5)
    ratio = timings.ratio("watched")
    assert watched.monitor is not None
    counters = watched.monitor.counters  # type: ignore[union-attr]
    assert counters["faults"] == 0, watched.monitor.faults  # type: ignore[union-attr]
    print(
        f"{name}, {classes} classes, batch {BATCH}: bare step {timings.median_s('bare') * 1e3:.0f} ms, watched {ratio}",
        end="",
    )
    print(f"  bar {BAR:.2f}: {'met' if ratio.value <= BAR else 'MISSED'}", flush=True)
    result: dict[str, object] = {"model": name, "classes": classes, "batch": BATCH, "timing": timings.summary()}
    if with_memory:
        peaks = {v: timing.peak_rss_mb("benchmarks.overhead", f"{name}/{classes}/{v}") for v in variants}
        growth = peaks["watched"] / peaks["bare"]
        result["peak_mb"] = peaks
        print(f"  peak memory {peaks['bare']:.0f} -> {peaks['watched']:.0f} MiB, {growth:.3f}x", end="")
        print(f"  bar {MEMORY_BAR:.2f}: {'met' if growth <= MEMORY_BAR else 'MISSED'}", flush=True)
    return result


def probes() -> dict[str, Callable[[], None]]:
    def probe(name: str, classes: int, watched: bool) -> Callable[[], None]:
        def run() -> None:
            loop = Loop(name, classes, watched=watched)
            for _ in range(22):
                loop.step()

        return run

    return {
        f"{name}/{classes}/{'watched' if watched else 'bare'}": probe(name, classes, watched)
        for name in MODELS
        for classes in (10, 100, 1000)
        for watched in (False, True)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=sorted(MODELS), default=sorted(MODELS))
    parser.add_argument("--classes", nargs="+", type=int, default=[10, 100, 1000])
    parser.add_argument("--blocks", type=int, default=6, help="interleaved blocks of 20 steps per variant (even)")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--save", metavar="FILE")
    parser.add_argument("--probe", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.probe:
        timing.run_probe(probes(), ["--probe", options.probe])
        return
    results = []
    for name in options.models:
        for classes in options.classes if name == "resnet9" else options.classes[:1]:
            results.append(measure(name, classes, options.blocks, not options.no_memory))
    if options.save:
        for result in results:
            append_result(
                options.save, {"benchmark": "overhead", "settings": {"blocks": options.blocks}, "seed": 0, **result}
            )
    if options.json:
        print(json.dumps(results))
    worst = max(result["timing"]["watched"]["ratio"] for result in results)  # type: ignore[index]
    print(f"overhead_ratio {worst:.3f}")


if __name__ == "__main__":
    main()
