"""The front door: joins training, evidence and files."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import torch
from torch import Tensor, nn

from sgoif.curriculum import renewed_weights
from sgoif.distributed import find_peers
from sgoif.distributed.group import TIMEOUT_S
from sgoif.errors import SgoifError
from sgoif.evidence import LIKENESS_NEARLY_SAME
from sgoif.explain import attribute
from sgoif.findings import INFLUENCE
from sgoif.finish import calibrated_run, collect_run, finish_run
from sgoif.gradients import find_head, survey
from sgoif.gradients.models import (
    check_class_names,
    default_forward,
    other_layers,
    plain_model,
    refuse_compiled,
    refuse_in_pieces,
    refuse_one_output,
    refuse_softmax,
)
from sgoif.influence import GateSettings, HoldOut
from sgoif.inputs import Examples
from sgoif.multilabel import audit_tags, no_tags, refuse_for_tags, watch_tags
from sgoif.overlap import refuse_overlap
from sgoif.review.cleaned import cleaned
from sgoif.run import Run, load
from sgoif.sinks import check_out, make_recorder, make_sink
from sgoif.tasks.classification import cross_entropy
from sgoif.training.audit import AuditPart, KeptAnchors, audit_engine, audit_examples
from sgoif.training.canaries import CanaryLedger
from sgoif.training.clock import Clock, PairedProbe
from sgoif.training.datasets import split, warn_of_few, with_ids
from sgoif.training.disabled import NoMonitor
from sgoif.training.engine import Engine, EngineSettings
from sgoif.training.forecast import Forecaster, Sizes
from sgoif.training.losses import HoldoutPass, LossSettings
from sgoif.training.models import counted_head, curvature_settings_of
from sgoif.training.monitor import Monitor
from sgoif.training.recorder import Recorder
from sgoif.training.schedule import Governor, Plan
from sgoif.training.sinks import KeepVisits, MemorySink
from sgoif.training.tags.monitor import TagMonitor
from sgoif.training.targets import SoftTargets

if TYPE_CHECKING:
    from sgoif.snapshot import Snapshot

__all__ = ["Run", "attribute", "audit", "cleaned", "default_forward", "load", "make_sink", "split", "watch", "with_ids"]

log = logging.getLogger(__name__)

Task = Literal["classification", "multilabel"]


def watch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    anchors: Any,
    train_size: int,
    out: str | None = None,
    overwrite: bool = False,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    forward: Callable[[Any], Tensor] | None = None,
    num_classes: int | None = None,
    class_names: Sequence[str] | None = None,
    trusted: bool = False,
    head: str | None = None,
    layers: str | Sequence[str] = "auto",
    curvature: str = "kfac",
    curvature_settings: Mapping[str, Any] | None = None,
    solver: str = "richardson",
    gate: str | GateSettings = "relative",
    probe: bool = True,
    loss_reduction: str = "mean",
    accumulate: int = 1,
    scaler: Any = None,
    label_smoothing: float = 0.0,
    soft_targets: SoftTargets = "mixed",
    planned_steps: int | None = None,
    max_overhead: float = 0.10,
    plan: Plan | None = None,
    batch_size: int | None = None,
    keep_visits: KeepVisits = "all",
    seed: int = 0,
    peer_timeout_s: float = TIMEOUT_S,
    task: Task = "classification",
) -> Monitor | TagMonitor | NoMonitor:
    """Watch a training loop and score every example that passes through it.

    Where a process group is initialised, every rank calls it at the same place: the ranks share the work and write one
    run. See docs/distributed.md.

    Args:
        model: the module being trained, wrapped in DistributedDataParallel or not; it is never wrapped or changed.
        optimizer: for the learning rate; optional.
        anchors: held-out examples: a tuple ``(inputs, labels)``, a map-style dataset of ``(input, label)``,
            dictionaries or objects, or a ``DataLoader``; see docs/howto/sources.md. Never train on them.
        train_size: number of training examples.
        out: folder or any fsspec URL to write the run into while it goes on; None keeps it in memory. One that holds a
            run is refused on the first step, unless that run is resumed by ``load_state_dict``.
        overwrite: delete the run that ``out`` holds when this one begins; a resumed run is never deleted.
        loss: outputs and targets to *per-example* losses; cross-entropy by default, checked on the first step.
        forward: hold-out inputs to logits ``[B, C]``; ``model(inputs)`` by default.
        num_classes: found from the model's output by default.
        class_names: for reports, and for anchors whose labels are names.
        trusted: whether the hold-out's labels have been verified.
        head: the name of the classification head, where it cannot be found.
        layers: ``"auto"`` scores the head; further layers by name, scored in a random projection.
        curvature: a backend's name.
        curvature_settings: its keyword arguments. Left out, K-FAC is damped more where the head alone learns.
        solver: ``"richardson"`` tracks the directions, ``"direct"`` solves at every refresh.
        gate: a mode's name, or :class:`GateSettings`.
        probe: re-fit the head on the hold-out at every refresh, as a signal of its own.
        loss_reduction: ``"mean"`` or ``"sum"``, of the loss that is back-propagated.
        accumulate: micro-batches per optimiser step, where the loss is divided by it.
        scaler: a ``GradScaler``.
        label_smoothing: of the default loss, and of targets ``[B, C]`` that are smoothed already.
        soft_targets: what targets ``[B, C]`` are that name no single class: ``"mixed"`` (Mixup, CutMix: such batches
            are skipped and counted) or ``"soft"`` (the example's own every time, as in distillation: ``harm`` only).
        planned_steps: optimiser steps of the run; needed by gates that are ramps.
        max_overhead: promise: share of the bare step that scoring may cost.
        plan: fixes what is done when, and turns the governor off.
        batch_size: examples of a (micro-)batch, for a forecast before the first step; else it is made on that.
        keep_visits: ``"all"``, ``"last"`` (on disk: those of the last epoch) or ``"none"``, what they add up to only.
        seed: of hold-out order and projections.
        peer_timeout_s: how long a rank waits for the others before it gives up scoring, and trains on.
        task: ``"classification"``, or ``"multilabel"`` for targets ``[B, C]`` of 0 and 1. See docs/multilabel.md.

    Returns:
        A monitor. With the environment variable ``SGOIF_DISABLE=1``, one that does nothing.
    """
    if task not in get_args(Task):
        raise SgoifError(f"task must be one of {', '.join(get_args(Task))}, got {task!r}.")
    if os.environ.get("SGOIF_DISABLE") == "1":
        empty = collect_run(Recorder(2, 0, MemorySink()), {"disabled": True}) if task == "classification" else no_tags()
        log.warning("SGOIF_DISABLE=1 is set: nothing is scored and no run is written.")
        return NoMonitor(plan, on_close=lambda: empty)
    if task == "multilabel":
        refuse_for_tags(
            layers=layers,
            curvature=curvature,
            curvature_settings=curvature_settings,
            solver=solver,
            gate=gate,
            probe=probe,
            label_smoothing=label_smoothing,
            soft_targets=soft_targets,
            num_classes=num_classes,
            keep_visits=keep_visits,
            planned_steps=planned_steps,
            batch_size=batch_size,
            peer_timeout_s=peer_timeout_s,
        )
        return watch_tags(
            model,
            optimizer,
            anchors=anchors,
            train_size=train_size,
            sink=make_sink(out, "none", overwrite=overwrite),
            loss=loss,
            forward=forward,
            class_names=class_names,
            trusted=trusted,
            head=head,
            loss_reduction=loss_reduction,
            accumulate=accumulate,
            scaler=scaler,
            max_overhead=max_overhead,
            plan=plan,
            seed=seed,
        )
    wrapped, model = model, plain_model(model)
    peers = find_peers(wrapped, timeout_s=peer_timeout_s)
    device = next(model.parameters()).device
    run_forward = forward or default_forward(model)
    held = Examples(anchors, device=device)
    held.need_labels()
    few = held.inputs(torch.arange(min(2, len(held))))
    found, work = counted_head(model, lambda: run_forward(few), head)
    refuse_compiled(model, found.module_name)
    refuse_one_output(found)
    if head is not None and loss is None:
        refuse_softmax(model, found, lambda: run_forward(few))
    classes = found.shape.outputs
    known = classes if num_classes is None else num_classes
    check_class_names(class_names, classes, known)
    holdout = HoldOut(held, num_classes=known, seed=seed, device=device, class_names=class_names)
    start = plan or Plan()
    others = other_layers(model, found, layers if layers != "auto" else start.layers)
    for other in others:
        refuse_compiled(model, other.module_name)
        refuse_in_pieces(other)
    settings = EngineSettings(
        curvature=curvature,
        curvature_settings=curvature_settings_of(model, found, curvature, curvature_settings),
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
        peers=peers,
    )
    per_example = loss or cross_entropy(label_smoothing)
    loss_settings = LossSettings(per_example, loss_reduction, accumulate, scaler, label_smoothing, soft_targets)
    facts = {"trusted": trusted, "class_names": list(class_names or []), "seed": seed, "train_size": train_size}
    facts |= warn_of_few(holdout.counts.numpy(), class_names or (), quiet=peers.rank > 0)
    recorder = make_recorder(classes, train_size, out, keep_visits, peers, overwrite=overwrite)
    log.info("head %s, %s", found.name, survey(model))
    ledger, clock = CanaryLedger(engine, trusted=trusted), Clock(device)
    # where the device runs behind the host, only pairs of steps tell the cost; a fixed plan gives up no visits for it
    paired = None if clock.is_exact or plan is not None else PairedProbe(clock)
    return Monitor(
        model,
        optimizer,
        engine,
        forward=run_forward,
        loss=loss_settings,
        governor=Governor(start, max_overhead=max_overhead, fixed=plan is not None, clock=clock, probe=paired),
        recorder=recorder,
        ledger=ledger,
        forecaster=Forecaster(
            Sizes.of(engine, recorder, ledger, accumulate=accumulate),
            work,
            num_counted=min(2, len(holdout)),
            parameter_bytes=sum(p.nbytes for p in model.parameters()),
            device=device,
            batch_size=batch_size,
        ),
        facts=facts,
        on_close=finish_run,
        on_snapshot=_keep_snapshot,
        on_weights=renewed_weights,
        peers=peers,
    )


def audit(
    model: nn.Module,
    dataset: Any,
    *,
    anchors: Any,
    out: str | None = None,
    overwrite: bool = False,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    forward: Callable[[Any], Tensor] | None = None,
    trusted: bool = False,
    head: str | None = None,
    curvature: str = "kfac",
    curvature_settings: Mapping[str, Any] | None = None,
    probe: bool = True,
    keep_anchors: bool = False,
    batch_size: int = 256,
    snapshot: str | None = None,
    class_names: Sequence[str] | None = None,
    seed: int = 0,
    task: Task = "classification",
) -> Run:
    """Score every training example against a finished model, in one pass; the tables are those of :func:`watch`.

    Args:
        model: trained; used in eval mode and left as found.
        dataset: the training examples, with or without ids, in any form that ``anchors`` of :func:`watch` may have.
        anchors: held-out examples that the model was not trained on.
        out: folder to write the run into; one that holds a run is refused.
        overwrite: delete the run that ``out`` holds.
        loss: as in :func:`watch`.
        forward: as in :func:`watch`.
        trusted: whether the hold-out's labels have been verified.
        head: as in :func:`watch`.
        curvature: a backend's name.
        curvature_settings: as in :func:`watch`.
        probe: as in :func:`watch`.
        keep_anchors: keep what each example did to each class, for :meth:`Run.influence`; up to 64 classes.
        batch_size: examples per forward pass.
        snapshot: file or URL to keep what judges in, so that ``sgoif score`` can judge other examples alike.
        class_names: for reports, and for data whose labels are names.
        seed: of the hold-out's order.
        task: as in :func:`watch`; tags have no curvature but their own, and no snapshot.
    """
    check_out(out, overwrite)
    if task == "multilabel":
        unused = {"loss": loss, "keep_anchors": keep_anchors, "snapshot": snapshot}
        refuse_for_tags(curvature=curvature, curvature_settings=curvature_settings, probe=probe, **unused)
        return audit_tags(
            model,
            dataset,
            anchors=anchors,
            sink=make_sink(out, "none", overwrite=overwrite),
            forward=forward,
            class_names=class_names,
            trusted=trusted,
            head=head,
            batch_size=batch_size,
            seed=seed,
        )
    model = plain_model(model)
    device = next(model.parameters()).device
    run_forward = forward or default_forward(model)
    held, trained = Examples(anchors, device=device), Examples(dataset, role="dataset", device=device)
    refuse_overlap(held, trained)
    held.need_labels()
    few = held.inputs(torch.arange(min(2, len(held))))
    found = find_head(model, lambda: run_forward(few), name=head)
    refuse_compiled(model, found.module_name)
    refuse_one_output(found)
    if head is not None and loss is None:
        refuse_softmax(model, found, lambda: run_forward(few))
    check_class_names(class_names, found.shape.outputs)
    settings: dict[str, Any] = {"num_classes": found.shape.outputs, "seed": seed, "class_names": class_names}
    holdout, examples = (HoldOut(source, device=device, **settings) for source in (held, trained))
    engine = audit_engine(
        found,
        holdout,
        train_size=len(examples),
        batch_size=batch_size,
        curvature=curvature,
        curvature_settings=curvature_settings_of(model, found, curvature, curvature_settings),
        probe=probe,
    )
    recorder = Recorder(found.shape.outputs, len(examples), make_sink(out, "all", overwrite=overwrite))

    def batches() -> Iterator[tuple[Any, Tensor, Any]]:
        for start in range(0, len(examples), batch_size):
            positions = torch.arange(start, min(start + batch_size, len(examples)))
            ids = [examples.ids[int(i)] for i in positions]
            yield examples.inputs(positions), examples.labels[positions], ids

    ledger = CanaryLedger(engine, trusted=trusted)
    part = AuditPart(model, engine, batches, run_forward, loss or cross_entropy(0.0))
    kept = KeptAnchors(engine) if keep_anchors else None
    audit_examples([part], recorder, ledger, keep=kept)
    if snapshot is not None:
        from sgoif.snapshot import snapshot_audit, write_snapshot

        write_snapshot(snapshot_audit(part, ledger, recorder, class_names or ()), snapshot)
    more = {} if kept is None else {INFLUENCE: kept.column(len(recorder.index))}
    facts = {"kind": "audit", "trusted": trusted, "class_names": list(class_names or []), "seed": seed}
    facts |= {"head": found.name, "nearly_same": LIKENESS_NEARLY_SAME}
    present = (holdout.counts + examples.counts > 0).numpy()
    facts |= warn_of_few(holdout.counts.numpy(), class_names or (), present=present)
    return calibrated_run(ledger, recorder, engine, facts, more=more)


def _keep_snapshot(monitor: Monitor, seen: HoldoutPass, path: str | None) -> Snapshot:
    from sgoif.snapshot import take_snapshot, write_snapshot

    found = take_snapshot(monitor, seen)
    if path is not None:
        write_snapshot(found, path)
    return found
