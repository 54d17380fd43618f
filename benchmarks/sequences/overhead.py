"""What watching the fine-tuning of a small GPT-2 through a LoRA adapter costs, by pairs of bare and watched steps.

Watched steps are of three kinds: scored only, with an observation of curvature, with a look at the groups. Each kind is
timed by itself in processor time, beside a bare step, and weighed as the default plan has them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn

import sgoif
from benchmarks.experiment import Experiment, option
from benchmarks.sequences.training import build
from benchmarks.tables.rows import latest, table
from benchmarks.timing import raised_peak_mb
from sgoif.sequences import SEQUENCE_PLAN

VOCABULARY = 2048
BAR = 1.10  # time and memory
PLAN = sgoif.Plan(  # every kind of step comes soon; they are weighed as the default plan has them
    refresh_every=8, examples_per_refresh=SEQUENCE_PLAN.examples_per_refresh, observe_every=2, early_steps=0
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One measurement."""

    curvature: str = option("kfac", ("kfac", "adam", "diagonal", "identity"))
    width: int = 256
    depth: int = 4
    length: int = 128
    batch: int = 16
    rank: int = 8
    groups: int = 8
    steps: int = 160  # watched ones; as many are bare
    memory: bool = option(True, help="measure the peak memory too")
    seed: int = 1


def sequences(count: int, length: int) -> list[dict[str, torch.Tensor]]:
    """Random tokens, all of them to be predicted."""
    rows = torch.randint(4, VOCABULARY, (count, length))
    return [{"input_ids": row, "labels": row, "attention_mask": torch.ones_like(row)} for row in rows]


def adapted(setup: Setup) -> nn.Module:
    """The model with an adapter at the attention's projections."""
    model = build(setup.width, setup.depth, VOCABULARY, setup.length)
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=setup.rank, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM")
    found: nn.Module = get_peft_model(model, config)
    return found.train()


class Loop:
    """A training on random tokens, whose steps are watched or not as is asked."""

    def __init__(self, setup: Setup, *, is_watched: bool) -> None:
        torch.manual_seed(setup.seed)
        self._setup, self._step = setup, 0
        self._model = adapted(setup)
        trained = [p for p in self._model.parameters() if p.requires_grad]
        self._optimizer = torch.optim.AdamW(trained, lr=1e-4)
        self._anchors = {f"group {number}": sequences(16, setup.length) for number in range(setup.groups)}
        self.monitor: Any = None
        if is_watched:
            self.monitor = sgoif.watch(
                self._model, self._optimizer, anchors=self._anchors, train_size=10_000, task="sequences",
                budget=sgoif.Budget(plan=PLAN), method=sgoif.Method(curvature=setup.curvature),
            )  # fmt: skip

    def step(self, *, is_watched: bool) -> float:
        """Do one step; returns the processor time that it took."""
        rows = torch.randint(4, VOCABULARY, (self._setup.batch, self._setup.length))
        batch = {"input_ids": rows, "labels": rows, "attention_mask": torch.ones_like(rows)}
        started = time.process_time()
        with self.monitor.step(torch.arange(len(rows)) + self._step * len(rows), rows) if is_watched else nullcontext():
            self._model(**batch).loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._step += is_watched
        return time.process_time() - started


def run(setup: Setup) -> dict[str, Any]:
    """Alternate bare and watched steps; then the peak memory of both, each in a process of its own."""
    loop = Loop(setup, is_watched=True)
    ratios: dict[str, list[float]] = {"scored": [], "observed": [], "refreshed": []}
    bare: list[float] = []
    rng = np.random.default_rng(setup.seed)  # which step of a pair comes first
    for step in range(setup.steps + 1):
        kind = "refreshed" if PLAN.is_refresh(step) else "observed" if PLAN.is_observe(step) else "scored"
        took = {bool(is_watched): loop.step(is_watched=bool(is_watched)) for is_watched in rng.permutation(2)}
        if step:  # the first pair warms up
            ratios[kind].append(took[True] / took[False])
            bare.append(took[False])
    assert loop.monitor.faults == {}, loop.monitor.faults
    row = {"bare_s": median(bare), "pairs": len(bare), **summarise(ratios)}
    if setup.memory:
        row["peak_mb"] = {name: raised_peak_mb(probe, setup, name == "watched") for name in ("bare", "watched")}
    return row


def probe(setup: Setup, is_watched: bool) -> None:
    """Some steps of every kind: what raises the peak memory of a fresh process."""
    loop = Loop(setup, is_watched=is_watched)
    for _ in range(PLAN.refresh_every + 2):
        loop.step(is_watched=is_watched)


def summarise(ratios: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Medians of the pairs by kind, and the ratio that the default plan gives, with a 95% bootstrap interval."""
    rng = np.random.default_rng(0)
    drawn = [
        _ratio({kind: rng.choice(found, len(found)).tolist() for kind, found in ratios.items()}) for _ in range(2000)
    ]
    scored, observed, refreshed = (float(np.median(ratios[kind])) for kind in ("scored", "observed", "refreshed"))
    return {
        "scored_ratio": scored,
        "observation_in_steps": observed - scored,
        "refresh_in_steps": refreshed - observed,
        "ratio": _ratio(ratios),
        "interval": np.quantile(drawn, (0.025, 0.975)).tolist(),
    }


def _ratio(ratios: Mapping[str, Sequence[float]]) -> float:
    """The kinds as the default plan has them."""
    scored, observed, refreshed = (float(np.median(ratios[kind])) for kind in ("scored", "observed", "refreshed"))
    observation, look = (observed - scored) / SEQUENCE_PLAN.observe_every, (refreshed - observed)
    return scored + observation + look / SEQUENCE_PLAN.refresh_every


def describe(row: dict[str, Any]) -> str:
    low, high = row["interval"]
    found = f"ratio {row['ratio']:.3f} ({low:.3f} to {high:.3f}), scored steps alone {row['scored_ratio']:.3f}"
    return f"{found}, peak memory {memory_ratio(row):.3f}" if "peak_mb" in row else found


def memory_ratio(row: dict[str, Any]) -> float:
    return float(row["peak_mb"]["watched"] / row["peak_mb"]["bare"])


def overhead() -> str:
    """Time and memory by curvature, of measurements that have an interval."""
    found = latest(EXPERIMENT.results, key=lambda row: (row["settings"]["curvature"], "interval" in row))
    rows = []
    for row in sorted((row for row in found if "interval" in row), key=lambda row: str(row["settings"]["curvature"])):
        low, high = row["interval"]
        time_cell = f"{row['ratio']:.3f} [{low:.3f}, {high:.3f}] {_verdict(row['ratio'])}"
        memory = memory_ratio(row) if "peak_mb" in row else None
        cells = [f"{row['scored_ratio']:.3f}", f"{row['refresh_in_steps']:.1f}", f"{row['pairs']}"]
        shown = f"{memory:.3f} {_verdict(memory)}" if memory else ""
        rows.append([f'`"{row["settings"]["curvature"]}"`', f"{1e3 * row['bare_s']:.0f}", time_cell, *cells, shown])
    heads = ("curvature", "bare step, ms", "CPU time", "scored steps alone", "a look, in steps", "pairs", "peak memory")
    return table(heads, rows)


def _verdict(value: float) -> str:
    return "met" if value <= BAR else "**missed**"


EXPERIMENT = Experiment(
    name="sequence_overhead",
    settings=Setup,
    run=run,
    tables={"sequence_overhead": overhead},
    full={"curvature": ("kfac", "adam")},
    small={"width": 64, "depth": 1, "length": 16, "steps": 9, "memory": False},
    needs=("transformers", "peft"),
    describe=describe,
)
