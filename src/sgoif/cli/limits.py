"""Judging a run by limits on the share of wrong labels.

The error rate is judged by labels that a person checked with ``sgoif verify``, class rates by a verified hold-out. A
limit is exceeded when the whole interval lies above it: when the data is surely too bad. It is kept when at 90%
confidence no more labels are wrong than it allows. What lies between is unsure, and what nobody checked is not judged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sgoif.cli.compare import compare_runs
from sgoif.cli.output import count, percent, percents
from sgoif.cli.run import need_examples, need_probabilities, need_trust
from sgoif.errors import SgoifError
from sgoif.evidence.checked import cards_needed
from sgoif.findings.classes import TOO_FEW

if TYPE_CHECKING:
    from sgoif.run import Run

FINE, UNSURE, EXCEEDED, UNJUDGED = "fine", "unsure", "exceeded", "not judged"


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits that a run is checked against; None where no limit is set."""

    max_error_rate: float | None = None
    max_class_error_rate: float | None = None
    max_new: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one limit came out."""

    kind: str  # the option's name
    about: str  # "all examples", a class, "new findings"
    state: str
    limit: float
    value: float | None
    low: float | None
    high: float | None
    text: str  # what was found, in words


@dataclass(frozen=True, slots=True)
class Verdict:
    """How all limits came out."""

    outcomes: list[Outcome] = field(default_factory=list)
    reason: str | None = None  # why nothing could be judged

    @property
    def state(self) -> str:
        """Exceeded if any limit is; not judged if a question has no answer at all; else fine, or unsure if any is."""
        if any(item.state == EXCEEDED for item in self.outcomes):
            return EXCEEDED
        answered = {item.kind for item in self.outcomes if item.state != UNJUDGED}
        is_open = any(item.kind not in answered for item in self.outcomes)
        if self.reason is not None or is_open or not self.outcomes:
            return UNJUDGED
        return UNSURE if any(item.state == UNSURE for item in self.outcomes) else FINE


def judge(run: Run, limits: Limits, against: Run | None = None) -> Verdict:
    """Hold a run against limits; trouble with the run is a reason not to judge, not an error."""
    outcomes: list[Outcome] = []
    checked = run.info.get("checked")
    try:
        need_examples(run)
        if limits.max_error_rate is not None and checked is not None:
            need_trust(run, needs_holdout=False)
            what = "sequence" if run.has_sequences else "label"
            outcomes.append(_judge_checked(checked, limits.max_error_rate, what))
            if limits.max_class_error_rate is None and limits.max_new is None:
                return Verdict(outcomes)
        if run.has_sequences:
            _refuse_for_sequences(run, limits)
        need_trust(run)  # first: it may be why there are no probabilities
        need_probabilities(run)
        if limits.max_new is not None and against is not None:
            outcomes.append(_judge_new(run, against, limits.max_new))
        if limits.max_error_rate is not None and checked is None:
            unchecked = "nobody has checked labels, and what the run says itself is an estimate"
            raise SgoifError(_ask_for_checks(run, unchecked))
        if limits.max_class_error_rate is not None:
            if not run.info.get("trusted"):  # a sample of all labels is too small to judge each class
                is_scan = run.info.get("kind") == "scan"
                way = "a scan has none: audit a model" if is_scan else "this run has none: see `sgoif holdout`"
                raise SgoifError(f"classes are judged by a verified hold-out, and {way}.")
            if doubt := run.info.get("no_totals_reason"):  # probabilities rank, and their sum is not to be believed
                raise SgoifError(f"{run.url!r} gives no numbers of errors: {doubt}. Look at a sample: `sgoif report`.")
            outcomes += _judge_classes(run, limits.max_class_error_rate)
    except SgoifError as error:
        return Verdict(outcomes, str(error))
    return Verdict(outcomes)


def _ask_for_checks(run: Run, unchecked: str, options: str = "") -> str:
    why = run.info.get("why_not_checked", unchecked)
    return f"{why}. Check some, in ten minutes: `sgoif verify {run.url}{options} --page check.html`."


def _refuse_for_sequences(run: Run, limits: Limits) -> None:
    """Say what cannot be judged of a language model's sequences."""
    if limits.max_class_error_rate is not None or limits.max_new is not None:
        name = "--max-class-error-rate" if limits.max_class_error_rate is not None else "--max-new"
        raise SgoifError(f"{name} goes with labels; this run judged sequences.")
    raise SgoifError(_ask_for_checks(run, "nobody has checked sequences", " --show train.jsonl"))


def _judge_checked(checked: Mapping[str, Any], limit: float, what: str) -> Outcome:
    """Judge by the sample of `sgoif verify`."""
    found = checked["all"]
    value, low, high, most = (float(found[name]) for name in ("value", "low", "high", "at_most"))
    number = count(found["num_checked"], what)
    text = f"{percent(value)} wrong (90% interval {percents(low, high)}, at most {percent(most)} at 90% confidence), "
    text += f"from {number} checked"
    state = EXCEEDED if low > limit else FINE if most <= limit else UNSURE
    needed = cards_needed(limit)
    if state == UNSURE and value <= limit and needed > 0 and found["num_checked"] < needed:
        text += f"; to show that a rate is below {percent(limit)}, check about {count(needed)}"
    return Outcome("max-error-rate", "all examples", state, limit, value, low, high, text)


def _judge_classes(run: Run, limit: float) -> list[Outcome]:
    found = []
    for row in run.class_issues().to_pylist():
        about = ("max-class-error-rate", row["name"])
        value, low, high = (_float(row[name]) for name in ("error_rate", "error_rate_low", "error_rate_high"))
        if row["verdict"] == TOO_FEW or not math.isfinite(low):
            few = "too few examples, or too few of it held out" if row["verdict"] == TOO_FEW else None
            found.append(Outcome(*about, UNJUDGED, limit, None, None, None, few or "this run has no intervals"))
            continue
        labels = count(row["num_examples"], "label")
        text = f"{percent(value)} of {labels} estimated wrong, range {percents(low, high)}"
        state = EXCEEDED if low > limit else FINE if high <= limit else UNSURE
        found.append(Outcome(*about, state, limit, value, low, high, text))
    return found


def _judge_new(run: Run, against: Run, limit: int) -> Outcome:
    found = compare_runs(against, run)
    number = len(found.new) + len(found.added)
    text = f"{count(number)} newly flagged"
    text += f", {count(len(found.added))} of them of new examples" if len(found.added) else ""
    state = EXCEEDED if number > limit else FINE
    return Outcome("max-new", "new findings", state, limit, number, number, number, text)


def _float(value: Any) -> float:
    return math.nan if value is None else float(value)
