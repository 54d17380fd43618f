"""The front door: joins training, evidence and files."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor, nn

from sgoif.curriculum import renew_weights
from sgoif.distributed import Peers, find_peers, is_sharded, keep_sharded
from sgoif.errors import SgoifError
from sgoif.evidence import LIKENESS_NEARLY_SAME
from sgoif.explain import attribute
from sgoif.findings import INFLUENCE
from sgoif.finish import collect_judged_run, collect_run, finish_run
from sgoif.gradients import Layer, find_head, quiet_eval, survey
from sgoif.gradients.head import check_output
from sgoif.gradients.models import (
    check_class_names,
    default_forward,
    is_compiled,
    other_layers,
    plain_model,
    refuse_in_pieces,
    refuse_one_output,
    refuse_softmax,
)
from sgoif.influence import HoldOut
from sgoif.inputs.examples import Examples
from sgoif.inputs.overlap import refuse_overlap
from sgoif.multilabel import audit_multilabel, empty_multilabel, watch_multilabel
from sgoif.review.cleaned import cleaned
from sgoif.run import Run, load
from sgoif.sequences import audit_sequences, empty_sequences, watch_sequences
from sgoif.settings import (
    Budget,
    Loss,
    Method,
    Request,
    damp_frozen,
    describe_method,
    group_settings,
    make_governor,
)
from sgoif.sinks import check_out, make_recorder, make_sink
from sgoif.training.audit import AuditPart, KeptAnchors, audit_engine, audit_examples
from sgoif.training.base import WatchedLoop
from sgoif.training.closing_pass import FinalViews
from sgoif.training.datasets import split, warn_of_few, with_ids
from sgoif.training.disabled import NoMonitor, NoSequenceMonitor
from sgoif.training.engine import Engine
from sgoif.training.holdout_scores import HoldoutScores
from sgoif.training.losses import HoldoutPass, Losses
from sgoif.training.method import ADAM
from sgoif.training.monitor import Monitor
from sgoif.training.multilabel.monitor import MultilabelMonitor
from sgoif.training.recorder import Recorder
from sgoif.training.schedule import Plan
from sgoif.training.sequences.monitor import SequenceMonitor
from sgoif.training.sinks import MemorySink

if TYPE_CHECKING:
    from sgoif.snapshot import Snapshot

__all__ = ["Run", "attribute", "audit", "cleaned", "default_forward", "load", "make_sink", "split", "watch", "with_ids"]

log = logging.getLogger(__name__)

Task = Literal["classification", "multilabel", "sequences"]


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
    **unknown: Any,
) -> Monitor | MultilabelMonitor | SequenceMonitor | NoMonitor:
    """Watch a training loop and score every example that passes through it.

    Where a process group is initialised, every rank calls it at the same place: the ranks share the work and write one
    run. See docs/distributed.md.

    Args:
        model: the module being trained, as it is called: wrapped in DistributedDataParallel or compiled, if it is;
            it stays unchanged.
        optimizer: for the learning rate; optional.
        anchors: held-out examples: a tuple ``(inputs, labels)``, a map-style dataset of ``(input, label)``,
            dictionaries or objects, or a ``DataLoader``; see docs/howto/sources.md. Never train on them.
        train_size: number of training examples.
        out: folder or any fsspec URL to write the run into while it goes on; None keeps it in memory. One that holds a
            run is refused on the first step, unless that run is resumed by ``load_state_dict``.
        overwrite: delete the run that ``out`` holds when this one begins; a resumed run is never deleted.
        task: ``"classification"``; ``"multilabel"`` for targets ``[B, C]`` of 0 and 1, see docs/multilabel.md; or
            ``"sequences"`` for language models, whose ``anchors`` are ``{name: dataset}``, groups of evaluation
            sequences. That one is experimental, see docs/howto/sequences.md.
        loss: outputs and targets to *per-example* losses, or all of :class:`sgoif.Loss`: how they are reduced,
            accumulated, scaled and smoothed. Their mean cross-entropy by default, checked on the first step.
        forward: hold-out inputs to logits ``[B, C]``; ``model(inputs)`` by default.
        class_names: for reports, and for anchors whose labels are names.
        trusted: whether the hold-out's labels have been verified.
        method: how influence is estimated: curvature, solver, gate, head and layers.
        budget: what watching may cost: at most 10% of the bare step by default.
        seed: of hold-out order and projections.
        unknown: other keywords, which are refused; the message names the setting that is meant.

    Returns:
        A monitor. With the environment variable ``SGOIF_DISABLE=1``, one that does nothing.
    """
    if task not in get_args(Task):
        raise SgoifError(f"task must be one of {', '.join(get_args(Task))}, got {task!r}.")
    settings = group_settings("watch", unknown, loss=loss, method=method, budget=budget)
    if settings.method.curvature == ADAM and task != "sequences":
        raise SgoifError(f"curvature='adam' is there for task='sequences' only; task={task!r} has 'kfac', for example.")
    if os.environ.get("SGOIF_DISABLE") == "1":
        empty = _EMPTY[task]()
        log.warning("SGOIF_DISABLE=1 is set: nothing is scored and no run is written.")
        kind = NoSequenceMonitor if task == "sequences" else NoMonitor
        return kind(settings.budget.plan, on_close=lambda: empty)
    plain = plain_model(model)
    request = Request(
        plain,
        forward or default_forward(plain),
        anchors,
        settings,
        class_names,
        trusted=trusted,
        seed=seed,
        is_compiled=is_compiled(model),
    )
    if task == "multilabel":
        sink = make_sink(out, "none", overwrite=overwrite)
        return watch_multilabel(request, find_peers(model), optimizer, train_size=train_size, sink=sink)
    if task == "sequences":
        peers = find_peers(model, timeout_s=settings.budget.peer_timeout_s)
        where: dict[str, Any] = {"out": out, "overwrite": overwrite}
        return watch_sequences(request, peers, optimizer, train_size=train_size, forward=forward, **where)
    peers = find_peers(model, timeout_s=settings.budget.peer_timeout_s)
    engine = _build_engine(request, train_size, peers)
    facts = request.facts | {"train_size": train_size, "method": describe_method(engine.settings, engine.layers)}
    facts |= warn_of_few(engine.holdout.counts.numpy(), class_names or (), quiet=peers.rank > 0)
    recorder = make_recorder(
        engine.holdout.num_classes,
        train_size,
        out,
        settings.budget.keep_visits,
        peers,
        overwrite=overwrite,
        temperature=settings.method.temperature,
    )
    log.info("head %s, %s", engine.head.name, survey(plain))
    scores = HoldoutScores(engine, trusted=trusted)
    governor = make_governor(settings.budget, request.device)
    log.info("%s", governor.plan)
    return Monitor(
        WatchedLoop(
            plain,
            optimizer,
            request.forward,
            settings.loss,
            governor,
            facts,
            peers,
            is_compiled=request.is_compiled,
        ),
        engine,
        recorder=recorder,
        holdout_scores=scores,
        on_close=finish_run,
        on_snapshot=_keep_snapshot,
        on_weights=renew_weights,
    )


_EMPTY: dict[Task, Callable[[], Run]] = {  # runs of monitors that are switched off
    "classification": lambda: collect_run(Recorder(2, 0, MemorySink()), {"disabled": True}),
    "multilabel": empty_multilabel,
    "sequences": empty_sequences,
}


def _build_engine(request: Request, train_size: int, peers: Peers) -> Engine:
    """The engine of a training."""
    model, method, start = request.model, request.settings.method, request.settings.budget.plan or Plan()
    held = Examples(request.anchors, device=request.device)
    run = _run_few(request, held)
    head = _find_head(model, run, method.head)
    _check_head(request, head, run)
    holdout = _hold_out(request, held, head)
    others = other_layers(model, head, method.layers if method.layers != "auto" else start.layers)
    for other in others:
        refuse_in_pieces(other)
    method = replace(damp_frozen(method, model, head), rank=method.rank or start.rank)
    per_refresh = start.examples_per_refresh
    engine = Engine(
        head, others, holdout, method, train_size=train_size, per_refresh=per_refresh, seed=request.seed, peers=peers
    )
    return engine


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
    batch_size: int | None = None,
    snapshot: str | None = None,
    seed: int = 0,
    **unknown: Any,
) -> Run:
    """Score every training example against a finished model, in one pass; the tables are those of :func:`watch`.

    Args:
        model: trained; used in eval mode and left as found.
        dataset: the training examples, with or without ids, in any form that ``anchors`` of :func:`watch` may have.
        anchors: held-out examples that the model was not trained on.
        out: folder to write the run into; one that holds a run is refused.
        overwrite: delete the run that ``out`` holds.
        task: as in :func:`watch`; tags have no curvature but their own, tags and sequences no snapshot.
        loss: outputs and targets to per-example losses; cross-entropy by default.
        forward: as in :func:`watch`.
        class_names: for reports, and for data whose labels are names.
        trusted: whether the hold-out's labels have been verified.
        method: as in :func:`watch`; directions are solved, and there is no gate.
        keep_anchors: keep what each example did to each class, for :meth:`Run.influence`; up to 64 classes.
        batch_size: examples per forward pass; 256 if left out, 16 of sequences.
        snapshot: file or URL to keep what judges in, so that ``sgoif score`` can judge other examples alike.
        seed: of the hold-out's order; for sequences, of the draws that curvature and tuning need.
        unknown: other keywords, which are refused; the message names the setting that is meant.
    """
    check_out(out, overwrite)
    batch_size = batch_size or (16 if task == "sequences" else 256)
    settings = group_settings("audit", unknown, loss=loss, method=method)
    plain = plain_model(model)
    request = Request(
        plain, forward or default_forward(plain), anchors, settings, class_names, trusted=trusted, seed=seed
    )
    if task != "classification":
        if keep_anchors or snapshot is not None:
            raise SgoifError(f"task={task!r} has no keep_anchors and no snapshot; leave them out.")
        sink = make_sink(out, "none", overwrite=overwrite)
        if task == "sequences":
            return audit_sequences(request, dataset, sink=sink, batch_size=batch_size, forward=forward)
        return audit_multilabel(request, dataset, sink=sink, batch_size=batch_size)
    if settings.method.layers != "auto":
        raise SgoifError(
            "audit scores the head alone; leave Method(layers=...) out, or see sgoif.attribute(layers=...)."
        )
    held, trained = Examples(anchors, device=request.device), Examples(dataset, role="dataset", device=request.device)
    refuse_overlap(held, trained)
    run = _run_few(request, held)
    head = find_head(plain, run, name=settings.method.head)
    _check_head(request, head, run)
    holdout, examples = (_hold_out(request, source, head) for source in (held, trained))
    damped = damp_frozen(settings.method, plain, head)
    engine = audit_engine(head, holdout, train_size=len(examples), batch_size=batch_size, method=damped)
    recorder = Recorder(head.shape.outputs, len(examples), make_sink(out, "all", overwrite=overwrite))

    def batches() -> Iterator[tuple[Any, Tensor, Any]]:
        for positions in torch.arange(len(examples)).split(batch_size):
            ids = [examples.ids[int(i)] for i in positions]
            yield examples.inputs(positions), examples.labels[positions], ids

    scores = HoldoutScores(engine, trusted=trusted)
    part = AuditPart(plain, engine, batches, request.forward, settings.loss.losses)
    kept = KeptAnchors(engine, len(examples)) if keep_anchors else None
    probe = audit_examples(part, recorder, scores, keep=kept)
    if snapshot is not None:
        from sgoif.snapshot import snapshot_audit, write_snapshot

        write_snapshot(snapshot_audit(part, scores, recorder, class_names or ()), snapshot)
    more = {} if kept is None else {INFLUENCE: kept.column(len(recorder.index))}
    facts = {"kind": "audit", **request.facts, "head": head.name, "nearly_same": LIKENESS_NEARLY_SAME}
    facts["method"] = describe_method(engine.settings, engine.layers)
    present = (holdout.counts + examples.counts > 0).numpy()
    facts |= warn_of_few(holdout.counts.numpy(), class_names or (), present=present)
    return collect_judged_run(scores, recorder, engine, facts, views=FinalViews(None, probe, {}), more=more)


def _run_few(request: Request, held: Examples) -> Callable[[], Tensor]:
    """A forward pass over the first hold-out examples, by which the head is found."""
    held.need_labels()
    few = held.inputs(torch.arange(min(2, len(held))))
    return lambda: request.forward(few)


def _find_head(model: nn.Module, run: Callable[[], Tensor], name: str | None) -> Layer:
    """Find the head of a model that is being trained, whose parameters may be in pieces."""
    with keep_sharded(model):
        head = find_head(model, run, name=name)
    if name is not None and not is_sharded(*model.parameters()):  # then nothing was run
        with quiet_eval(model), torch.no_grad():
            check_output(run())
    return head


def _check_head(request: Request, head: Layer, run: Callable[[], Tensor]) -> None:
    """Refuse a head whose gradients cannot be seen, or are not those of logits, or that has other classes."""
    refuse_one_output(head)
    if request.settings.method.head is not None and request.settings.loss.per_example is None:
        refuse_softmax(request.model, head, run)
    check_class_names(request.class_names, head.shape.outputs)


def _hold_out(request: Request, source: Examples, head: Layer) -> HoldOut:
    names = request.class_names
    return HoldOut(source, num_classes=head.shape.outputs, seed=request.seed, device=request.device, class_names=names)


def _keep_snapshot(monitor: Monitor, seen: HoldoutPass, path: str | None) -> Snapshot:
    from sgoif.snapshot import take_snapshot, write_snapshot

    found = take_snapshot(monitor, seen)
    if path is not None:
        write_snapshot(found, path)
    return found
