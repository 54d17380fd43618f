"""The front door for language models: from a model and groups of evaluation sequences to a monitor and a run.

Experimental: arguments, columns and scores may change with any minor version.
"""

from __future__ import annotations

import logging
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from sgoif.distributed import Peers, SingleProcess, is_sharded
from sgoif.errors import SgoifError
from sgoif.findings.sequences import NO_PROBABILITIES
from sgoif.finish import loop_facts, save_run, write_part
from sgoif.gradients.adapters import find_sequence_layers
from sgoif.gradients.models import find_logits, refuse_in_pieces
from sgoif.influence.groups import AnchorGroups, Forward
from sgoif.influence.sequence_sets import SequenceSet
from sgoif.run import Run
from sgoif.settings import Request, make_governor, refuse_changes
from sgoif.sinks import agree_on_out, make_shared_sink
from sgoif.tasks.sequences import IGNORED, is_causal
from sgoif.training.base import WatchedLoop
from sgoif.training.checkpoint import gather_states
from sgoif.training.method import ADAM, Method
from sgoif.training.schedule import Plan
from sgoif.training.sequences.audit import Audited, audit_sequence_examples
from sgoif.training.sequences.capture import ComparedLosses
from sgoif.training.sequences.engine import SequenceEngine
from sgoif.training.sequences.monitor import SequenceMonitor
from sgoif.training.sequences.recorder import SequenceRecorder
from sgoif.training.sequences.visit_log import VisitLog
from sgoif.training.sinks import ScoreSink
from sgoif.types import Columns

__all__ = [
    "RANKS_MISSING",
    "SEQUENCE_PLAN",
    "audit_sequences",
    "empty_sequences",
    "finish_sequences",
    "tables_of_sequences",
    "watch_sequences",
]

log = logging.getLogger(__name__)

# Passing 32 evaluation sequences costs as much as two or three training steps of 16.
SEQUENCE_PLAN = Plan(refresh_every=48, examples_per_refresh=32, observe_every=12, early_steps=0)
_MEAN = 0.999  # decay with which an audit averages curvature: all of some hundred batches count alike
_COVERED, _MOST_FAR = 0.2, 0.05  # a run warns where so many sequences have less coverage
_NOTHING_TO_PREDICT = f"have no token to predict (all labels are {IGNORED})"
RANKS_MISSING = "ranks_missing"  # a warning: of a run that is not that of all processes
_CUT_AWAY = "their completion is empty, or was cut away after a long prompt"
_ALLOWED = {
    "loss": ("reduction", "accumulate", "scaler"),
    "method": ("curvature", "curvature_settings", "layers", "planned_steps"),
    "budget": ("max_overhead", "plan", "keep_visits", "peer_timeout_s"),
}


def watch_sequences(
    request: Request,
    peers: Peers,
    optimizer: torch.optim.Optimizer | None,
    *,
    train_size: int,
    out: str | None,
    overwrite: bool = False,
    forward: Forward | None = None,
) -> SequenceMonitor:
    """Watch the training of a language model; see :func:`sgoif.watch`. Targets are labels ``[B, T]``."""
    settings = request.settings
    refuse_changes(settings, "sequences", _ALLOWED)
    keep_visits = settings.budget.keep_visits
    if keep_visits == "last":
        raise SgoifError("task='sequences' keeps all visits or none: pass keep_visits='all' or 'none'.")
    groups, warnings = _make_groups(request)
    _refuse_other_groups(groups, peers)
    engine = _make_engine(request, groups, peers, optimizer)
    governor = make_governor(settings.budget, request.device, start=SEQUENCE_PLAN)
    facts = request.facts | _task_facts(engine, settings.method) | {"train_size": train_size, "warnings": warnings}
    facts |= {"peer_timeout_s": settings.budget.peer_timeout_s, "no_p_reason": NO_PROBABILITIES}
    facts["groups"] = {name: {"num_sequences": size} for name, size in zip(groups.names, groups.sizes)}
    log.info("task='sequences' is experimental: %d layers are scored.", len(engine.layers))
    call = forward or _forward_of(request.model)
    loop = WatchedLoop(request.model, optimizer, call, settings.loss, governor, facts, peers=peers)
    out = agree_on_out(out, peers)
    sink = None if out is None else make_shared_sink(out, keep_visits, peers, overwrite=overwrite, facts=facts)
    visits = None if sink is None or keep_visits == "none" else VisitLog(sink, peers.rank)
    return SequenceMonitor(
        loop,
        engine,
        recorder=SequenceRecorder(engine.groups.shares, visits),
        train_size=train_size,
        sink=sink,
        on_close=finish_sequences,
    )


def audit_sequences(
    request: Request, dataset: Any, *, sink: ScoreSink | None, batch_size: int, forward: Forward | None = None
) -> Run:
    """Score every training sequence by a finished model, in one pass; see :func:`sgoif.audit`."""
    method = request.settings.method
    refuse_changes(request.settings, "sequences", {"method": ("curvature", "curvature_settings", "layers")})
    if is_sharded(*request.model.parameters()):
        raise SgoifError("audit() takes no sharded model; save the whole one and audit it in one process.")
    if method.curvature == ADAM:
        raise SgoifError("curvature='adam' reads the optimiser of a training; audit() has 'kfac', for example.")
    method = replace(method, curvature_settings={"decay": _MEAN, **(method.curvature_settings or {})})
    request = replace(request, settings=replace(request.settings, method=method))
    groups, warnings = _make_groups(request)
    engine = _make_engine(request, groups, SingleProcess(), None)
    examples = SequenceSet(dataset, role="dataset", device=request.device)
    recorder = SequenceRecorder(engine.groups.shares)
    found = audit_sequence_examples(
        request.model, _explained(forward or _forward_of(request.model), request.model), examples, engine, recorder,
        batch_size=batch_size, seed=request.seed,
    )  # fmt: skip
    facts = {"kind": "audit", **request.facts, **_task_facts(engine, method), "train_size": len(examples)}
    near = found.near
    facts["near_prompts"] = {"layer": near.layer.name, "clusters": len(near)} if near.layer and len(near) else None
    facts["tuning"] = {"why_not": found.tuning} if isinstance(found.tuning, str) else asdict(found.tuning)
    facts["warnings"] = warnings | _warn_of(found, len(examples), len(examples) - len(recorder.index))
    facts["groups"] = _describe_groups(engine)
    return save_run(sink, *tables_of_sequences(recorder, facts, found.columns))


def _warn_of(audited: Audited, count: int, num_repeated: int) -> dict[str, str]:
    """What a reader of an audit must know, by cause; said at once, too."""
    found, columns = {}, audited.columns
    copied = int(sum(name is not None for name in columns.get("copied_group", ())))
    if copied:
        found["in_evaluation"] = (
            f"{copied:,} of {count:,} training sequences are evaluation sequences too, and look helpful "
            "whatever they say; `sgoif duplicates` names them"
        )
    if num_repeated:
        found["repeated_ids"] = (
            f"{num_repeated:,} of {count:,} training sequences have an id that another one has; those of one id are "
            "one row, a mean of different sequences: give each an id of its own"
        )
    if "conflict" not in columns:
        found["no_conflict"] = (
            "no scored layer shows what the model makes of a prompt, so there is no `conflict`, and `suspicion` reads "
            "the harm, which finds less; score layers of the decoder with sgoif.Method(layers=[...])"
        )
    elif not np.isfinite(columns["coverage"]).any():
        found["no_prompts"] = (
            "the evaluation sequences have no prompts, as plain texts have none, so nothing tells which training "
            "sequences they speak of: there is no `coverage`, and `suspicion` trusts them for all; see to it that they "
            "are as varied as the training sequences"
        )
    elif (num_far := int((columns["coverage"] < _COVERED).sum())) > _MOST_FAR * count:
        found["not_covered"] = (
            f"{num_far:,} of {count:,} training sequences have a prompt that few or no evaluation sequences are like "
            f"(`coverage` below {_COVERED}), and are ranked by little more than their loss"
        )
    if isinstance(audited.tuning, str):
        found["not_tuned"] = (
            f"there is no `loss_tuned`, and `suspicion` weighs `loss_last`, which finds less: {audited.tuning}"
        )
    for text in found.values():
        log.warning("%s.", text)
    return found


def _warn_of_unscored(examples: Columns, known: Mapping[str, str]) -> dict[str, str]:
    """What was left out of the scores, and why, by cause, beside what is known; said at once, too."""
    found, count = {}, len(examples["id"])
    empty = int((examples["num_tokens"] == 0).sum())
    if empty and not (empty == count and "no_tokens" in known):
        found["no_tokens"] = (
            f"{empty:,} of {count:,} training sequences {_NOTHING_TO_PREDICT}, so they have neither loss nor scores: "
            f"{_CUT_AWAY}"
        )
    for text in found.values():
        log.warning("%s.", text)
    return found


def _warn_of_stale_losses(counters: Mapping[str, int]) -> dict[str, str]:
    """Where few steps are scored, a sequence's last loss is not that of its last visit."""
    passed = counters["visits_passed_over"]
    total = passed + counters["visits_offered"]
    if 2 * passed < total or not passed:
        return {}
    text = (
        f"{passed:,} of {total:,} visits were in steps that the plan does not score, so that last losses are old and "
        "scores rest on few visits; audit the finished model (watching.audit() or sgoif.audit)"
    )
    log.warning("%s.", text)
    return {"passed_over": text}


def _warn_of_one_visit(recorder: SequenceRecorder) -> dict[str, str]:
    """A ranking by losses that were seen once is one by time."""
    if not recorder.num_visits or recorder.num_visits > len(recorder.index):
        return {}
    text = (
        "every sequence was seen once, early ones by a model that knew little, so that the loss ranks them by the time "
        "of their visit; audit the finished model (watching.audit() or sgoif.audit)"
    )
    log.warning("%s.", text)
    return {"seen_once": text}


def _make_groups(request: Request) -> tuple[AnchorGroups, dict[str, str]]:
    """The evaluation sequences that have something to predict, and a warning of others."""
    groups = AnchorGroups(request.anchors, device=request.device, seed=request.seed)
    lost = groups.drop_empty(is_causal=is_causal(request.model))
    if not lost:
        return groups, {}
    total = lost + sum(groups.sizes)
    text = f"{lost:,} of {total:,} evaluation sequences {_NOTHING_TO_PREDICT} and are left out: {_CUT_AWAY}"
    log.warning("%s.", text)
    return groups, {"empty_evaluation": text}


def _refuse_other_groups(groups: AnchorGroups, peers: Peers) -> None:
    """Raise in all processes where their groups have not the same names and sizes, without which they cannot add up."""
    sizes = dict(zip(groups.names, groups.sizes))
    digest = float(zlib.crc32(repr(sizes).encode()))
    most, least = peers.all_reduce_max([digest, -digest])
    if most != -least:
        shown = ", ".join(f"{name!r}: {size:,}" for name, size in list(sizes.items())[:5])
        raise SgoifError(
            "the processes have different groups of evaluation sequences; give all of them groups of the same names "
            f"and sizes, in the same order. This one has {shown}{', ...' if len(sizes) > 5 else ''}."
        )


def _make_engine(
    request: Request, groups: AnchorGroups, peers: Peers, optimizer: torch.optim.Optimizer | None
) -> SequenceEngine:
    method, model = request.settings.method, request.model
    if request.is_compiled:
        raise SgoifError("task='sequences' does not watch compiled models yet; train without torch.compile.")
    names = [method.layers] if isinstance(method.layers, str) else list(method.layers)
    layers = find_sequence_layers(model, None if names == ["auto"] else names)
    for layer in layers:
        refuse_in_pieces(layer)
    return SequenceEngine(layers, groups, method, optimizer=optimizer, is_causal=is_causal(model), peers=peers)


def _task_facts(engine: SequenceEngine, method: Method) -> dict[str, Any]:
    used = {
        "curvature": method.curvature,
        "curvature_settings": dict(method.curvature_settings or {}),
        "curvature_by_layer": engine.curvature_names,
        "solver": "direct",
        "layers": [layer.name for layer in engine.layers],
    }
    return {"task": "sequences", "is_experimental": True, "method": used}


def _forward_of(model: nn.Module) -> Forward:
    """A batch to logits. Labels are kept from a model that needs them for nothing but a loss that is not used."""

    def forward(batch: Any) -> torch.Tensor:
        needs_labels = bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))
        inputs = {name: value for name, value in batch.items() if needs_labels or name != "labels"}
        return find_logits(model(**inputs))

    return forward


def _explained(forward: Forward, model: nn.Module) -> Forward:
    """The same, but an error of the model's tells what it was given."""
    most = getattr(getattr(model, "config", None), "max_position_embeddings", None)

    def call(batch: Any) -> torch.Tensor:
        try:
            return forward(batch)
        except Exception as error:
            count, length = batch["labels"].shape
            allowed = f", and takes {most:,} by its configuration" if isinstance(most, int) else ""
            raise SgoifError(
                f"the model failed on {count:,} sequences at once, the longest of {length:,} tokens{allowed}: "
                f"{type(error).__name__}: {error}. Shorten sequences that are too long for it; where memory ran out, "
                "pass a smaller batch_size."
            ) from error

    return call


def empty_sequences() -> Run:
    """The run of a monitor that is switched off."""
    info = {"disabled": True, "task": "sequences", "groups": {}}
    return save_run(None, *tables_of_sequences(SequenceRecorder({"none": 1.0}), info))


def finish_sequences(monitor: SequenceMonitor) -> Run:
    """Add up what a monitor recorded and write the run down.

    Among several processes every one of them gets the run of all, and rank 0 writes it. Where they cannot be reached,
    each gets the run of its own visits; those of all are on disk.
    """
    facts, sink = loop_facts(monitor), monitor.sink
    if not monitor.peers.is_alone:
        write_part(sink, monitor.peers.rank)
        facts |= _merge_processes(monitor, facts)
        sink = sink if monitor.peers.rank == 0 else None
    noticed = {**_warn_of_one_visit(monitor.recorder), **_warn_of_stale_losses(facts["counters"])}
    facts["warnings"] = {**(facts.get("warnings") or {}), **noticed}
    facts["groups"] = _describe_groups(monitor.engine)
    return save_run(sink, *tables_of_sequences(monitor.recorder, facts))


def tables_of_sequences(
    recorder: SequenceRecorder, facts: Mapping[str, Any], more: Columns | None = None
) -> tuple[dict[str, Any], dict[str, Columns]]:
    """What is written of a run: its information, and one row per sequence, and one per sequence and group.

    Args:
        recorder: what was recorded.
        facts: for the run's information.
        more: further columns of the examples, by the recorder's rows.
    """
    examples = {**_complete(recorder.examples()), **(more or {})}
    known: Mapping[str, str] = facts.get("warnings") or {}
    count, num_not_judged = len(examples["id"]), int((examples["n_judged"] == 0).sum())
    info = {**facts, "no_p_reason": NO_PROBABILITIES, "num_examples": count, "num_not_judged": num_not_judged}
    if warnings := {**known, **_warn_of_unscored(examples, known)}:
        info["warnings"] = warnings
    return info, {"examples": examples, "group_effects": recorder.effects()}


def _describe_groups(engine: SequenceEngine) -> dict[str, Any]:
    return {
        name: {"num_sequences": size, "last_loss": loss if np.isfinite(loss) else None}
        for (name, loss), size in zip(engine.group_losses.items(), engine.groups.sizes)
    }


def _merge_processes(monitor: SequenceMonitor, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Add the visits and counters of all other processes to this one's; without them where they cannot be reached."""
    peers = monitor.peers
    own = {"recorder": monitor.recorder.state_dict(), "counters": facts["counters"], "faults": facts["faults"]}
    own["compared"] = asdict(monitor.compared)
    found: dict[str, Any] = {"world_size": peers.size, "rank": peers.rank}
    try:
        states = gather_states(peers, own)
    except Exception as error:
        why = str(error).partition("\n")[0]
        if facts["switched_off"] is None:
            why += (
                ". Call close() in every process, before destroy_process_group() and within "
                f"Budget(peer_timeout_s={facts['peer_timeout_s']:g}) of one another"
            )
        return found | {"warnings": {**facts.get("warnings", {}), **_warn_of_missing(monitor, why)}}
    finally:
        peers.abort()
    counters, faults, compared = dict(facts["counters"]), Counter[str](facts["faults"]), monitor.compared
    for rank, state in enumerate(states):
        if rank == peers.rank:
            continue
        try:
            monitor.recorder.merge(state["recorder"])
        except SgoifError as error:  # ids of another kind, for example
            found["warnings"] = {**facts.get("warnings", {}), **_warn_of_missing(monitor, str(error))}
            continue
        faults.update(state["faults"])
        compared += ComparedLosses(**state["compared"])
        for name in counters:
            if name == "faults" or name.startswith("visits"):
                counters[name] += int(state["counters"][name])
    if told := compared.describe():
        found["warnings"] = {**found.get("warnings", facts.get("warnings", {})), "loss_changed": told}
    return found | {"counters": counters, "faults": dict(faults)}


def _warn_of_missing(monitor: SequenceMonitor, why: str) -> dict[str, str]:
    others = "the other process" if monitor.peers.size == 2 else f"the other {monitor.peers.size - 1} processes"
    text = f"visits of {others} are missing: {why.removesuffix('.')}"
    if monitor.sink is not None and monitor.sink.keep_visits != "none":
        from sgoif.store.holding import closing_command

        text += f". `{closing_command(str(monitor.sink.url))}` adds up those of all, once all have ended"
    log.warning("%s.", text)
    return {RANKS_MISSING: text}


def _complete(examples: Columns) -> Columns:
    """Add probabilities that nothing has earned yet, with the reason."""
    count = len(examples["id"])
    nothing = {f"p_mislabeled{tail}": np.full(count, np.nan) for tail in ("", "_low", "_high")}
    reasons = np.array([NO_PROBABILITIES] * count, object)
    return {**examples, **nothing, "no_p_reason": reasons}
