"""What the monitor costs: ``python -m benchmarks.overhead``, last line ``overhead_ratio X``.

``--part cost``: whole training steps (forward, backward, optimiser) with the monitor at its defaults, over the bare
PyTorch loop, by :func:`sgoif.bench` on one thread; then the peak memory of both, each in a process of its own. Both
processes hold the hold-out: it is the user's, watched or not.

``--part ids``: a small model and 1,000,000 distinct ids, pass after pass. Evidence grows with the ids that were seen,
so resident memory may grow during the first pass and must be flat from then on, but for the votes: an example that is
suggested a class it was not suggested before takes 16 bytes more.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sgoif
from benchmarks import timing
from benchmarks.models import ResNet9, ResNet18, SmallViT
from benchmarks.records import append_result
from sgoif.overhead import BenchLoop, bench

MODELS: dict[str, Callable[[int], nn.Module]] = {
    "resnet9": lambda classes: ResNet9(num_classes=classes),
    "resnet18": lambda classes: ResNet18(num_classes=classes),
    "vit": lambda classes: SmallViT(num_classes=classes),
}
BAR, MEMORY_BAR, BATCH = 1.10, 1.15, 250
FLAT = 1.02  # growth of the resident memory over the passes after the first
NUM_IDS, IDS_PER_STEP = 10**6, 5000


def workload(name: str, classes: int) -> tuple[nn.Module, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """A model, a batch and a hold-out of random pictures; time does not depend on what they show."""
    torch.manual_seed(0)
    model = MODELS[name](classes)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = torch.randn(BATCH, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    held = max(1000, 2 * classes)
    batch = images, torch.randint(0, classes, (BATCH,))
    return model, batch, (torch.randn(held, 3, 32, 32), torch.arange(held) % classes)


def measure(name: str, classes: int, blocks: int, with_memory: bool) -> dict[str, object]:
    model, batch, anchors = workload(name, classes)
    found = bench(model, batch, anchors=anchors, autocast=torch.bfloat16, blocks=blocks)
    print(f"{name}, {classes} classes, batch {BATCH}: {found}  bar {BAR:.2f}: {_verdict(found.ratio, BAR)}", flush=True)
    result: dict[str, object] = {
        "model": name,
        "classes": classes,
        "batch": BATCH,
        "timing": found.timings.summary(),
    }
    if with_memory:
        peaks = {v: timing.peak_rss_mb("benchmarks.overhead", f"{name}/{classes}/{v}") for v in ("bare", "watched")}
        growth = peaks["watched"] / peaks["bare"]
        result["peak_mb"] = peaks
        print(f"  peak memory {peaks['bare']:.0f} -> {peaks['watched']:.0f} MiB, {growth:.3f}x", end="")
        print(f"  bar {MEMORY_BAR:.2f}: {_verdict(growth, MEMORY_BAR)}", flush=True)
    return result


def _verdict(value: float, bar: float) -> str:
    return "met" if value <= bar else "MISSED"


def probes(steps: int = 22) -> dict[str, Callable[[], None]]:
    """A few steps of one loop, over a refresh: what raises the peak memory of a fresh process."""

    def probe(name: str, classes: int, is_watched: bool) -> Callable[[], None]:
        def run() -> None:
            model, batch, anchors = workload(name, classes)
            loop = BenchLoop(model, batch, anchors=anchors, is_watched=is_watched, autocast=torch.bfloat16)
            for _ in range(steps):
                loop.step()
            loop.check()

        return run

    return {
        f"{name}/{classes}/{'watched' if is_watched else 'bare'}": probe(name, classes, is_watched)
        for name in MODELS
        for classes in (10, 100, 1000)
        for is_watched in (False, True)
    }


def measure_ids(passes: int, num_ids: int = NUM_IDS) -> dict[str, object]:
    """Resident memory after each pass over as many ids, in MiB."""
    torch.manual_seed(0)
    model, classes = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 10)), 10
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    anchors = torch.randn(1000, 8), torch.arange(1000) % classes
    monitor = sgoif.watch(
        model,
        optimizer,
        anchors=anchors,
        train_size=num_ids,
        trusted=True,
        budget=sgoif.Budget(plan=sgoif.Plan(), keep_visits="none"),
    )
    resident = []
    for _ in range(passes):
        for start in range(0, num_ids, IDS_PER_STEP):
            # an id is the same example at every pass; with new ones it would be suggested new classes each time
            generator = torch.Generator().manual_seed(start)
            inputs = torch.randn(IDS_PER_STEP, 8, generator=generator)
            labels = torch.randint(0, classes, (IDS_PER_STEP,), generator=generator)
            with monitor.step(torch.arange(start, start + IDS_PER_STEP), labels):
                F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
        assert monitor.counters["faults"] == 0
        resident.append(_resident_mb())
        print(f"  pass {len(resident)}: {resident[-1]:.0f} MiB resident", flush=True)
    growth = max(resident[1:]) / resident[0]
    print(f"{num_ids:,} ids: {growth:.4f}x after the first pass  bar {FLAT:.2f}: {_verdict(growth, FLAT)}", flush=True)
    return {"part": "ids", "num_ids": num_ids, "resident_mb": resident, "growth": growth}


def _resident_mb() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("the resident memory is read from /proc/self/status, which this system does not have.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=["all", "cost", "ids"], default="all")
    parser.add_argument("--models", nargs="+", choices=sorted(MODELS), default=sorted(MODELS))
    parser.add_argument("--classes", nargs="+", type=int, default=[10, 100, 1000])
    parser.add_argument("--blocks", type=int, default=6, help="interleaved blocks of 20 steps per variant (even)")
    parser.add_argument("--passes", type=int, default=4, help="over the ids")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--save", metavar="FILE")
    parser.add_argument("--probe", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.probe:
        timing.run_probe(probes(), ["--probe", options.probe])
        return
    ids = [measure_ids(options.passes)] if options.part != "cost" else []
    costs = []
    for name in options.models if options.part != "ids" else []:
        for classes in options.classes if name == "resnet9" else options.classes[:1]:
            costs.append(measure(name, classes, options.blocks, not options.no_memory))
    if options.save:
        for result in (*ids, *costs):
            append_result(
                options.save, {"benchmark": "overhead", "settings": {"blocks": options.blocks}, "seed": 0, **result}
            )
    if options.json:
        print(json.dumps([*ids, *costs]))
    if costs:
        worst = max(result["timing"]["watched"]["ratio"] for result in costs)  # type: ignore[index]
        print(f"overhead_ratio {worst:.3f}")


if __name__ == "__main__":
    main()
