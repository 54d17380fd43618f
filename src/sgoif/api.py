"""The front door: joins training, evidence and files."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor, nn

from sgoif.curriculum import renewed_weights
from sgoif.distributed import find_peers
from sgoif.errors import SgoifError
from sgoif.evidence import LIKENESS_NEARLY_SAME
from sgoif.explain import attribute
from sgoif.findings import INFLUENCE
from sgoif.finish import calibrated_run, collect_run, finish_run
from sgoif.gradients import Layer, find_head, survey
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
from sgoif.influence import HoldOut
from sgoif.inputs.examples import Examples
from sgoif.inputs.overlap import refuse_overlap
from sgoif.multilabel import GivenHoldout, audit_multilabel, empty_multilabel, watch_multilabel
from sgoif.review.cleaned import cleaned
from sgoif.run import Run, load
from sgoif.settings import Budget, Loss, Method, group_settings, make_governor
from sgoif.sinks import check_out, make_recorder, make_sink
from sgoif.training.audit import AuditPart, KeptAnchors, audit_engine, audit_examples
from sgoif.training.base import WatchedLoop
from sgoif.training.canaries import CanaryLedger
from sgoif.training.datasets import split, warn_of_few, with_ids
from sgoif.training.disabled import NoMonitor
from sgoif.training.engine import Engine
from sgoif.training.forecast import Forecaster, Sizes
from sgoif.training.losses import HoldoutPass, Losses
from sgoif.training.models import counted_head, curvature_settings_of
from sgoif.training.monitor import Monitor
from sgoif.training.multilabel.monitor import MultilabelMonitor
from sgoif.training.recorder import Recorder
from sgoif.training.schedule import Plan
from sgoif.training.sinks import MemorySink

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
    task: Task = "classification",
    loss: Loss | Losses | None = None,
    forward: Callable[[Any], Tensor] | None = None,
    class_names: Sequence[str] | None = None,
    trusted: bool = False,
    method: Method | None = None,
    budget: Budget | None = None,
    seed: int = 0,
    **former: Any,
) -> Monitor | MultilabelMonitor | NoMonitor:
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
        task: ``"classification"``, or ``"multilabel"`` for targets ``[B, C]`` of 0 and 1. See docs/multilabel.md.
        loss: outputs and targets to *per-example* losses, or all of :class:`sgoif.Loss`: how they are reduced,
            accumulated, scaled and smoothed. Their mean cross-entropy by default, checked on the first step.
        forward: hold-out inputs to logits ``[B, C]``; ``model(inputs)`` by default.
        class_names: for reports, and for anchors whose labels are names.
        trusted: whether the hold-out's labels have been verified.
        method: how influence is estimated: curvature, solver, gate, head and layers.
        budget: what watching may cost: at most 10% of the bare step by default.
        seed: of hold-out order and projections.
        former: keywords from before, which warn and say where they have moved.

    Returns:
        A monitor. With the environment variable ``SGOIF_DISABLE=1``, one that does nothing.
    """
    if task not in get_args(Task):
        raise SgoifError(f"task must be one of {', '.join(get_args(Task))}, got {task!r}.")
    settings = group_settings("watch", former, loss=loss, method=method, budget=budget)
    loss, method, budget = settings.loss, settings.method, settings.budget
    if os.environ.get("SGOIF_DISABLE") == "1":
        empty = (
            collect_run(Recorder(2, 0, MemorySink()), {"disabled": True})
            if task == "classification"
            else empty_multilabel()
        )
        log.warning("SGOIF_DISABLE=1 is set: nothing is scored and no run is written.")
        return NoMonitor(budget.plan, on_close=lambda: empty)
    if task == "multilabel":
        given = GivenHoldout(anchors, class_names, trusted, seed)
        sink = make_sink(out, "none", overwrite=overwrite)
        return watch_multilabel(model, optimizer, settings, given, train_size=train_size, sink=sink, forward=forward)
    wrapped, model = model, plain_model(model)
    peers = find_peers(wrapped, timeout_s=budget.peer_timeout_s)
    device = next(model.parameters()).device
    run_forward = forward or default_forward(model)
    held = Examples(anchors, device=device)
    held.need_labels()
    few = held.inputs(torch.arange(min(2, len(held))))
    found, work = counted_head(model, lambda: run_forward(few), method.head)
    _refuse_head(model, found, method, loss, lambda: run_forward(few))
    classes = found.shape.outputs
    check_class_names(class_names, classes)
    holdout = HoldOut(held, num_classes=classes, seed=seed, device=device, class_names=class_names)
    start = budget.plan or Plan()
    others = other_layers(model, found, method.layers if method.layers != "auto" else start.layers)
    for other in others:
        refuse_compiled(model, other.module_name)
        refuse_in_pieces(other)
    damped = curvature_settings_of(model, found, method.curvature, method.curvature_settings)
    engine = Engine(
        found,
        others,
        holdout,
        replace(method, curvature_settings=damped, rank=method.rank or start.rank),
        train_size=train_size,
        per_refresh=start.examples_per_refresh,
        seed=seed,
        peers=peers,
    )
    facts = {"trusted": trusted, "class_names": list(class_names or []), "seed": seed, "train_size": train_size}
    facts |= warn_of_few(holdout.counts.numpy(), class_names or (), quiet=peers.rank > 0)
    recorder = make_recorder(classes, train_size, out, budget.keep_visits, peers, overwrite=overwrite)
    log.info("head %s, %s", found.name, survey(model))
    ledger = CanaryLedger(engine, trusted=trusted)
    forecaster = Forecaster(
        Sizes.of(engine, recorder, ledger, accumulate=loss.accumulate),
        work,
        num_counted=min(2, len(holdout)),
        parameter_bytes=sum(p.nbytes for p in model.parameters()),
        device=device,
        batch_size=budget.batch_size,
    )
    governor = make_governor(budget, device)
    loop = WatchedLoop(model, optimizer, run_forward, loss, governor, facts, forecaster, peers)
    return Monitor(
        loop,
        engine,
        recorder=recorder,
        ledger=ledger,
        on_close=finish_run,
        on_snapshot=_keep_snapshot,
        on_weights=renewed_weights,
    )


def audit(
    model: nn.Module,
    dataset: Any,
    *,
    anchors: Any,
    out: str | None = None,
    overwrite: bool = False,
    task: Task = "classification",
    loss: Losses | None = None,
    forward: Callable[[Any], Tensor] | None = None,
    class_names: Sequence[str] | None = None,
    trusted: bool = False,
    method: Method | None = None,
    keep_anchors: bool = False,
    batch_size: int = 256,
    snapshot: str | None = None,
    seed: int = 0,
    **former: Any,
) -> Run:
    """Score every training example against a finished model, in one pass; the tables are those of :func:`watch`.

    Args:
        model: trained; used in eval mode and left as found.
        dataset: the training examples, with or without ids, in any form that ``anchors`` of :func:`watch` may have.
        anchors: held-out examples that the model was not trained on.
        out: folder to write the run into; one that holds a run is refused.
        overwrite: delete the run that ``out`` holds.
        task: as in :func:`watch`; tags have no curvature but their own, and no snapshot.
        loss: outputs and targets to per-example losses; cross-entropy by default.
        forward: as in :func:`watch`.
        class_names: for reports, and for data whose labels are names.
        trusted: whether the hold-out's labels have been verified.
        method: as in :func:`watch`; directions are solved, and there is no gate.
        keep_anchors: keep what each example did to each class, for :meth:`Run.influence`; up to 64 classes.
        batch_size: examples per forward pass.
        snapshot: file or URL to keep what judges in, so that ``sgoif score`` can judge other examples alike.
        seed: of the hold-out's order.
        former: keywords from before, which warn and say where they have moved.
    """
    check_out(out, overwrite)
    settings = group_settings("audit", former, loss=loss, method=method)
    method = settings.method
    if task == "multilabel":
        if keep_anchors or snapshot is not None:
            raise SgoifError("task='multilabel' has no keep_anchors and no snapshot; leave them out.")
        given = GivenHoldout(anchors, class_names, trusted, seed)
        sink = make_sink(out, "none", overwrite=overwrite)
        return audit_multilabel(model, dataset, settings, given, sink=sink, forward=forward, batch_size=batch_size)
    if method.layers != "auto":
        raise SgoifError(
            "audit scores the head alone; leave Method(layers=...) out, or see sgoif.attribute(layers=...)."
        )
    model = plain_model(model)
    device = next(model.parameters()).device
    run_forward = forward or default_forward(model)
    held, trained = Examples(anchors, device=device), Examples(dataset, role="dataset", device=device)
    refuse_overlap(held, trained)
    held.need_labels()
    few = held.inputs(torch.arange(min(2, len(held))))
    found = find_head(model, lambda: run_forward(few), name=method.head)
    _refuse_head(model, found, method, settings.loss, lambda: run_forward(few))
    check_class_names(class_names, found.shape.outputs)
    known: dict[str, Any] = {"num_classes": found.shape.outputs, "seed": seed, "class_names": class_names}
    holdout, examples = (HoldOut(source, device=device, **known) for source in (held, trained))
    damped = curvature_settings_of(model, found, method.curvature, method.curvature_settings)
    engine = audit_engine(
        found,
        holdout,
        train_size=len(examples),
        batch_size=batch_size,
        method=replace(method, curvature_settings=damped),
    )
    recorder = Recorder(found.shape.outputs, len(examples), make_sink(out, "all", overwrite=overwrite))

    def batches() -> Iterator[tuple[Any, Tensor, Any]]:
        for start in range(0, len(examples), batch_size):
            positions = torch.arange(start, min(start + batch_size, len(examples)))
            ids = [examples.ids[int(i)] for i in positions]
            yield examples.inputs(positions), examples.labels[positions], ids

    ledger = CanaryLedger(engine, trusted=trusted)
    part = AuditPart(model, engine, batches, run_forward, settings.loss.losses)
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


def _refuse_head(model: nn.Module, head: Layer, method: Method, loss: Loss, run: Callable[[], Tensor]) -> None:
    """Refuse a head whose gradients cannot be seen, or are not those of logits."""
    refuse_compiled(model, head.module_name)
    refuse_one_output(head)
    if method.head is not None and loss.per_example is None:
        refuse_softmax(model, head, run)


def _keep_snapshot(monitor: Monitor, seen: HoldoutPass, path: str | None) -> Snapshot:
    from sgoif.snapshot import take_snapshot, write_snapshot

    found = take_snapshot(monitor, seen)
    if path is not None:
        write_snapshot(found, path)
    return found
