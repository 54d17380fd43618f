"""Scores of training sequences against held-out passages: by a watched training, or from the model afterwards.

Scores are kept in the cache under a digest of the code that makes them, so that they can be held against more
retrainings without being computed again.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import sgoif
from benchmarks import cache
from benchmarks.sequences import attributors, bergson_rival, ekfac, retraining
from benchmarks.sequences.attributors import Scores, Trained, as_items
from benchmarks.sequences.retraining import (
    HALVES,
    SEEDS,
    Recipe,
    Texts,
    held_losses,
    load_texts,
    make_model,
    make_optimizer,
    train,
)
from sgoif.gradients.layers import survey

__all__ = ["ADAPTER", "CURVATURES", "LAYERS", "Settings", "find_layers", "keep_scores", "query_places", "score"]

CURVATURES = ("kfac", "adam", "identity")
LAYERS = {"block": "last block", "all": "all linear layers", "head": "output layer"}
ADAPTER = "LoRA matrices"
CHECKPOINTS = 4
_LINEAR = ("c_attn", "c_proj", "c_fc", "lm_head")
_FACTS = ("seconds", "cpu_s", "held_loss")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(Recipe):
    """One training and what is computed with it."""

    by: Literal["watch", "audit", "end", "checkpoints", "kronfluence", "bergson"] = "watch"
    layers: Literal["block", "all", "head"] = "block"  # that are scored by `watch`
    refresh: int = 16  # steps between two looks at the queries
    queries: int = 24
    group: int = 4  # sequences of a query
    halves: int = HALVES
    seeds: tuple[int, ...] = SEEDS  # of the retrainings
    seed: int = 0  # of the training that is scored

    @property
    def recipe(self) -> Recipe:
        values = asdict(self)
        return Recipe(**{name: values[name] for name in asdict(Recipe())})


def query_places(settings: Settings) -> NDArray[np.int64]:
    """Positions of every query's sequences among those held out, ``[V, G]``."""
    starts = np.arange(settings.queries) * (settings.held // settings.queries)
    return starts[:, None] + np.arange(settings.group)


def keep_scores(settings: Settings) -> tuple[dict[str, Scores], dict[str, float]]:
    """Scores by name, and facts of their training; read from the cache where the library's code has not changed."""
    values = {**asdict(settings), "library": digest_code()}
    wanted = {name: value for name, value in values.items() if name not in ("halves", "seeds")}
    key = hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).hexdigest()[:20]
    kept = cache.keep(f"sequence-scores/{key}.npz", lambda: score(settings))
    facts = {name: float(kept.pop(name)) for name in _FACTS}
    return kept, facts


def digest_code() -> str:
    """A digest of the code that makes scores."""
    root = Path(__file__).resolve().parents[2]
    modules = (attributors.__file__, bergson_rival.__file__, ekfac.__file__, retraining.__file__, __file__)
    files = [*sorted((root / "src").rglob("*.py")), *map(Path, modules)]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def score(settings: Settings) -> dict[str, Any]:
    """Train on all sequences; returns the scores, the mean held-out loss of the model and what it took."""
    started, started_cpu = time.perf_counter(), time.process_time()
    texts = load_texts(settings.recipe)
    model = make_model(settings.recipe, texts, settings.seed)
    optimizer = make_optimizer(settings.recipe, model)
    passages = texts.held[torch.from_numpy(query_places(settings))]
    compute = watch if settings.by == "watch" else score_afterwards
    scores = compute(settings, texts, model, optimizer, passages)
    held_loss = held_losses(model, texts.held).mean()
    took = {"seconds": time.perf_counter() - started, "cpu_s": time.process_time() - started_cpu}
    return {**scores, **took, "held_loss": held_loss}


def watch(
    settings: Settings, texts: Texts, model: nn.Module, optimizer: torch.optim.Optimizer, passages: Tensor
) -> dict[str, Scores]:
    """Train while one monitor per curvature looks on; returns the means over the run."""
    groups = group_passages(passages)
    plan = sgoif.Plan(
        refresh_every=settings.refresh, examples_per_refresh=passages.shape[0] * passages.shape[1], observe_every=4,
        early_steps=0,
    )  # fmt: skip
    is_usual = settings.layers == "block" or settings.adapter is not None
    layers = "auto" if is_usual else find_layers(model)[LAYERS[settings.layers]]
    named = LAYERS[settings.layers] if settings.adapter is None else ADAPTER
    monitors = {
        curvature: sgoif.watch(
            model, optimizer, anchors=groups, train_size=len(texts.train), task="sequences", seed=settings.seed,
            budget=sgoif.Budget(plan=plan), method=sgoif.Method(curvature=curvature, layers=layers),
        )
        for curvature in CURVATURES
    }  # fmt: skip
    everyone = np.ones(len(texts.train), dtype=bool)
    train(
        settings.recipe, texts.train, everyone, settings.seed,
        model=model, optimizer=optimizer, monitors=tuple(monitors.values()),
    )  # fmt: skip
    scores: dict[str, Scores] = {}
    for name, monitor in monitors.items():
        found = monitor.close()
        assert found.info["counters"]["faults"] == 0, found.info["faults"]
        effects = read_effects(found, len(texts.train), list(groups))
        scores[f"harm, {name}, {named}"] = effects["harm"]
        scores[f"cosine, {named}"] = effects["cosine"]
        mean_loss = np.full(len(texts.train), np.nan)
        mean_loss[found.table["id"]] = found.table["loss"]
        scores["mean loss"] = np.repeat(mean_loss[:, None], len(groups), 1)
    return scores


def group_passages(passages: Tensor) -> dict[str, list[dict[str, Tensor]]]:
    """Every query as a group of evaluation sequences."""
    return {f"{number:03d}": as_items(rows) for number, rows in enumerate(passages)}


def audit(subject: Trained) -> dict[str, Scores]:
    """Harm by one pass over the finished model, for every choice of layers."""
    groups, scores = group_passages(subject.passages), {}
    for layers, names in subject.layers.items():
        found = sgoif.audit(
            subject.model, as_items(subject.train), anchors=groups, task="sequences", batch_size=32,
            method=sgoif.Method(layers=names),
        )  # fmt: skip
        scores[f"harm, audit, {layers}"] = read_effects(found, len(subject.train), list(groups))["harm"]
    return scores


def read_effects(found: sgoif.Run, count: int, groups: list[str]) -> dict[str, Scores]:
    """The table of effects as arrays ``[n, V]``; NaN where a sequence was never judged."""
    rows = found.sql("SELECT id, group_name, harm, cosine FROM group_effects")
    numbers = {name: number for number, name in enumerate(groups)}
    columns = np.array([numbers[name] for name in rows["group_name"].to_pylist()])
    effects = {}
    for name in ("harm", "cosine"):
        effects[name] = np.full((count, len(groups)), np.nan)
        effects[name][rows["id"].to_numpy(), columns] = rows[name].to_numpy()
    return effects


def find_layers(model: nn.Module) -> dict[str, list[str]]:
    """The linear layers that are scored, by what they are called here; with an adapter, its matrices."""
    adapters = [layer.module_name for layer in survey(model).layers if ".lora_" in layer.module_name]
    if adapters:
        return {ADAPTER: adapters}
    linear = [name for name in (layer.module_name for layer in survey(model).layers) if name.endswith(_LINEAR)]
    last = max(int(name.split(".h.")[1].split(".")[0]) for name in linear if ".h." in name)
    block = [name for name in linear if f".h.{last}." in name]
    return {LAYERS["block"]: block, LAYERS["all"]: linear, LAYERS["head"]: ["lm_head"]}


def score_afterwards(
    settings: Settings, texts: Texts, model: nn.Module, optimizer: torch.optim.Optimizer, passages: Tensor
) -> dict[str, Scores]:
    """Train without a monitor, and score the finished model or its checkpoints."""
    everyone, layers = np.ones(len(texts.train), dtype=bool), find_layers(model)
    subject = Trained(model, texts.train, passages, layers, moments={})
    kept: list[tuple[float, dict[str, Scores]]] = []
    every = settings.epochs * -(-settings.sequences // settings.batch) // CHECKPOINTS

    def look(step: int, rate: float) -> None:
        if step % every == every // 2:  # the middle of each part of the run
            kept.append(
                (rate, attributors.gradient_products(subject, {f"gradient product, {CHECKPOINTS} checkpoints": None}))
            )
            model.train()

    on_step = look if settings.by == "checkpoints" else None
    train(
        settings.recipe, texts.train, everyone, settings.seed, model=model, optimizer=optimizer, on_step=on_step
    )  # fmt: skip
    subject = Trained(model, texts.train, passages, layers, moments=read_moments(model, optimizer))
    if settings.by == "checkpoints":
        return {name: -values for name, values in attributors.sum_products(kept).items()}
    compute = {"end": attributors.score_at_the_end, "audit": audit, "kronfluence": attributors.attribute_kronfluence}
    compute["bergson"] = bergson_rival.attribute_bergson
    return compute[settings.by](subject)


def read_moments(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Adam's second moments, with their bias corrected."""
    beta = float(optimizer.param_groups[0]["betas"][1])
    states = {name: optimizer.state[value] for name, value in model.named_parameters() if value.requires_grad}
    return {name: state["exp_avg_sq"] / (1 - beta ** float(state["step"])) for name, state in states.items()}
