"""From what a monitor recorded to a run: evidence added up, probabilities learnt, tables written.

The table of examples is held in memory up to some millions of them. Beyond, where several processes wrote the run, it
goes by bucket of ids: probabilities are learnt from a sample, which is the first buckets, since a bucket is a piece of
the range of hashes; then each bucket is judged and written in turn.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from sgoif.evidence import LIKENESS_COLUMNS, hash_ids
from sgoif.evidence.examples import read_examples
from sgoif.judging.judgement import Judged
from sgoif.judging.observations import Heldout
from sgoif.reasons import Reasons
from sgoif.run import Run, load
from sgoif.tables import MemoryTables
from sgoif.training.base import BaseMonitor
from sgoif.training.closing_pass import FinalViews, final_views
from sgoif.training.engine import Engine
from sgoif.training.holdout_scores import HoldoutScores
from sgoif.training.judged import NoProbabilities, RunJudge, judge_run
from sgoif.training.monitor import Monitor
from sgoif.training.recorder import Recorder
from sgoif.training.sinks import MemorySink, ScoreSink
from sgoif.types import Columns

if TYPE_CHECKING:
    from sgoif.store.writer import DeferredSink
    from sgoif.training.multilabel.monitor import MultilabelMonitor

log = logging.getLogger(__name__)

__all__ = [
    *("add_up", "collect_judged_run", "collect_run", "finish_run", "judge_so_far", "loop_facts", "save_run"),
    *("watch_facts", "write_part"),
]


_HELD = 2_000_000  # examples whose table is held in memory, about 400 bytes each
_SAMPLE = 200_000  # examples at least that are there to learn probabilities from, and at most that they are learnt from
_AT_ONCE = 1 << 17  # examples judged at once, with some copies of their predictions
_BUCKET_BYTES = 256 << 20


def finish_run(monitor: Monitor) -> Run | None:
    """Add up what a monitor recorded, write the run down where a place was given, and close the sink.

    Among several processes that write one run, rank 0 adds it up and the others get None.
    """
    views = final_views(monitor, monitor.closing_dataset)  # first: the table that is judged has its predictions
    facts = watch_facts(monitor) | {"final_view": views.facts}
    recorder, peers = monitor.recorder, monitor.peers
    if not peers.is_alone:
        facts |= {"world_size": peers.size, "rank": peers.rank, "counters": _sync_counters(monitor, facts["counters"])}
        peers.abort()
        if not recorder.keeps_evidence and peers.rank != 0:
            return None
    if monitor.holdout_scores is None:
        return collect_run(recorder, facts)
    return collect_judged_run(monitor.holdout_scores, recorder, monitor.engine, facts, views=views)


def watch_facts(monitor: Monitor | MultilabelMonitor) -> dict[str, Any]:
    """What a run's information says of the training of a model with a head."""
    return loop_facts(monitor) | {"head": monitor.engine.head.name}


def loop_facts(monitor: BaseMonitor[Any]) -> dict[str, Any]:
    """What a run's information says of any training that was watched."""
    return {
        "kind": "watch",
        "switched_off": None,  # in this attempt; one that was killed may have written another word
        **monitor.facts,
        "counters": monitor.counters,
        "faults": dict(monitor.faults),
        "overhead": monitor.governor.overhead,
        "overhead_by_part": monitor.governor.shares,
        "plan": asdict(monitor.plan),
        "plan_changes": monitor.governor.changes,
    }


def _sync_counters(monitor: Monitor, counters: dict[str, int]) -> dict[str, int]:
    """Have all processes write what they hold, wait until they have, and add up what each of them counted.

    Where they cannot be waited for, the run is made of what is there.
    """
    sink = monitor.recorder.sink
    write_part(sink, monitor.peers.rank)
    own = {name: n for name, n in counters.items() if name in ("faults", "visits") or name.startswith("visits_")}
    files = _file_sink(sink)
    lost = [0, 0] if files is None else [sum(files.trouble.faults.values()), files.lost_rows]
    try:
        (summed,) = monitor.peers.all_reduce_sum([torch.tensor([*own.values(), *lost], dtype=torch.float64)])
    except Exception as error:
        log.warning("the other ranks could not be waited for; visits of theirs may be missing: %s", error)
        return counters
    if files is not None:  # run.json tells of all ranks, and rank 0 alone writes it
        faults, rows = (int(total) - mine for total, mine in zip(summed[-2:], lost))
        files.trouble.drop(0, rows)
        if faults:
            files.trouble.count("on other ranks, whose logs tell the cause", faults)
    return counters | {name: int(value) for name, value in zip(own, summed)}


def write_part(sink: ScoreSink | None, rank: int) -> None:
    """Have one of several processes write what it holds; rank 0 goes on to write the run. Never raises."""
    try:
        if sink is not None and rank == 0:
            sink.checkpoint()
        elif sink is not None:
            sink.close()
    except Exception as error:
        log.warning("this rank's part of the run could not be written: %s", error)


def judge_so_far(monitor: Monitor) -> Columns | None:
    """One row per example that this process has seen, judged as the run would be if it ended here; None if it can't be.

    The noise is learnt from a sample, where there are many.
    """
    scores = monitor.holdout_scores
    if scores is None:
        return None
    table = add_up(monitor.recorder)
    sample = table if len(table["id"]) <= _SAMPLE else _sample(table | {"id_hash": hash_ids(table["id"])})
    try:
        judge = judge_run(sample, scores.heldout(monitor.engine), scores.known_classes(monitor.engine))
    except NoProbabilities:
        return None
    if judge.no_p_reason is not None:
        return None
    return table | _join([_judgement(part, judge) for part in _pieces(table)])


def collect_judged_run(
    scores: HoldoutScores,
    recorder: Recorder,
    engine: Engine,
    facts: dict[str, Any],
    *,
    views: FinalViews | None = None,
    more: Columns | None = None,
) -> Run:
    """Add up a run and judge its labels where the hold-out allows it; a run without is worth more than none.

    Args:
        scores: of hold-out examples.
        recorder: what was recorded of the training examples.
        engine: whose hold-out it is.
        facts: for the run's information.
        views: what the finished model says; if left out, what was seen of the hold-out last.
        more: further columns of the examples.
    """
    examples, rest = _examples(recorder)
    judge, why = None, None
    held = np.bincount(scores.labels, minlength=scores.num_classes)
    facts = {**facts, "held_out_per_class": held.tolist()}
    try:
        sample = examples if rest is None else _sample(examples)
        judge = judge_run(sample, _heldout(scores, engine, views), scores.known_classes(engine))
        why = judge.no_p_reason
    except NoProbabilities as reason:
        why = str(reason)
    except Exception as error:
        why = f"the labels could not be judged: {type(error).__name__}: {error}"
        facts = {**facts, "judging_error": f"{type(error).__name__}: {error}"}
    if judge is None:
        log.warning("this run has no probabilities: %s. Its labels are ranked by their margin.", why)
    competence = scores.competence(engine) if judge is None else judge.by.competence
    facts |= {"competence": asdict(competence), "no_p_reason": why}
    holdout = scores.table(engine)
    if judge is not None:
        holdout |= _judgement_of_holdout(judge, holdout["given_label"])
    if rest is not None:
        buckets = chain([examples], rest)
        del examples  # so that a bucket is forgotten once it is written
        return _stream_run(recorder, facts, judge, buckets, holdout)
    return collect_run(recorder, facts, judge, examples=examples, holdout=holdout, more=more)


def _heldout(scores: HoldoutScores, engine: Engine, views: FinalViews | None) -> Heldout:
    return scores.heldout(engine) if views is None else scores.heldout(engine, views.probe, views.held_log_p)


def collect_run(
    recorder: Recorder,
    facts: dict[str, Any],
    judge: RunJudge | None = None,
    *,
    examples: Columns | None = None,
    holdout: Columns | None = None,
    more: Columns | None = None,
) -> Run:
    """One row per example from the recorder's evidence and ``more``, with the facts of the run beside it."""
    if examples is None:
        examples, rest = _examples(recorder)
        if rest is not None:
            return _stream_run(recorder, facts, None, chain([examples], rest))
    reasons = Reasons.of(facts, judge)
    tables = {"examples": examples | (more or {})}
    tables["examples"] |= _judgement(examples, judge, reasons)
    tables |= {} if holdout is None else {"holdout": reasons.with_holdout(holdout)}
    if judge is not None:
        reasons.warn(tables["examples"])
        facts = {**facts, **judge.facts(float(np.nansum(tables["examples"]["p_mislabeled"])))}
    info = {**facts, "num_examples": len(tables["examples"]["id"]), "num_not_judged": _not_judged(tables["examples"])}
    return save_run(recorder.sink, info, tables)


def _stream_run(
    recorder: Recorder,
    facts: dict[str, Any],
    judge: RunJudge | None,
    buckets: Iterator[Columns],
    holdout: Columns | None = None,
) -> Run:
    """One row per example, judged and written bucket by bucket; no more than one bucket is held."""
    from sgoif.store import RunFiles, write_edition

    sink = recorder.sink
    assert sink is not None and sink.url is not None  # the buckets are of its files
    counts, expected = {"num_examples": 0, "num_not_judged": 0}, 0.0
    reasons = Reasons.of(facts, judge)

    def judge_buckets() -> Iterator[Columns]:
        nonlocal expected
        for part in chain.from_iterable(map(_pieces, buckets)):
            counts["num_examples"] += len(part["id"])
            counts["num_not_judged"] += _not_judged(part)
            columns = _judgement(part, judge, reasons)
            expected += float(np.nansum(columns["p_mislabeled"]))
            yield part | columns

    try:
        write_edition(RunFiles(sink.url), "examples", judge_buckets())
    except Exception as error:
        log.warning("the visits could not be added up; `sgoif close` does it later: %s", error)
        counts = dict.fromkeys(counts, 0)
    tables = {} if holdout is None else {"holdout": reasons.with_holdout(holdout)}
    if judge is not None:
        facts = facts | judge.facts(expected)
    return save_run(sink, facts | counts, tables)


def _pieces(table: Columns) -> Iterator[Columns]:
    for start in range(0, len(table["id"]), _AT_ONCE):
        yield {name: values[start : start + _AT_ONCE] for name, values in table.items()}


def _sample(table: Columns) -> Columns:
    """Examples with the smallest hashes: a sample that is the same whatever the order of visits."""
    chosen = np.argsort(table["id_hash"], kind="stable")[:_SAMPLE]
    return {name: values[chosen] for name, values in table.items()}


def _not_judged(examples: Columns) -> int:
    """Count examples whose every visit met a shut gate, or no direction yet; a later snapshot can judge them."""
    return int((examples["confidence"] <= 0).sum())


def save_run(sink: ScoreSink | None, info: dict[str, Any], tables: dict[str, Columns]) -> Run:
    """Write a run's tables where its visits went; it is held in memory besides, should the disk fail."""
    if isinstance(sink, MemorySink):
        return Run(info, MemoryTables({**tables, **sink.tables(), "visits": sink.visits()}))
    files = _file_sink(sink)
    if files is not None:
        try:
            written = files.opened
            for name, columns in tables.items():
                written.write_table(name, columns)
            written.write_info(info)
            written.close()
            if written.dropped_rows:
                causes = "; ".join(written.faults) or "see the log"
                log.warning("%d rows are not in the run on disk: %s", written.dropped_rows, causes)
            if written.is_finished:
                return load(files.url)
        except Exception as error:
            log.warning("the run could not be written: %s: %s", type(error).__name__, error)
            files.trouble.note(error)
        info = {**info, "writing_faults": dict(files.trouble.faults), "dropped_rows": files.lost_rows}
    return Run(info, MemoryTables(tables))


def _file_sink(sink: ScoreSink | None) -> DeferredSink | None:
    """The sink, where it writes files; :mod:`sgoif.store` is imported only then."""
    if sink is None or sink.url is None:
        return None
    from sgoif.store.writer import DeferredSink

    return sink if isinstance(sink, DeferredSink) else None


def _examples(recorder: Recorder) -> tuple[Columns, Iterator[Columns] | None]:
    """One row per example: what this process added up, or where several wrote the run, what their visits add up to.

    Where these are too many to be held, those of the first buckets, and the other buckets; else None with them.
    """
    if recorder.keeps_evidence:
        return add_up(recorder), None
    from sgoif.store import RunFiles, merge_evidence
    from sgoif.store.merge import count_buckets

    sink = recorder.sink
    assert sink is not None and sink.url is not None  # or this process would have kept the evidence
    held: list[Columns] = []
    try:
        sink.checkpoint()
        files = RunFiles(sink.url)
        count = count_buckets(files, _BUCKET_BYTES)
        buckets = merge_evidence(files, count)
        for bucket in buckets:
            held.append(bucket)
            num_held = sum(len(part["id"]) for part in held)
            if num_held >= _SAMPLE and num_held * count / len(held) > _HELD:  # buckets are pieces of equal size
                return _join(held), buckets
    except Exception as error:
        log.warning("the visits could not be added up; `sgoif close` does it later: %s", error)
        held = []
    if not held:
        return add_up(recorder), None
    return {name: values for name, values in _join(held).items() if name != "id_hash"}, None


def _join(parts: list[Columns]) -> Columns:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def add_up(recorder: Recorder) -> Columns:
    """One row per example that a process has recorded."""
    count = len(recorder.index)
    table: Columns = {"id": np.asarray(recorder.index.ids), "given_label": recorder.given[:count]}
    table |= read_examples(recorder.evidence, recorder.likely, recorder.means, recorder.last, count=count)
    words = recorder.likeness.words(count)
    return table | dict(zip(LIKENESS_COLUMNS, words.T, strict=True)) if words.any() else table


def _judgement(examples: Columns, judge: RunJudge | None, reasons: Reasons | None = None) -> Columns:
    """Columns of what a judge says of examples: probabilities, and why there is none where there is none."""
    nothing = np.full(len(examples["id"]), np.nan)
    found: Columns = {f"p_mislabeled{tail}": nothing for tail in ("", "_low", "_high")}
    if judge is not None:
        judged, given = judge.judge(examples), examples["given_label"]
        found = _probabilities(judged, judge.shows(given)) | {"label_score": 1 - judged.p}
        found |= _suggestions(judged, examples, judge.known_classes)
    if reasons is not None:
        found["no_p_reason"] = reasons.of_examples(examples, found["p_mislabeled"])
    return found


def _judgement_of_holdout(judge: RunJudge, given: NDArray[np.int64]) -> Columns:
    judged = judge.judge_unseen()
    return _probabilities(judged, judge.shows(given)) | {"label_score": 1 - judged.p}


def _probabilities(judged: Judged, is_shown: NDArray[np.bool_]) -> Columns:
    ends = zip(("", "_low", "_high"), judged[:3], strict=True)
    return {f"p_mislabeled{tail}": np.where(is_shown, values, np.nan) for tail, values in ends}


def _suggestions(judged: Judged, examples: Columns, known_classes: NDArray[np.bool_]) -> Columns:
    """What a model of the noise suggests, which knows more than the class of the worst anchor.

    Examples that were not judged keep what they have: of them it knows nothing.
    """
    labels = np.where(known_classes[judged.suggested], judged.suggested, -1)  # -1 reads the last class and stays -1
    # votes are for what the visits saw; of another class it is not known how often it was seen
    share = np.where(labels[:, 0] == examples["suggested_label"], examples["suggested_share"], np.nan)
    names = ("suggested_label", "suggested_label_2", "suggested_label_3", "suggested_share")
    found, is_known = (*labels.T, share), np.isfinite(judged.p) & (labels[:, 0] >= 0)
    columns = {name: np.where(is_known, values, examples[name]) for name, values in zip(names, found, strict=True)}
    probable = np.where(is_known[:, None], judged.p_suggested, np.nan)
    return columns | dict(zip(("p_suggested", "p_suggested_2", "p_suggested_3"), probable.T, strict=True))
