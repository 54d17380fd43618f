"""A training that this machine cannot run: ViT-L/16 at 224 pixels over 2 x 10^9 pictures, each seen once.

Parameters and operations are counted on the meta device, exchanges by declared ranks, the monitor's work by
:mod:`benchmarks.scale.price`, rates of store and scoring are rows that were measured; speeds, prices and the rest are
assumptions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cache
from math import ceil
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.context import CONTEXT
from benchmarks.experiment import Experiment, option
from benchmarks.models import SmallViT
from benchmarks.records import read_results
from benchmarks.scale.price import Price, Sizes, price
from benchmarks.scale.ranks import exchanges_of
from benchmarks.tables.rows import Run, latest, table
from benchmarks.work import Speed, Work, count_work
from sgoif.curvature import create
from sgoif.records import BlockShape
from sgoif.training.engine import MANY_CLASSES
from sgoif.training.holdout_scores import MOST_CLASSES
from sgoif.training.schedule import Plan

_PART_BYTES = 64 << 20  # of the sink
_GROUPS = 32  # row groups of a part
_WIDTH = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """What is taken as given: a machine, a network, prices, a run. Nobody measured these here."""

    pictures: float = option(2e9, help="pictures, each seen once")
    model_tflops: float = option(400, help="TFLOP/s that the training sustains, bf16 (an H100 has 989 at most)")
    monitor_tflops: float = option(30, help="TFLOP/s of the monitor's float32 products (67 at most)")
    memory_tb_s: float = option(2.0, help="TB/s of device memory, sustained (3.35 at most)")
    launches_per_s: float = option(
        3e5, help="tiny operators that the host starts in a second, without Python around them"
    )
    network_gbit_s: float = option(10, help="Gbit/s of a rank between hosts, through the host's memory")
    message_us: float = option(30, help="microseconds of a message from one host's gloo to another's")
    gpu_hour_usd: float = option(2.5, help="price of a GPU hour")
    core_hour_usd: float = option(0.05, help="price of a core hour")
    stored_gb_usd: float = option(0.023, help="price of a stored GB, per month")
    puts_1000_usd: float = option(0.005, help="price of 1,000 writes or listings")
    gets_1000_usd: float = option(0.0004, help="price of 1,000 reads")
    request_ms: float = option(
        30, help="milliseconds of a request; 16 footers are read at once, 1,000 names are listed"
    )
    checkpoint_minutes: float = option(
        60, help="minutes between two checkpoints, each of which closes a part on every rank"
    )
    held_per_class: float = option(20, help="hold-out examples per class, 50,000 in all at most, 2 per class at least")

    @property
    def model_speed(self) -> Speed:
        """A sustained rate has everything in it."""
        return Speed(1e12 * self.model_tflops, float("inf"), float("inf"))

    @property
    def monitor_speed(self) -> Speed:
        return Speed(1e12 * self.monitor_tflops, 1e12 * self.memory_tb_s, self.launches_per_s)

    def holdout(self, classes: int) -> int:
        """Examples of a hold-out for so many classes."""
        return int(max(min(self.held_per_class * classes, 50_000), 2 * classes))


@dataclass(frozen=True, slots=True)
class Case:
    """One way to train."""

    ranks: int
    batch: int  # of a rank
    classes: int
    plan: Plan = field(default_factory=Plan)


RAREST = Plan(refresh_every=160, observe_every=40)  # the governor goes on to 320, and passes over steps
CASES = (
    Case(512, 64, 1000),
    Case(1000, 64, 1000),
    Case(1000, 32, 1000),
    Case(1000, 64, 10_000),
    Case(1000, 64, 1000, RAREST),
    Case(1000, 64, 10_000, RAREST),
)


def estimate_all(assumed: Assumptions) -> Iterator[dict[str, Any]]:
    """Estimate every case anew; rows do not replace one another, since any assumption may have changed."""
    rates = measured_rates()
    for case in CASES:
        known = {"settings": {"part": "plan"}, "case": asdict(case), "assumed": asdict(assumed), "rates": rates}
        yield {**known, **estimate(case, assumed, rates)}


def measured_rates() -> dict[str, float]:
    """What the plan takes from the rows that were measured: the largest run of the store, one process that scores."""
    found = read_results("scale.jsonl")
    stored = [row for row in found if row["settings"]["part"] == "store" and row["ids"] == "int"]
    largest = max(stored, key=lambda row: int(row["rows"]))
    merged = max((row for row in stored if "merge" in row), key=lambda row: int(row["rows"]))["merge"]
    return {
        "bytes_per_row": largest["bytes_per_row"],
        "writer_mb": largest["write"]["peak_mb"],
        "query_rows_per_s": largest["rows"] / largest["query"]["cpu_s"],
        "merge_rows_per_s": merged["rows_per_cpu_s"],
        "bytes_per_example": merged["bytes_per_example"],
        "scoring_over_bare": read_results("scoring.jsonl")[-1]["local over bare"],
    }


@cache
def vit_large(classes: int) -> tuple[int, Work]:
    """Parameters, and the forward pass of one picture."""
    with torch.device("meta"), patch.object(CONTEXT, "device", "meta"), torch.no_grad():
        model = SmallViT(image=224, patch=16, dim=_WIDTH, depth=24, heads=16, num_classes=classes)
        _, work = count_work(lambda: model(torch.empty(1, 3, 224, 224)))
    assert work is not None
    return sum(p.numel() for p in model.parameters()), work


def estimate(case: Case, assumed: Assumptions, rates: dict[str, float]) -> dict[str, Any]:
    """Time, memory, bytes and bill of one case."""
    parameters, forward = vit_large(case.classes)
    priced = _price(case, assumed, forward)
    exchanges = exchanges_of(case.plan, _WIDTH + 1, case.classes, case.batch, case.ranks)
    network = assumed.network_gbit_s * 1e9 / 8, 1e-6 * assumed.message_us
    exchange_s = exchanges.seconds(*network)
    added_s = priced.total_share * priced.bare_s
    steps = assumed.pictures / case.ranks / case.batch
    hours = steps * (priced.bare_s + added_s + exchange_s) / 3600
    return {
        "parameters": parameters,
        "forward_gflops": forward.flops / 1e9,
        "bare_ms": 1e3 * priced.bare_s,
        "own_ms": {
            "scoring": 1e3 * priced.step_share * priced.bare_s,
            "curvature": 1e3 * priced.curvature_share * priced.bare_s,
            "refresh": 1e3 * priced.refresh_share * priced.bare_s,
        },
        "exchange_ms": 1e3 * exchange_s,
        "ring_ms": 1e3 * exchanges.ring_seconds(*network),
        "share": (added_s + exchange_s) / priced.bare_s,
        "exchange_bytes": sum(exchanges.bytes.values()),
        "gradient_bytes": 4 * parameters,
        "device_mb": priced.device_mb,
        "host_mb": priced.host_mb + rates["writer_mb"],
        "steps": steps,
        "hours": hours,
        "gpu_usd": case.ranks * hours * assumed.gpu_hour_usd,
        "watching_usd": case.ranks * steps * (added_s + exchange_s) / 3600 * assumed.gpu_hour_usd,
        "store": _estimate_store(case, assumed, rates, hours),
        "second_pass": _estimate_second_pass(assumed, rates, forward),
    }


def _price(case: Case, assumed: Assumptions, forward: Work) -> Price:
    sizes = size_head(case.classes, _WIDTH + 1, assumed.holdout(case.classes), int(assumed.pictures), case.ranks)
    return price(case.plan, sizes, forward, assumed.monitor_speed, case.batch, assumed.model_speed)


def size_head(
    classes: int, inputs: int, holdout: int, train_size: int, ranks: int, bytes_per_example: int = 0
) -> Sizes:
    """What the monitor holds for a head of so many classes and inputs, the bias among them.

    Ranks that write hold no evidence; one process holds so many bytes for each example.
    """
    shape = BlockShape(1, classes, inputs, True)
    state = create("kfac", {"head": shape}, device="meta", diagonal_above=MANY_CLASSES).state_dict()["tensors"]
    is_pooled = classes > MANY_CLASSES
    return Sizes(
        outputs=classes,
        inputs=shape.inputs,
        numel=shape.numel,
        anchors=1 if is_pooled else classes,
        holdout=holdout,
        train_size=train_size,
        accumulate=1,
        itemsize=4,
        curvature_bytes=sum(value.nbytes for value in state.values()),
        bytes_per_example=bytes_per_example,
        scores_holdout=classes <= MOST_CLASSES,
        has_probe=True,
        ranks=ranks,
    )


def _estimate_store(case: Case, assumed: Assumptions, rates: dict[str, float], hours: float) -> dict[str, float]:
    size = assumed.pictures * rates["bytes_per_row"]
    intervals = max(1, ceil(60 * hours / assumed.checkpoint_minutes))
    files = case.ranks * intervals * max(1, ceil(size / case.ranks / intervals / _PART_BYTES))
    request_s = 1e-3 * assumed.request_ms
    writes, reads = 4 * files, (2 + 2 * _GROUPS) * files  # pieces of an upload; footers, and row groups read twice
    added_hours = assumed.pictures / rates["merge_rows_per_s"] / 3600
    return {
        "tb": size / 1e12,
        "usd_per_month": size / 1e9 * assumed.stored_gb_usd,
        "files": files,
        "open_s": request_s * (files / 1000 + files / 16),
        "requests_usd": (writes * assumed.puts_1000_usd + reads * assumed.gets_1000_usd) / 1000,
        "add_up_core_hours": added_hours,
        "add_up_usd": added_hours * assumed.core_hour_usd,
        "held_at_close_gb": assumed.pictures * rates["bytes_per_example"] / 1e9,
        "query_s": assumed.pictures / rates["query_rows_per_s"],
    }


def _estimate_second_pass(assumed: Assumptions, rates: dict[str, float], forward: Work) -> dict[str, float]:
    gpu_hours = assumed.pictures * assumed.model_speed.seconds(forward) / rates["scoring_over_bare"] / 3600
    return {"gpu_hours": gpu_hours, "usd": gpu_hours * assumed.gpu_hour_usd}


_Number = Callable[[Run], Any]
_PLAN: dict[str, tuple[_Number, str]] = {
    "bare step, ms": (lambda r: r["bare_ms"], ".0f"),
    "scoring, ms": (lambda r: r["own_ms"]["scoring"], ".1f"),
    "curvature, ms": (lambda r: r["own_ms"]["curvature"], ".1f"),
    "refreshes, ms": (lambda r: r["own_ms"]["refresh"], ".1f"),
    "exchanges, ms (around a ring)": (lambda r: f"{r['exchange_ms']:.1f} ({r['ring_ms']:.0f})", ""),
    "**all of it, % of the step**": (lambda r: 100 * r["share"], ".0f"),
    "exchanged, MB a step": (lambda r: r["exchange_bytes"] / 1e6, ".1f"),
    "of the gradient that DDP reduces, %": (lambda r: 100 * r["exchange_bytes"] / r["gradient_bytes"], ".1f"),
    "device memory, GB": (lambda r: r["device_mb"] / 1e3, ".1f"),
    "host memory of a rank, GB": (lambda r: r["host_mb"] / 1e3, ".1f"),
    "training with it, hours": (lambda r: r["hours"], ".1f"),
    "training with it, $": (lambda r: r["gpu_usd"], ",.0f"),
    "**of that for watching, $**": (lambda r: r["watching_usd"], ",.0f"),
    "visits, TB": (lambda r: r["store"]["tb"], ".2f"),
    "kept for a month, $": (lambda r: r["store"]["usd_per_month"], ".1f"),
    "files": (lambda r: r["store"]["files"], ",.0f"),
    "opening the run, s": (lambda r: r["store"]["open_s"], ",.0f"),
    "requests, $": (lambda r: r["store"]["requests_usd"], ",.2f"),
    "adding up, core hours": (lambda r: r["store"]["add_up_core_hours"], ".1f"),
    "table of examples, GB": (lambda r: r["store"]["held_at_close_gb"], ",.0f"),
    "one query over all visits, CPU s": (lambda r: r["store"]["query_s"], ",.0f"),
    "second pass by a snapshot, GPU hours": (lambda r: r["second_pass"]["gpu_hours"], ",.0f"),
    "second pass, $": (lambda r: r["second_pass"]["usd"], ",.0f"),
}


def _name_case(run: Run) -> str:
    if "case" not in run:
        return ""
    case = run["case"]
    rare = ", rarest plan" if case["plan"]["refresh_every"] > Plan().refresh_every else ""
    return f"{case['ranks']:,} x {case['batch']}, {case['classes']:,} classes{rare}"


def plan() -> str:
    """What each case of the plan comes to."""
    found = latest("scale.jsonl", key=_name_case)
    runs = [run for run in found if "case" in run]
    heads = [_name_case(run) for run in runs]
    return table(("", *heads), [[name, *(f"{of(run):{form}}" for run in runs)] for name, (of, form) in _PLAN.items()])


PLAN = Experiment(
    name="scale_plan",
    settings=Assumptions,
    run=estimate_all,
    benchmark="scale",
    file="scale.jsonl",
    tables={"scale_plan": plan},
    describe=lambda row: f"{row['case']}: {row['share']:.1%} of the step, {row['watching_usd']:,.0f} $",
    # no small slice: 10,000 classes take half a GB; tests/benchmarks/test_scale.py estimates a case
)
