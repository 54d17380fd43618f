"""Where a run goes while it goes on: a folder, memory, or nowhere; among several processes each writes its part."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, get_args

from sgoif.distributed import Peers
from sgoif.errors import SgoifError
from sgoif.training.recorder import Recorder
from sgoif.training.sinks import KeepVisits, MemorySink, ScoreSink

__all__ = ["agree_on_out", "check_out", "make_recorder", "make_shared_sink", "make_sink"]

log = logging.getLogger(__name__)


def make_recorder(
    classes: int,
    train_size: int,
    out: str | None,
    keep_visits: KeepVisits,
    peers: Peers,
    *,
    overwrite: bool = False,
    temperature: float | None = None,
) -> Recorder:
    """Among several processes each writes its part of the run, from which the visits are added up in the end."""
    if peers.is_alone or out is None:
        if not peers.is_alone:
            log.warning("without out= every rank keeps a run of its own visits; pass it to have one run of all.")
        sink = make_sink(out, keep_visits, overwrite=overwrite)
        return Recorder(classes, train_size, sink, rank=peers.rank, temperature=temperature)
    if keep_visits == "none":
        raise SgoifError(
            "several ranks add up a run from its visits; pass budget=sgoif.Budget(keep_visits='last') or 'all'."
        )
    sink = make_shared_sink(out, keep_visits, peers, overwrite=overwrite)
    return Recorder(classes, train_size, sink, rank=peers.rank, keeps_evidence=False, temperature=temperature)


def make_sink(out: str | None, keep_visits: KeepVisits, *, overwrite: bool = False) -> ScoreSink | None:
    """Where visits go: a run on disk, memory, or nowhere."""
    _check_kept(keep_visits)
    if out is not None:
        from sgoif.store.writer import DeferredSink

        return DeferredSink(out, keep_visits=keep_visits, overwrite=overwrite)
    return None if keep_visits == "none" else MemorySink()


def make_shared_sink(
    out: str,
    keep_visits: KeepVisits,
    peers: Peers,
    *,
    overwrite: bool = False,
    facts: Mapping[str, Any] | None = None,
) -> ScoreSink:
    """The part of this process in a run on disk that all of them write; facts are there from its first visits on."""
    from sgoif.store.writer import DeferredSink

    _check_kept(keep_visits)
    if peers.is_alone:
        return DeferredSink(out, keep_visits=keep_visits, overwrite=overwrite, facts=facts)
    attempt, refusal, error = peers.broadcast(_look_for_all(out) if peers.rank == 0 else (0, None, None))
    if error is not None:
        raise SgoifError(error)
    settings: dict[str, Any] = {"attempt": attempt, "keep_visits": keep_visits, "overwrite": overwrite}
    return DeferredSink(out, rank=peers.rank, refusal=refusal, facts=facts, **settings)


def agree_on_out(out: str | None, peers: Peers) -> str | None:
    """The folder that rank 0 was given, in every process: many scripts give the others none.

    Raises:
        SgoifError: In all of them, where only others were given one.
    """
    (is_given,) = peers.all_reduce_max([float(out is not None)])
    first = peers.broadcast(out)
    if is_given and first is None:
        raise SgoifError("out= was given to other processes and not to rank 0; give it to all of them, or to rank 0.")
    return first


def _check_kept(keep_visits: str) -> None:
    if keep_visits not in get_args(KeepVisits):
        raise SgoifError(f"keep_visits must be one of {', '.join(get_args(KeepVisits))}, got {keep_visits!r}.")


def check_out(out: str | None, overwrite: bool) -> None:
    """Refuse an ``out`` that holds a run, before an audit begins."""
    if out is not None and not overwrite:
        from sgoif.store.holding import refusal_of

        refusal = refusal_of(out, resumable=False)
        if refusal is not None:
            raise SgoifError(refusal)


def _look_for_all(out: str) -> tuple[int, str | None, str | None]:
    """Number of this attempt, why it may not begin, and what is wrong with the folder: all ranks raise alike."""
    from sgoif.store.holding import refusal_of
    from sgoif.store.parts import next_attempt

    try:
        return next_attempt(out), refusal_of(out), None
    except Exception as error:
        return 0, None, f"cannot write a run to {out!r}: {error}"
