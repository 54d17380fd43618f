"""What a run about classes found: errors to expect, how many are flagged, and which classes are confused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgoif.doubts import doubts_of, has_trained_on_holdout
from sgoif.evidence import Competence, error_share
from sgoif.findings.label import class_name
from sgoif.findings.suspects import FLAGGED, Sql, columns_of, rate_columns
from sgoif.summary.shared import (
    competence_line,
    count_examples,
    describe_checked,
    kind_of_holdout,
    read_transition,
    why_no_probabilities,
)
from sgoif.wording import clean, count, percent, percents

__all__ = ["Leak", "Summary", "summarise"]

_SHOWN_LEAKS = 4
_NOTABLE_LEAK = 0.01
_ABOVE_OTHERS = 1.5  # times the mean of all leaks


@dataclass(frozen=True, slots=True)
class Leak:
    """A class that is labelled as another: share of it that is, by the estimated noise transition."""

    true_class: str
    given_class: str
    share: float


@dataclass(frozen=True, slots=True)
class Summary:
    """What is known of a whole run; numbers about errors are None where it has none, and a reason says why."""

    run: str
    state: str
    kind: str
    num_examples: int
    num_judged: int
    num_classes: int
    num_held_out: int | None  # None for a scan, which holds nothing out
    num_verified: int  # labels of a scan that a person has checked
    is_calibrated: bool
    no_p_reason: str | None  # why there are no probabilities
    no_totals_reason: str | None  # why there are probabilities, and no numbers of errors
    competence: dict[str, Any] | None
    holdout: str | None
    belief: str | None  # what is believed of the noise: counted, spread, clean or unknown
    num_flagged: int
    expected_errors: float | None
    error_rate: float | None
    error_rate_low: float | None
    error_rate_high: float | None
    leaks: list[Leak]
    warnings: list[str]  # what was noticed while training, and how much of the data is missing
    has_trained_on_holdout: bool
    checked: dict[str, Any] | None  # what checked labels say, as `sgoif verify` found it

    def document(self) -> dict[str, Any]:
        """The summary for ``--json``."""
        return asdict(self)

    def lines(self) -> list[str]:
        """The summary for people."""
        about = f"{clean(self.run)}: {count(self.num_examples, 'example')} in {count(self.num_classes, 'class')}"
        about += f", {count(self.num_verified, 'label')} verified" if self.num_verified else ""
        if self.holdout is not None:
            size = "" if self.num_held_out is None else f" of {count(self.num_held_out)}"
            about += f"; hold-out{size} {self.holdout}"
        known = competence_line(self.competence, has_trained=self.has_trained_on_holdout)
        lines = [f"{about}.{'' if known is None else f' {known}'}"]
        lines += [f"Warning: {text}." for text in self.warnings]
        if not self.num_examples:
            return lines
        lines += [] if self.checked is None else describe_checked(self.checked)
        if not self.is_calibrated:
            return [*lines, f"No probabilities, so ranked by `label_score`: {clean(self.no_p_reason)}."]
        verb = "is" if self.num_flagged == 1 else "are"
        likely = f"{count(self.num_flagged)} {verb} more likely wrong than right"
        if self.no_totals_reason is not None:
            lines.append(f"Estimated errors: unknown, {clean(self.no_totals_reason)}; {likely}.")
        elif self.checked is None:
            rates = f"{percent(self.error_rate)} of the labels, range "
            rates += percents(self.error_rate_low, self.error_rate_high)
            number = f"about {count(self.expected_errors or 0)} ({rates})"
            sign = "No sign of wrong labels: " if self.belief == "clean" else "Estimated errors: "
            lines.append(f"{sign}{number}; {likely}. Check some: `sgoif verify`.")
        else:
            lines.append(f"Flagged: {likely}.")
        leaks = [
            f"{clean(leak.true_class)} labelled {clean(leak.given_class)}: {percent(leak.share)}" for leak in self.leaks
        ]
        lines.append(f"Most often confused: {', '.join(leaks)}." if leaks else "No class is often taken for another.")
        return lines


def summarise(
    sql: Sql,
    info: Mapping[str, Any],
    *,
    run: str = "run in memory",
    class_names: Sequence[str] = (),
    columns: Mapping[str, NDArray[Any]] | None = None,
) -> Summary:
    """Collect the summary of a run; ``columns``, as ``rate_columns`` reads them, are read here if left out."""
    held = info.get("held_out_per_class")
    if columns is None:
        columns = rate_columns(sql) if columns_of(sql, "examples") else {}
    p = columns.get("p_mislabeled", np.zeros(0))
    num_judged = int(np.isfinite(p).sum())
    why_not = info.get("no_totals_reason")
    rate = low = high = errors = None
    if num_judged and why_not is None:
        errors = float(np.nansum(p))
        lows, highs = columns["p_mislabeled_low"], columns["p_mislabeled_high"]
        rate, low, high = error_share(p, lows, highs, _most_wrong(info))
    labels = [-1, *(int(columns[name].max(initial=-1)) for name in ("given_label", "suggested_label") if columns)]
    num_classes = max(len(class_names), len(held) if isinstance(held, list) else 0, max(labels) + 1)
    competence = info.get("competence")
    num_examples = count_examples(sql)
    return Summary(
        run=run,
        state=str(info.get("state") or "finished"),
        kind=str(info.get("kind", "watch")),
        num_examples=num_examples,
        num_judged=num_judged,
        num_classes=num_classes,
        num_held_out=sum(held) if isinstance(held, list) else None,
        is_calibrated=num_judged > 0,
        no_p_reason=None if num_judged else why_no_probabilities(info),
        no_totals_reason=str(why_not) if num_judged and why_not is not None else None,
        competence=competence if isinstance(competence, dict) else None,
        num_verified=verified if isinstance(verified := info.get("num_verified"), int) else 0,
        holdout=None if info.get("kind") == "scan" else kind_of_holdout(info),
        belief=estimate.get("kind") if isinstance(estimate := info.get("estimate"), dict) else None,
        num_flagged=int((np.nan_to_num(p) >= FLAGGED).sum()),
        expected_errors=errors,
        error_rate=rate,
        error_rate_low=low,
        error_rate_high=high,
        leaks=_leaks(info, class_names),
        warnings=[doubt.text for doubt in doubts_of(info, num_examples)],
        has_trained_on_holdout=has_trained_on_holdout(info),
        checked=checked if isinstance(checked := info.get("checked"), dict) else None,
    )


def _most_wrong(info: Mapping[str, Any]) -> float | None:
    """The share of held-out labels that the model contradicts at most; None where people have verified them."""
    known = info.get("competence")
    accuracy, number = (known.get("accuracy"), known.get("num_examples")) if isinstance(known, dict) else (None, None)
    if info.get("trusted") or not isinstance(accuracy, float) or not isinstance(number, int) or number < 1:
        return None
    return Competence(accuracy, number, 0.0, 0.0, 0.0, True).most_wrong


def _leaks(info: Mapping[str, Any], class_names: Sequence[str]) -> list[Leak]:
    transition = read_transition(info)
    shares = np.nan_to_num(transition) * (1 - np.eye(len(transition)))
    usual = shares.sum() / max(len(shares) * (len(shares) - 1), 1)
    if shares.max(initial=-1) < _ABOVE_OTHERS * usual:  # errors that are spread evenly
        return []
    order = np.argsort(-shares, axis=None, kind="stable")[:_SHOWN_LEAKS]
    pairs = [(int(i), int(j)) for i, j in zip(*np.unravel_index(order, shares.shape), strict=True)]
    pairs = [(i, j) for i, j in pairs if shares[i, j] >= _NOTABLE_LEAK]
    return [Leak(class_name(i, class_names), class_name(j, class_names), float(shares[i, j])) for i, j in pairs]
