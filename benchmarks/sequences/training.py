"""A small GPT-2 that learns intents from scratch, watched by several monitors at once which see the same steps."""

from __future__ import annotations

import runpy
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import sgoif
from benchmarks.experiment import option
from benchmarks.sequences.instructions import ERRORS, SOURCES, Items
from sgoif.influence.sequence_sets import pad_items
from sgoif.sequences import SEQUENCE_PLAN
from sgoif.tasks.sequences import next_tokens, sequence_losses, token_losses

__all__ = ["METHODS", "Setup", "build", "exact_match", "final_losses", "read_scores", "train"]

METHODS: dict[str, dict[str, Any]] = {
    "kfac": {"curvature": "kfac"},
    "adam": {"curvature": "adam"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What is trained and watched; the defaults are the development draw."""

    source: str = option("banking77", SOURCES)
    errors: str = option("near", ERRORS)
    rate: float = 0.05
    intents: int | None = None  # the first ones by name; all if left out
    each: int = 40  # training queries of an intent
    groups: int = 8
    width: int = 128
    depth: int = 4
    epochs: int = 6
    batch: int = 32
    seed: int = 0


def build(width: int, depth: int, vocabulary: int, longest: int = 128, *, tied: bool = True) -> nn.Module:
    """A GPT-2 from its config, without dropout; ``tied`` output weights are those of the embedding."""
    _mend_torchvision()
    from transformers import GPT2Config, GPT2LMHeadModel

    settings: dict[str, Any] = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    settings |= {"n_embd": width, "n_layer": depth, "n_head": width // 32, "n_positions": longest}
    settings["tie_word_embeddings"] = tied
    return GPT2LMHeadModel(GPT2Config(vocab_size=vocabulary, bos_token_id=3, eos_token_id=3, **settings))


@cache
def _mend_torchvision() -> dict[str, Any]:
    """Declare the operators that torchvision misses where its build does not fit that of torch.

    By path: some libraries install a package `tests` of their own, which hides ours. Kept, or the operators would go.
    """
    return runpy.run_path(str(Path(__file__).parents[2] / "tests/integrations/torchvision_operators.py"))


def train(
    setup: Setup,
    vocabulary: int,
    items: Items,
    groups: Mapping[str, Items] | None = None,
    methods: Mapping[str, Mapping[str, Any]] | None = None,
) -> tuple[nn.Module, dict[str, sgoif.Run]]:
    """Train a model from scratch, watched by some methods at once; returns it and the run of each."""
    torch.manual_seed(setup.seed)
    model = build(setup.width, setup.depth, vocabulary)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    settings: dict[str, Any] = {"train_size": len(items), "task": "sequences", "seed": setup.seed}
    settings |= {"anchors": groups, "budget": sgoif.Budget(plan=SEQUENCE_PLAN)}
    monitors = {
        name: sgoif.watch(model, optimizer, method=sgoif.Method(**method), **settings)
        for name, method in (methods or {}).items()
    }
    generator = torch.Generator().manual_seed(setup.seed)
    steps = setup.epochs * -(-len(items) // setup.batch)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 50) * (1 - step / steps))
    model.train()
    for _ in range(setup.epochs):
        for chosen in torch.randperm(len(items), generator=generator).split(setup.batch):
            batch = pad_items([items[place] for place in chosen.tolist()])
            with ExitStack() as stack:
                for monitor in monitors.values():
                    stack.enter_context(monitor.step(chosen, batch["labels"]))
                model(**batch).loss.backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    runs = {name: monitor.close() for name, monitor in monitors.items()}
    for found in runs.values():
        assert found.info["counters"]["faults"] == 0, found.info["faults"]
    return model, runs


def read_scores(found: sgoif.Run, name: str, count: int) -> dict[str, NDArray[np.float64]]:
    """A run's columns by position; those without curvature are the same in all runs."""
    columns = found.sequence_issues()
    names = {"loss": "mean loss", "cosine": "gradient cosine", "loss_first": "first loss", "loss_last": "last loss"}
    scores = {}
    of_audits = [name for name in ("loss_tuned", "conflict") if columns[name].null_count < len(columns)]
    own = ("suspicion", "harm", "worst", *of_audits)
    for column in (*own, *names):
        values = np.full(count, -np.inf)
        values[columns["id"].to_numpy()] = np.nan_to_num(columns[column].to_numpy(), nan=-np.inf)
        scores[names.get(column, f"{name} {column}")] = values
    return scores


@torch.no_grad()
def final_losses(model: nn.Module, items: Items) -> NDArray[np.float64]:
    """Mean loss per token of the finished model."""
    model.eval()
    found = []
    for start in range(0, len(items), 64):
        batch = pad_items(items[start : start + 64])
        targets = next_tokens(batch["labels"], is_causal=True)
        losses = token_losses(model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits, targets)
        found.append(sequence_losses(losses) / (targets != -100).sum(1))
    return torch.cat(found).double().numpy()


@torch.no_grad()
def exact_match(model: nn.Module, items: Items) -> float:
    """Share of sequences whose every completion token is the most probable one, given those before it."""
    model.eval()
    right = 0
    for start in range(0, len(items), 64):
        batch = pad_items(items[start : start + 64])
        targets = next_tokens(batch["labels"], is_causal=True)
        best = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits.argmax(-1)
        right += int(((best == targets) | (targets == -100)).all(1).sum())
    return right / len(items)
