"""Judges of labels on the records of short trainings: today's `watch` and `audit`, and a judge of what is on record.

Trainings are recorded once (`python -m benchmarks.judge.record`; a replay makes the record that it lacks), so that a
changed judge is measured in minutes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from time import process_time
from typing import Any

import numpy as np
import torch

import sgoif
from benchmarks.experiment import Experiment, option
from benchmarks.judge import bars, tables
from benchmarks.judge.cells import GROUPS, Cell, Group
from benchmarks.judge.measure import Judgement, free_signals, mean_signals, measure, precision
from benchmarks.judge.observe import Record, last_scored, mean_loss_of, observe
from benchmarks.judge.record import FLAGGED, facts_of, read_record
from sgoif.evidence import error_share
from sgoif.judging.observations import Heldout, Observations
from sgoif.judging.predictions import TopPredictions
from sgoif.judging.probe import fit_probe

# by what they see: the finished model and the visits that were scored; these visits alone; the finished model alone
JUDGES = ("judge", "judge_visits", "judge_audit")
ANSWERS = ("watch", "audit")  # that are on record, as the commit of the record gave them
_KEPT = 4  # classes of a visit that are on record


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup(Cell):
    """One replay, and who judges it."""

    judge: str = option("watch", (*ANSWERS, *JUDGES))

    @property
    def cell(self) -> Cell:
        return Cell(*(getattr(self, field.name) for field in fields(Cell)))


def examine(setup: Setup) -> dict[str, Any]:
    """Judge one replay."""
    replay = setup.cell
    record = read_record(replay.base)
    given, clean = record["given"], record["clean"]
    wrong = given != clean
    if setup.judge in JUDGES:
        found, commit = judge_record(record, replay, setup.judge), None
    else:
        answered = record if replay == replay.base else read_record(replay)
        found, commit = read_answer(answered, setup.judge), facts_of(answered)["commit"]
    mean = observe(record, replay)["views"]["mean"]
    return {
        "examples": len(given),
        "errors": int(wrong.sum()),
        "recorded": commit,
        "report": measure(found, given, clean),
        "free": {name: precision(score, wrong) for name, score in free_signals(record).items()},
        "beside": {name: precision(score, wrong) for name, score in mean_signals(mean, given).items()},
    }


def read_answer(record: Record, name: str) -> Judgement:
    """What `watch` or `audit` answered when the training was recorded.

    Totals and ranges are those of the training labels alone; a run without probabilities is ordered by its margin.
    """
    facts, p = facts_of(record), record[f"{name}_p_mislabeled"]
    said, seconds, count = facts[name], facts["seconds"], len(record["given"])
    is_told = said["expected_errors"] is not None
    cost = seconds["audit"] if name == "audit" else seconds["train and watch"] - seconds["bare"]
    return Judgement(
        score=p if np.isfinite(p).any() else -record[f"{name}_margin"],
        flags=record[f"{name}_flag"],
        total=float(np.nansum(p)) if is_told else None,
        low=count * said["error_rate_low"] if is_told else None,
        high=count * said["error_rate_high"] if is_told else None,
        seconds=cost,
    )


def judge_record(record: Record, replay: Cell, judge: str) -> Judgement:
    """Ask ``sgoif.judge`` of what a watched training or an audit has seen."""
    started = process_time()
    seen = observe(record, replay)
    labels, views, held = seen["labels"], seen["views"], seen["holdout_views"]
    ids, over_visits, mean_loss = np.arange(len(labels)), None, None
    final = views["final"]
    if judge == "judge_visits":
        final = last_scored(record["visits"], record["scored"])
    if judge != "judge_audit":
        mean_loss = mean_loss_of(record["visits"], record["scored"], labels)
        over_visits = TopPredictions.of(np.nan_to_num(views["scored"]), _KEPT)
    probe = None
    if seen["trusted"] and judge != "judge_visits":  # what has no features has no probe
        features, unseen = (torch.from_numpy(seen[name]).float() for name in ("features", "holdout_features"))
        probe = fit_probe(unseen, seen["holdout_labels"], views["final"].shape[1])
    if probe is not None:
        final = probe.logs(features).double().numpy()
    verdict = sgoif.judge(
        Observations(
            ids=ids,
            labels=labels,
            views={"final": TopPredictions.of(final, None if judge == "judge" else _KEPT)},
            heldout=Heldout(
                labels=seen["holdout_labels"],
                predictions=TopPredictions.of(held["final"]),
                trusted=seen["trusted"],
                probe=None if probe is None else TopPredictions.of(probe.held_logs.double().numpy()),
            ),
            over_visits=over_visits,
            num_visits=None if mean_loss is None else record["scored"].sum(0),
            mean_loss=mean_loss,
        )
    )
    p, low, high = verdict.labels[:3]
    is_told = verdict.no_p_reason is None
    most = None if seen["trusted"] else verdict.competence.most_wrong
    _, least_share, most_share = error_share(p, low, high, most)  # as summaries print it
    return Judgement(
        score=p,
        flags=is_told & (np.nan_to_num(p) >= FLAGGED),
        total=float(np.nansum(p)) if is_told else None,
        low=len(labels) * least_share if is_told else None,
        high=len(labels) * most_share if is_told else None,
        seconds=process_time() - started,
    )


def describe(row: Mapping[str, Any]) -> str:
    """One replay in a line."""
    report, free = row["report"], [ap for ap in row["free"].values() if ap is not None]
    said = f"AP {report['ap']:.1f} (free {max(free):.1f})" if free else "no wrong labels"
    total = "cannot tell" if report["total"] is None else f"claimed {report['total']:.0f}"
    return f"{row['errors']} errors, {said}, {total}, {report['right']} of {report['flags']} flags right"


def _grids(group: Group) -> Iterator[dict[str, Any]]:
    """Every replay, the quickest first, by the judges that can answer it: today's answers are on record for some."""
    recorded = {*group.base, *group.watched}
    for cell in sorted(group.replays, key=lambda cell: cell.seconds):
        yield {**asdict(cell), "judge": (*(ANSWERS if cell in recorded else ()), *JUDGES)}


_SHARED: Mapping[str, Any] = {
    "settings": Setup,
    "run": examine,
    "benchmark": "judge",
    "file": "judge.jsonl",
    "describe": describe,
}

JUDGE = Experiment(
    name="judge",
    tables={
        "judge_all": tables.by_holdout,
        "judge_bars": bars.bars,
        "judge_data": tables.by_data,
        "judge_cells": tables.by_cell,
    },
    full=list(_grids(GROUPS["reported"])),
    small=asdict(replace(Cell(), noise="sym-5")),
    **_SHARED,
)
DEVELOPMENT = Experiment(name="judge_development", full=list(_grids(GROUPS["development"])), **_SHARED)
