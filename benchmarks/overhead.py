"""What the monitor costs: whole training steps with the monitor over bare ones, and how its memory grows.

``cost``: whole training steps (forward, backward, optimiser) with the monitor at its defaults, over the bare PyTorch
loop, on one thread, in blocks of whole refresh periods whose single steps take turns, so that every kind of step is in
the ratio and a busy neighbour falls on both alike. Beside wall time stands the CPU time of the process, which a
neighbour disturbs less. What the hold-out's judging of its own labels takes is measured apart and added. There are 20
hold-out examples of each class, at least 1,000. Launches are operators of the monitor, views left out, on average over
two refresh periods. Then the peak memory of both loops, each in a process of its own; a monitor has seen its hold-out
by then (the first part of a very large one) and judged it. Both processes hold the hold-out: it is the user's, watched
or not.

``governed``: a training of some hundred steps from its first step on, with the governor free to change the plan, and
its promise: time of all watched steps over as many bare ones in turn. The monitor's clock stands still in bare steps.

``python``: what a step between refreshes and observations takes beside its arithmetic: the processor time that the
monitor adds to a step of a model so small that there is next to none.

``ids``: a small model and 1,000,000 distinct ids, pass after pass. Evidence grows with the ids that were seen, so
resident memory may grow during the first pass and must be flat from then on, but for the votes: an example that is
suggested a class it was not suggested before takes 16 bytes more.

``ddp`` is an experiment of its own: some processes of one thread each, joined by gloo. In each of them a bare and a
watched copy of the model train in turn, so that a drift of the machine falls on both alike; the time is that of rank 0,
which waits for the others in every step. Bytes are those of the buffers that the monitor exchanged, over those of the
gradients that DDP reduced in the same steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import Dataset

import sgoif
from benchmarks import timing
from benchmarks.context import CONTEXT
from benchmarks.experiment import Experiment, option
from benchmarks.models import ResNet9, ResNet18, SmallViT
from benchmarks.tables.rows import Run, latest, table
from sgoif.overhead import BenchLoop
from sgoif.training.clock import Clock, StepTimer
from sgoif.training.holdout_scores import FIRST_CLEAN

MODELS: dict[str, Callable[..., nn.Module]] = {
    "resnet9": ResNet9,
    "resnet18": ResNet18,
    "resnet18-2048": partial(ResNet18, pooled=(2, 2)),
    "resnet18-4096": partial(ResNet18, pooled=(2, 4)),
    "vit": SmallViT,
}
TIME_BAR, MANY_BAR, MEMORY_BAR, BATCH = 1.05, 1.10, 1.10, 128  # many: above 1,000 classes
PER_CLASS = 20  # held out, and at least 1,000 in all
NUM_IDS, IDS_PER_STEP = 10**6, 5000
PLAN = sgoif.Plan(early_steps=0)
WARMUP = 3  # steps
_MOST_LOOKS = 100  # before memory is measured
MODEL_NAMES = {"resnet9": "ResNet-9", "resnet18": "ResNet-18"}
MODEL_NAMES |= {f"resnet18-{inputs}": f"ResNet-18 with {inputs:,} inputs of the head" for inputs in (2048, 4096)}
MODEL_NAMES |= {"vit": "small ViT"}
_NO_LAUNCH = {"detach", "alias", "_unsafe_view"}  # beside views and uninitialised memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One model, or the ids."""

    part: Literal["cost", "governed", "python", "ids"] = "cost"
    model: str = option("resnet9", MODELS)
    classes: int = 10
    precision: Literal["fp32", "bf16"] = "fp32"
    blocks: int = option(6, help="of a refresh period per variant: even, or 1 where a step takes long")
    memory: bool = option(True, help="measure the peak memory too")
    promise: float = option(sgoif.Budget().max_overhead, help="max_overhead of the governed part")
    steps: int = option(600, help="of the governed part, each kind")
    passes: int = option(4, help="over the ids")


class HeldOut(Dataset[Any]):
    """A few pictures read over and over, as a hold-out of any size without its memory."""

    def __init__(self, pictures: Tensor, num_classes: int) -> None:
        self._pictures = pictures.unbind()  # what reading a picture takes is the user's, and no operator of the monitor
        self.targets = torch.arange(max(1000, PER_CLASS * num_classes)) % num_classes
        self._num_classes = num_classes

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self._pictures[index % len(self._pictures)], index % self._num_classes


def workload(name: str, classes: int) -> tuple[nn.Module, tuple[Tensor, Tensor], HeldOut]:
    """A model, a batch and a hold-out of random pictures; time does not depend on what they show."""
    torch.manual_seed(0)
    model = MODELS[name](num_classes=classes)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = torch.randn(BATCH, 3, 32, 32)
    batch = images.contiguous(memory_format=torch.channels_last), torch.randint(0, classes, (BATCH,))
    return model, tuple(part.to(CONTEXT.device) for part in batch), HeldOut(images, classes)  # type: ignore[return-value]


def measure(settings: Settings) -> dict[str, Any]:
    if settings.part == "ids":
        return measure_ids(settings.passes)
    if settings.part == "python":
        return measure_python()
    if settings.part == "governed":
        return measure_governed(settings)
    loops = {name: make_loop(settings, name) for name in ("bare", "watched")}
    row = {"model": settings.model, "classes": settings.classes, "precision": settings.precision, "batch": BATCH}
    row |= time_loops(loops, settings.blocks)
    row["cleaning_s"] = time_cleaning(loops["watched"].monitor)
    row["launches"] = count_launches(loops["watched"].monitor.engine.head.shape.inputs, settings.classes)
    loops["watched"].check()
    if settings.memory:
        memory = {name: timing.raised_memory_mb(probe, settings, name) for name in loops}
        row |= {f"{kind}_mb": {name: found[kind] for name, found in memory.items()} for kind in ("peak", "mapped")}
    return row


def make_loop(settings: Settings, name: str, **arguments: Any) -> BenchLoop:
    model, batch, anchors = workload(settings.model, settings.classes)
    autocast = torch.bfloat16 if settings.precision == "bf16" else None
    return BenchLoop(model, batch, anchors=anchors, is_watched=name == "watched", autocast=autocast, **arguments)


class _PausedClock:
    """Seconds that pass outside of bare steps."""

    def __init__(self) -> None:
        self._left_out = 0.0

    def now(self) -> float:
        return time.perf_counter() - self._left_out

    @contextmanager
    def pause(self) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        self._left_out += time.perf_counter() - begun


def measure_governed(settings: Settings) -> dict[str, Any]:
    """Wall and CPU seconds of watched and bare steps in turn, and the plan in the end."""
    budget = sgoif.Budget(max_overhead=settings.promise, keep_visits="none")
    loops = {name: make_loop(settings, name, budget=budget) for name in ("bare", "watched")}
    governor, clock = loops["watched"].monitor.governor, _PausedClock()
    governor.timer = StepTimer(Clock(now=clock.now))
    wall_s, cpu_s = dict.fromkeys(loops, 0.0), dict.fromkeys(loops, 0.0)
    num_scored = 0
    for step in range(-WARMUP, settings.steps):
        for name, loop in loops.items():
            around = clock.pause() if name == "bare" else nullcontext()
            with around:
                begun, begun_cpu = time.perf_counter(), time.process_time()
                loop.step()
                if step >= 0:
                    wall_s[name] += time.perf_counter() - begun
                    cpu_s[name] += time.process_time() - begun_cpu
        num_scored += step >= 0 and governor.plan.is_scored(step + WARMUP)
    loops["watched"].check()
    return {
        **{name: getattr(settings, name) for name in ("part", "model", "classes", "precision", "promise", "steps")},
        "batch": BATCH,
        "bare_ms": 1e3 * wall_s["bare"] / settings.steps,
        "ratio": wall_s["watched"] / wall_s["bare"],
        "cpu_governed": cpu_s["watched"] / cpu_s["bare"],
        "told": governor.overhead,
        "plan": asdict(governor.plan),
        "changes": governor.changes,
        "scored_share": num_scored / settings.steps,
    }


def time_loops(loops: Mapping[str, BenchLoop], blocks: int) -> dict[str, Any]:
    """Wall time in turns of one step, and the CPU time of the same steps."""
    cpu_s = dict.fromkeys(loops, 0.0)

    def timed(name: str) -> Callable[[], None]:
        def step() -> None:
            begun = time.process_time()
            loops[name].step()
            cpu_s[name] += time.process_time() - begun

        return step

    steps = {name: timed(name) for name in loops}
    for step in steps.values():
        for _ in range(WARMUP):
            step()
    cpu_s.update(dict.fromkeys(loops, 0.0))
    period = PLAN.refresh_every if blocks > 1 else PLAN.refresh_every // 2  # a round has two blocks
    timings = timing.alternate(steps, blocks=max(2, blocks), steps_per_block=period, warmup=0, turn=1)
    return {"timing": timings.summary(), "cpu_ratio": cpu_s["watched"] / cpu_s["bare"]}


def time_cleaning(monitor: Any) -> float:
    """CPU seconds a step in which a hold-out with labels as given judges them, as often as it does at first.

    That happens so rarely that no step of those that were timed may have it.
    """
    if not monitor.holdout_scores.is_on:
        return 0.0
    for _ in range(FIRST_CLEAN):  # so that it has seen as many of its examples
        monitor._refresh(monitor.step_count)
    begun = time.process_time()
    monitor.holdout_scores.clean(monitor.engine)
    return (time.process_time() - begun) / (FIRST_CLEAN * PLAN.refresh_every)


class _Launches(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._overloadpacket.__name__
        self.count += not (func.is_view or "empty" in name or name in _NO_LAUNCH)
        return func(*args, **(kwargs or {}))


def count_launches(inputs: int, classes: int) -> float:
    """Operators that the monitor adds to a step, views left out, on average over two refresh periods.

    They do not depend on the network before the head, so there is none here.
    """
    images, labels = torch.randn(BATCH, inputs), torch.randint(0, classes, (BATCH,))
    counts = []
    for is_watched in (False, True):
        anchors = HeldOut(images, classes)
        loop = BenchLoop(
            nn.Sequential(nn.Linear(inputs, classes)), (images, labels), anchors=anchors, is_watched=is_watched
        )
        for _ in range(PLAN.refresh_every + 1):
            loop.step()
        with _Launches() as launches:
            for _ in range(2 * PLAN.refresh_every):
                loop.step()
        counts.append(launches.count / (2 * PLAN.refresh_every))
    return counts[1] - counts[0]


def probe(settings: Settings, name: str) -> None:
    """A few steps of one loop, over a refresh: what raises the peak memory of a fresh process.

    A monitor keeps something of every hold-out example that it has seen, so it looks at all of them first.
    """
    loop = make_loop(settings, name)
    loop.step()
    if loop.monitor is not None:
        passes = -(-len(loop.monitor.engine.holdout) // PLAN.examples_per_refresh)
        for _ in range(max(FIRST_CLEAN, min(_MOST_LOOKS, passes))):
            loop.monitor._refresh(loop.monitor.step_count)
    for _ in range(PLAN.refresh_every + 1):
        loop.step()
    loop.check()


def measure_python(periods: int = 10) -> dict[str, Any]:
    """Medians over the plain steps of some refresh periods, bare and watched ones in turn."""
    torch.manual_seed(0)
    images, labels, taken = torch.randn(4, 8), torch.randint(0, 10, (4,)), dict[str, list[float]]()
    loops = {
        name: BenchLoop(nn.Linear(8, 10), (images, labels), anchors=HeldOut(images, 10), is_watched=name == "watched")
        for name in ("bare", "watched")
    }
    for step in range((periods + 1) * PLAN.refresh_every):
        for name, loop in loops.items():
            begun = time.process_time()
            loop.step()
            if step >= PLAN.refresh_every and not PLAN.is_refresh(step) and not PLAN.is_observe(step):
                taken.setdefault(name, []).append(1e3 * (time.process_time() - begun))
    loops["watched"].check()
    bare, watched = (median(taken[name]) for name in ("bare", "watched"))
    return {"part": "python", "bare_ms": bare, "added_ms": watched - bare, "num_steps": len(taken["bare"])}


def measure_ids(passes: int, num_ids: int = NUM_IDS) -> dict[str, Any]:
    """Resident memory after each pass over as many ids, in MiB."""
    torch.manual_seed(0)
    model, classes = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 10)), 10
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    anchors = torch.randn(1000, 8), torch.arange(1000) % classes
    budget = sgoif.Budget(plan=PLAN, keep_visits="none")
    monitor = sgoif.watch(model, optimizer, anchors=anchors, train_size=num_ids, trusted=True, budget=budget)
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
        resident.append(timing.resident_mb())
    growth = max(resident[1:]) / resident[0]  # 1.02 at most is flat
    return {"part": "ids", "num_ids": num_ids, "resident_mb": resident, "growth": growth}


def describe(row: Run) -> str:
    if "added_ms" in row:
        return f"{row['added_ms']:.2f} ms are added to a plain step of {row['bare_ms']:.2f} ms"
    if "told" in row:
        known = f"{row['ratio']:.3f}x, CPU {row['cpu_governed']:.3f}x, told {1 + row['told']:.3f}x"
        plan = (
            f"{row['scored_share']:.0%} of the steps scored, refreshes every {row['plan']['refresh_every']} in the end"
        )
        return f"{row['model']}, {row['classes']} classes, promise {row['promise']:g}: {known}; {plan}"
    if "growth" in row:
        return f"{row['num_ids']:,} ids, resident memory {row['growth']:.4f}x after the first pass"
    memory = f", peak memory {memory_ratio(row):.3f}x" if "peak_mb" in row else ""
    memory += f", allocated {allocated:.3f}x" if (allocated := allocated_ratio(row)) else ""
    ratios = f"{time_ratio(row):.3f}x, {cleaning_share(row):.3f} of it cleaning, CPU {row['cpu_ratio']:.3f}x"
    ratios += f", {row['launches']:.0f} launches"
    return f"{row['model']}, {row['classes']} classes, {row['precision']}: {ratios}{memory}"


def time_ratio(run: Run) -> float:
    """Watched steps over bare ones, with what the hold-out's cleaning of itself takes."""
    return float(run["timing"]["watched"]["ratio"] + cleaning_share(run))


def cleaning_share(run: Run) -> float:
    """What that adds; rows from before have none."""
    return float(run.get("cleaning_s", 0.0) / run["timing"]["bare"]["median_s"])


def memory_ratio(run: Run) -> float | None:
    peak = run.get("peak_mb")
    return peak["watched"] / peak["bare"] if peak else None


def allocated_ratio(run: Run) -> float | None:
    """The same without code of libraries that is used for the first time."""
    if "mapped_mb" not in run:
        return None
    allocated = {name: peak - run["mapped_mb"][name] for name, peak in run["peak_mb"].items()}
    return allocated["watched"] / allocated["bare"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSettings:
    """One world of ranks."""

    model: str = option("resnet18", MODELS)
    batch: int = option(64, help="of each rank")
    ranks: int = 2
    blocks: int = option(4, help="of a refresh period each, per variant (even)")


class RankLoop:
    """One rank's training on a batch of its own, watched or not."""

    def __init__(self, name: str, batch: int, is_watched: bool) -> None:
        model, (images, labels), anchors = workload(name, classes=10)
        rank = dist.get_rank()
        self.images, self.labels = images.roll(rank, 0)[:batch], labels.roll(rank, 0)[:batch]
        self.wrapped = DistributedDataParallel(model.train())
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        self.ids = torch.arange(batch) + rank * batch
        self.num_steps = 0
        budget = sgoif.Budget(plan=PLAN, keep_visits="none")
        self.monitor: Any = None
        if is_watched:
            self.monitor = sgoif.watch(self.wrapped, self.optimizer, anchors=anchors, train_size=50_000, budget=budget)
        self.gradient_bytes = sum(p.nbytes for p in model.parameters() if p.requires_grad)

    def step(self) -> None:
        around: AbstractContextManager[Any] = nullcontext()
        if self.monitor is not None:
            around = self.monitor.step(self.ids, self.labels)
        with around:
            with torch.autocast("cpu", torch.bfloat16):
                outputs = self.wrapped(self.images)
            F.cross_entropy(outputs.float(), self.labels).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.num_steps += 1


def measure_ranks(settings: RankSettings) -> dict[str, Any]:
    return timing.run_ranks(settings.ranks, time_rank, settings.model, settings.batch, settings.blocks)


def time_rank(name: str, batch: int, blocks: int) -> dict[str, Any]:
    """What this rank sees of a bare and a watched training in turn."""
    bare, watched = RankLoop(name, batch, False), RankLoop(name, batch, True)
    steps = {"bare": bare.step, "watched": watched.step}
    timings = timing.alternate(steps, blocks=blocks, steps_per_block=PLAN.refresh_every, turn=1)
    assert watched.monitor.is_on and watched.monitor.faults == {}, watched.monitor.faults
    share = watched.monitor.peers.num_bytes / watched.num_steps / watched.gradient_bytes
    return {"bytes_share": share, "timing": timings.summary()}


def describe_ranks(row: Run) -> str:
    ratio, share = row["timing"]["watched"]["ratio"], row["bytes_share"]
    return f"watched {ratio:.3f}x (bar 1.12), bytes {share:.2%} of DDP's own (bar 2%)"


def cost_rows() -> list[Run]:
    """The last measurement of each model, precision and number of classes, in that order."""
    key = ("model", "classes", "precision")  # governed trainings have the same
    found = latest("overhead.jsonl", key=lambda run: (*map(run.get, key), "cpu_ratio" in run))
    models = list(MODEL_NAMES)
    rows = [run for run in found if "cpu_ratio" in run]
    return sorted(rows, key=lambda run: (models.index(run["model"]), run["precision"] != "fp32", run["classes"]))


def overhead() -> str:
    """Ratio of medians with its interval, and of peak memory, each held against its bar."""
    rows = []
    for run in cost_rows():
        took, memory = run["timing"]["watched"], memory_ratio(run)
        low, high = (took[end] + cleaning_share(run) for end in ("ratio_low", "ratio_high"))
        ends = f" [{low:.3f}, {high:.3f}]" if low < high else ""
        bar = MANY_BAR if run["classes"] > 1000 else TIME_BAR
        cost = f"{time_ratio(run):.3f}{ends} {_verdict(time_ratio(run), bar)}"
        allocated = allocated_ratio(run)
        cells = [f"{value:.3f} {_verdict(value, MEMORY_BAR)}" if value else "" for value in (memory, allocated)]
        bare = f"{1e3 * run['timing']['bare']['median_s']:.0f}"
        name = f"{MODEL_NAMES[run['model']]}, {run['classes']:,}, {run['precision']}"
        rows.append(
            [name, bare, cost, f"{run['cpu_ratio'] + cleaning_share(run):.3f}", f"{run['launches']:.0f}", *cells]
        )
    memory_names = ("peak memory", "allocated alone")
    return table(("model, classes", "bare step, ms", "time", "CPU time", "launches a step", *memory_names), rows)


def governed() -> str:
    """Trainings whose plan the governor chose, against what it promised."""
    key = ("model", "classes", "precision", "promise")
    found = [
        run
        for run in latest("overhead.jsonl", key=lambda run: tuple(run.get(name) for name in (*key, "part")))
        if run.get("part") == "governed"
    ]
    rows = []
    for run in sorted(found, key=lambda run: (list(MODEL_NAMES).index(run["model"]), run["classes"], run["promise"])):
        plan = run["plan"]
        stays = f"{run['scored_share']:.0%} of the steps scored, a refresh every {plan['refresh_every']} at the end"
        name = f"{MODEL_NAMES[run['model']]}, {run['classes']:,}, {run['precision']}"
        verdict = _verdict(run["cpu_governed"], 1 + run["promise"])
        told = f"{1 + run['told']:.3f}"
        cells = [f"{run['bare_ms']:.0f}", f"{run['ratio']:.3f}", f"{run['cpu_governed']:.3f} {verdict}", told, stays]
        rows.append([name, f"{run['promise']:g}", *cells])
    heads = ("model, classes", "`max_overhead`", "bare step, ms", "time", "CPU time", "as the run tells it", "plan")
    return table(heads, rows)


def _verdict(value: float, bar: float) -> str:
    return "met" if value <= bar else "missed"


OVERHEAD = Experiment(
    name="overhead",
    settings=Settings,
    run=measure,
    describe=describe,
    tables={"overhead": overhead, "governed": governed},
    full=[
        {"part": "ids"},
        {"part": "python"},
        {"part": "governed", "classes": [1000, 10_000]},
        {"part": "governed", "classes": 1000, "promise": 0.05},
        {"classes": [10, 100, 1000, 10_000], "precision": ["fp32", "bf16"]},
        {"model": ["resnet18", "vit"], "precision": ["fp32", "bf16"], "classes": [10, 1000], "blocks": 2},
        {"model": ["resnet18-2048", "resnet18-4096"], "precision": "bf16", "blocks": 2},
    ],
    small={"blocks": 2, "memory": False},
)
DDP = Experiment(name="ddp", settings=RankSettings, run=measure_ranks, describe=describe_ranks)
