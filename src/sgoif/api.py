"""The front door: joins training, evidence and files."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from sgoif.errors import SgoifError
from sgoif.gradients import Layer, find_head, select_layers, survey
from sgoif.gradients.contractions import widen
from sgoif.influence import GateSettings, HoldOut
from sgoif.run import Run, calibrated_run, finish_run
from sgoif.training.audit import audit_examples
from sgoif.training.canaries import CanaryLedger
from sgoif.training.datasets import split, with_ids
from sgoif.training.engine import Engine, EngineSettings
from sgoif.training.monitor import LossSettings, Monitor
from sgoif.training.recorder import Recorder
from sgoif.training.schedule import Governor, Plan
from sgoif.training.sinks import MemorySink

__all__ = ["Run", "audit", "split", "watch", "with_ids"]

log = logging.getLogger(__name__)


def watch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    anchors: tuple[Tensor, Tensor] | Dataset[Any],
    train_size: int,
    out: str | None = None,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    forward: Callable[[Any], Tensor] | None = None,
    num_classes: int | None = None,
    class_names: Sequence[str] | None = None,
    trusted: bool = False,
    head: str | None = None,
    layers: str | Sequence[str] = "auto",
    curvature: str = "kfac",
    solver: str = "richardson",
    gate: str | GateSettings = "relative",
    probe: bool = True,
    loss_reduction: str = "mean",
    accumulate: int = 1,
    scaler: Any = None,
    label_smoothing: float = 0.0,
    planned_steps: int | None = None,
    max_overhead: float = 0.10,
    plan: Plan | None = None,
    keep_visits: bool = True,
    seed: int = 0,
) -> Monitor | NoMonitor:
    """Watch a training loop and score every example that passes through it.

    Args:
        model: the module being trained; it is never wrapped or changed.
        optimizer: for the learning rate; optional.
        anchors: held-out examples, a dataset of ``(input, label)`` or a tuple of tensors. Never train on them.
        train_size: number of training examples.
        out: folder to write the run into at :meth:`Monitor.close`; None keeps it in memory.
        loss: outputs and targets to *per-example* losses; cross-entropy by default, checked on the first step.
        forward: hold-out inputs to logits ``[B, C]``; ``model(inputs)`` by default.
        num_classes: found from the model's output by default.
        class_names: for reports.
        trusted: whether the hold-out's labels have been verified.
        head: the name of the classification head, where it cannot be found.
        layers: ``"auto"`` scores the head; further layers by name, scored in a random projection.
        curvature: a backend's name.
        solver: ``"richardson"`` tracks the directions, ``"direct"`` solves at every refresh.
        gate: a mode's name, or :class:`GateSettings`.
        probe: re-fit the head on the hold-out at every refresh, as a signal of its own.
        loss_reduction: ``"mean"`` or ``"sum"``, of the loss that is back-propagated.
        accumulate: micro-batches per optimiser step, where the loss is divided by it.
        scaler: a ``GradScaler``.
        label_smoothing: of the default loss.
        planned_steps: optimiser steps of the run; needed by gates that are ramps.
        max_overhead: promise: share of the bare step that scoring may cost.
        plan: fixes what is done when, and turns the governor off.
        keep_visits: keep every visit, not only what they add up to.
        seed: of hold-out order and projections.

    Returns:
        A monitor. With the environment variable ``SGOIF_DISABLE=1``, one that does nothing.
    """
    if os.environ.get("SGOIF_DISABLE") == "1":
        return NoMonitor()
    model = _unwrapped(model)
    device = next(model.parameters()).device
    run_forward = forward or _default_forward(model)
    holdout = HoldOut(anchors, num_classes=num_classes, seed=seed, device=device)
    few = holdout.inputs(torch.arange(min(2, len(holdout))))
    found = find_head(model, lambda: run_forward(few), name=head)
    classes = found.shape.outputs
    if num_classes is None and holdout.num_classes != classes:
        holdout = HoldOut(anchors, num_classes=classes, seed=seed, device=device)
    start = plan or Plan()
    others = _other_layers(model, found, layers if layers != "auto" else start.layers)
    settings = EngineSettings(
        curvature=curvature,
        solver=solver,
        gate=gate if isinstance(gate, GateSettings) else GateSettings(mode=cast(Any, gate)),
        probe=probe,
        rank=start.rank,
    )
    engine = Engine(
        found,
        others,
        holdout,
        settings,
        train_size=train_size,
        planned_steps=planned_steps,
        per_refresh=start.examples_per_refresh,
        seed=seed,
    )
    per_example = loss or _cross_entropy(label_smoothing)
    loss_settings = LossSettings(per_example, loss_reduction, accumulate, scaler, label_smoothing)
    sink = MemorySink() if keep_visits else None
    recorder = Recorder(classes, train_size, sink)
    log.info("head %s, %s", found.name, survey(model))
    facts = {"trusted": trusted, "class_names": list(class_names or []), "seed": seed, "out": out}
    return Monitor(
        model,
        optimizer,
        engine,
        forward=run_forward,
        loss=loss_settings,
        governor=Governor(start, max_overhead=max_overhead, fixed=plan is not None),
        recorder=recorder,
        ledger=CanaryLedger(engine, trusted=trusted),
        on_close=lambda monitor: finish_run(monitor, facts),
    )


def audit(
    model: nn.Module,
    dataset: tuple[Tensor, Tensor] | Dataset[Any],
    *,
    anchors: tuple[Tensor, Tensor] | Dataset[Any],
    out: str | None = None,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    forward: Callable[[Any], Tensor] | None = None,
    trusted: bool = False,
    head: str | None = None,
    curvature: str = "kfac",
    curvature_settings: dict[str, Any] | None = None,
    probe: bool = True,
    batch_size: int = 256,
    seed: int = 0,
) -> Run:
    """Score every training example against a finished model, in one pass; the tables are those of :func:`watch`.

    Args:
        model: trained; used in eval mode and left as found.
        dataset: the training examples, ``(input, label)`` or ``(input, label, id)``, or a tuple of tensors.
        anchors: held-out examples that the model was not trained on.
        out: folder to write the run into.
        loss: as in :func:`watch`.
        forward: as in :func:`watch`.
        trusted: whether the hold-out's labels have been verified.
        head: as in :func:`watch`.
        curvature: a backend's name.
        curvature_settings: its keyword arguments.
        probe: as in :func:`watch`.
        batch_size: examples per forward pass.
        seed: of the hold-out's order.
    """
    model = _unwrapped(model)
    device = next(model.parameters()).device
    run_forward = forward or _default_forward(model)
    holdout = HoldOut(anchors, seed=seed, device=device)
    few = holdout.inputs(torch.arange(min(2, len(holdout))))
    found = find_head(model, lambda: run_forward(few), name=head)
    holdout = HoldOut(anchors, num_classes=found.shape.outputs, seed=seed, device=device)
    settings = EngineSettings(
        curvature=curvature,
        curvature_settings=curvature_settings,
        solver="direct",
        gate=GateSettings(mode="none"),
        probe=probe,
    )
    examples = HoldOut(dataset, num_classes=found.shape.outputs, seed=seed, device=device)
    engine = Engine(
        found,
        [],
        holdout,
        settings,
        train_size=len(examples),
        planned_steps=None,
        per_refresh=batch_size,
        horizon=float("inf"),
    )
    recorder = Recorder(found.shape.outputs, len(examples), MemorySink())

    def batches() -> Iterator[tuple[Any, Tensor, Any]]:
        for start in range(0, len(examples), batch_size):
            positions = torch.arange(start, min(start + batch_size, len(examples)))
            ids = [examples.ids[int(i)] for i in positions]
            yield examples.inputs(positions), examples.labels[positions], ids

    ledger = CanaryLedger(engine, trusted=trusted)
    losses = loss or _cross_entropy(0.0)
    audit_examples(model, engine, batches, recorder, forward=run_forward, losses=losses, ledger=ledger)
    facts = {"trusted": trusted, "seed": seed, "out": out, "head": found.name, "kind": "audit"}
    return calibrated_run(ledger, recorder, engine, facts)


class NoMonitor:
    """What ``watch`` gives when it is switched off: the same calls, and nothing behind them."""

    def step(self, ids: Any, targets: Tensor, *, grad_factor: float | Tensor | None = None) -> NoMonitor:
        """Surround a step, doing nothing."""
        return self

    def __enter__(self) -> NoMonitor:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def close(self) -> None:
        """Nothing was recorded."""

    def detach(self) -> None:
        """Nothing to detach."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing to save."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to load."""


def _cross_entropy(label_smoothing: float) -> Callable[[Tensor, Tensor], Tensor]:
    def losses(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(widen(outputs), targets, label_smoothing=label_smoothing, reduction="none")

    return losses


def _default_forward(model: nn.Module) -> Callable[[Any], Tensor]:
    """``model(inputs)``, logits read out of a tuple or ``.logits``; channels last where the model is."""
    first = next((m for m in model.modules() if isinstance(m, nn.Conv2d)), None)
    is_last = (
        first is not None
        and first.weight.shape[1] > 1
        and first.weight.is_contiguous(memory_format=torch.channels_last)
        and not first.weight.is_contiguous()
    )

    def forward(inputs: Any) -> Tensor:
        if is_last and isinstance(inputs, Tensor) and inputs.dim() == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        out = model(**inputs) if isinstance(inputs, dict) else model(inputs)
        out = out[0] if isinstance(out, tuple) else getattr(out, "logits", out)
        return cast(Tensor, out)

    return forward


def _unwrapped(model: nn.Module) -> nn.Module:
    inner = getattr(model, "module", None)
    if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel) and isinstance(inner, nn.Module):
        model = inner
    if hasattr(model, "_orig_mod") or getattr(model, "_compiled_call_impl", None) is not None:
        raise SgoifError(
            "watch() cannot see inside a compiled model. Compile the part before the head instead (model.backbone = "
            "torch.compile(model.backbone)) and pass the model itself."
        )
    return model


def _other_layers(model: nn.Module, head: Layer, names: str | Sequence[str]) -> list[Layer]:
    wanted = [names] if isinstance(names, str) else list(names)
    return list(select_layers(model, [name for name in wanted if name != head.name])) if wanted else []
