"""What watching the fine-tuning of a small GPT-2 through a LoRA adapter costs, by alternating bare and watched steps.

Watched steps are of three kinds: scored only, with an observation of curvature, with a look at the groups. Each kind is
timed by itself in processor time, so that a busy machine counts for little, and weighed as the default plan has them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import nn

import sgoif
from benchmarks.experiment import Experiment, option
from benchmarks.sequences import build
from sgoif.sequences import SEQUENCE_PLAN

VOCABULARY = 2048


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
    steps: int = 16  # watched ones; as many are bare
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


def run(setup: Setup) -> dict[str, Any]:
    """Alternate bare and watched steps."""
    torch.manual_seed(setup.seed)
    model = adapted(setup)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    plan = sgoif.Plan(
        refresh_every=8, examples_per_refresh=SEQUENCE_PLAN.examples_per_refresh, observe_every=2, early_steps=0
    )
    anchors = {f"group {number}": sequences(16, setup.length) for number in range(setup.groups)}
    monitor = sgoif.watch(
        model, optimizer, anchors=anchors, train_size=10_000, task="sequences", budget=sgoif.Budget(plan=plan),
        method=sgoif.Method(curvature=setup.curvature),
    )  # fmt: skip
    times: dict[str, list[float]] = {"bare": [], "scored": [], "observed": [], "refreshed": []}
    for step in range(setup.steps + 1):
        rows = torch.randint(4, VOCABULARY, (setup.batch, setup.length))
        batch = {"input_ids": rows, "labels": rows, "attention_mask": torch.ones_like(rows)}
        kind = "refreshed" if plan.is_refresh(step) else "observed" if plan.is_observe(step) else "scored"
        for name in ("bare", kind):
            started = time.process_time()
            if name == "bare":
                model(**batch).loss.backward()
            else:
                with monitor.step(torch.arange(setup.batch) + step * setup.batch, rows):
                    model(**batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if step:  # the first pair warms up
                times[name].append(time.process_time() - started)
    assert monitor.faults == {}, monitor.faults
    return summarise(times)


def summarise(times: dict[str, list[float]]) -> dict[str, Any]:
    """Medians by kind, and the ratio that the default plan gives."""
    bare, scored, observed, refreshed = (median(times[name]) for name in ("bare", "scored", "observed", "refreshed"))
    extra = (scored - bare) + (observed - scored) / SEQUENCE_PLAN.observe_every
    extra += (refreshed - observed) / SEQUENCE_PLAN.refresh_every
    return {
        "bare_s": bare,
        "scored_ratio": scored / bare,
        "observation_in_steps": (observed - scored) / bare,
        "refresh_in_steps": (refreshed - observed) / bare,
        "ratio": 1 + extra / bare,
        "pairs": len(times["bare"]),
    }


EXPERIMENT = Experiment(
    name="sequence_overhead",
    settings=Setup,
    run=run,
    full={"curvature": ("kfac", "adam")},
    small={"width": 64, "depth": 1, "length": 16, "steps": 9},
    needs=("transformers", "peft"),
    describe=lambda row: f"ratio {row['ratio']:.3f}, scored steps alone {row['scored_ratio']:.3f}",
)
