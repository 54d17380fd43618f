"""What a run found, in a few lines: how many errors to expect, how good its list is, and what it rests on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sgoif.cli.opened import FLAGGED, OpenRun
from sgoif.cli.output import clean, count, percent, percents
from sgoif.evidence import error_rates

__all__ = ["Leak", "Summary", "summarise"]

_SHOWN_LEAKS = 4
_NOTABLE_LEAK = 0.01


@dataclass(frozen=True, slots=True)
class Leak:
    """A class that is labelled as another: share of it that is, by the estimated noise transition."""

    true_class: str
    given_class: str
    share: float


@dataclass(frozen=True, slots=True)
class Summary:
    """What is known of a whole run; numbers about errors are None where it was not calibrated."""

    run: str
    state: str
    kind: str
    num_examples: int
    num_judged: int
    num_classes: int
    num_held_out: int | None
    is_calibrated: bool
    why_not_calibrated: str | None
    holdout: str
    num_flagged: int
    expected_errors: float | None
    error_rate: float | None
    error_rate_low: float | None
    error_rate_high: float | None
    expected_precision: list[dict[str, Any]]
    leaks: list[Leak]

    def document(self) -> dict[str, Any]:
        """The summary for ``--json``."""
        return asdict(self)

    def lines(self) -> list[str]:
        """The summary for people."""
        about = f"{clean(self.run)}: {count(self.num_examples, 'example')} in {count(self.num_classes, 'class')}"
        held = "" if self.num_held_out is None else f" of {count(self.num_held_out)}"
        lines = [f"{about}; hold-out{held} {self.holdout}."]
        if not self.is_calibrated:
            return [*lines, f"Not calibrated, so ranked by `worst` without probabilities: {self.why_not_calibrated}."]
        # measured on human labels: an unverified hold-out shares the blind spots of the labels that it judges
        least = "" if self.holdout == "trusted" else "at least about "
        rates = f"{percent(self.error_rate)} of the labels, 90% interval "
        rates += percents(self.error_rate_low, self.error_rate_high)
        lines.append(
            f"Expected errors: {least}{count(self.expected_errors or 0)} ({rates}); {count(self.num_flagged)} are more "
            "likely wrong than right."
        )
        tops = [
            f"{percent(item['value'])} of the top {100 * item['top']:g}% ({count(item['count'])}) "
            f"[{percents(item['low'], item['high'])}]"
            for item in self.expected_precision
        ]
        if tops:
            lines.append(f"Expected to be errors: {', '.join(tops)}.")
        leaks = [
            f"{clean(leak.true_class)} labelled {clean(leak.given_class)}: {percent(leak.share)}" for leak in self.leaks
        ]
        lines.append(f"Most often confused: {', '.join(leaks)}." if leaks else "No class is often taken for another.")
        return lines


def summarise(run: OpenRun) -> Summary:
    """Collect the summary of a run."""
    facts = run.facts
    held = facts.get("held_out_per_class")
    rate = low = high = errors = None
    flagged = 0
    if run.is_calibrated:
        columns = run.rates_columns()
        p = columns["p_mislabeled"]
        flagged, errors = int((np.nan_to_num(p) >= FLAGGED).sum()), float(np.nansum(p))
        lows, highs = (columns[f"p_mislabeled_{end}"] for end in ("low", "high"))
        found = error_rates(p, lows, highs, np.zeros(len(p), np.int64), 1)
        rate, low, high = (float(values[0]) for values in (found.rate, found.low, found.high))
    precision = facts.get("expected_precision")
    return Summary(
        run=run.url,
        state=str(run.info.get("state")),
        kind=str(facts.get("kind", "watch")),
        num_examples=run.num_examples,
        num_judged=run.num_judged,
        num_classes=run.num_classes,
        num_held_out=sum(held) if isinstance(held, list) else None,
        is_calibrated=run.is_calibrated,
        why_not_calibrated=None if run.is_calibrated else _why_not(run),
        holdout=kind_of_holdout(run),
        num_flagged=flagged,
        expected_errors=errors,
        error_rate=rate,
        error_rate_low=low,
        error_rate_high=high,
        expected_precision=precision if isinstance(precision, list) else [],
        leaks=_leaks(run),
    )


def kind_of_holdout(run: OpenRun) -> str:
    """Whether the hold-out's labels were verified, and if not, whether they were cleaned and why."""
    if run.facts.get("trusted"):
        return "trusted"
    choice, verified = run.facts.get("holdout_cleaning"), run.facts.get("num_verified")
    labels = f"as given but for {count(verified)} verified" if isinstance(verified, int) and verified else "as given"
    if not isinstance(choice, dict):
        return f"{labels}, not self-cleaned"
    return f"{labels}, {'self-cleaned' if choice.get('clean') else 'not self-cleaned'} ({choice.get('reason', '?')})"


def _why_not(run: OpenRun) -> str:
    error = run.facts.get("calibration_error")
    if error:
        return str(error)
    if run.info.get("state") != "finished":
        return "the run did not finish"
    return "its hold-out was too small or had no second fold"


def _leaks(run: OpenRun) -> list[Leak]:
    try:
        transition = np.array(run.facts.get("transition") or np.zeros((0, 0)), dtype=np.float64)
    except (TypeError, ValueError):
        return []
    if transition.ndim != 2 or transition.shape[0] != transition.shape[1]:
        return []
    shares = np.nan_to_num(transition) * (1 - np.eye(len(transition)))
    order = np.argsort(-shares, axis=None, kind="stable")[:_SHOWN_LEAKS]
    pairs = [(int(i), int(j)) for i, j in zip(*np.unravel_index(order, shares.shape), strict=True)]
    named = [Leak(run.name_of(i), run.name_of(j), float(shares[i, j])) for i, j in pairs]
    return [leak for leak in named if leak.share >= _NOTABLE_LEAK]
