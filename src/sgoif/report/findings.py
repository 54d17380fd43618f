"""What the page says of a whole run: the numbers on top, the classes, and the figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sgoif.findings import class_issues
from sgoif.findings.suspects import FLAGGED, rate_columns
from sgoif.report.figures import bars, curve
from sgoif.summary import Summary, summarise

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Figure", "Findings", "Overview", "overview", "share"]

_BINS = 1000  # of p_mislabeled, from which histogram and precision are read without sorting all examples
_SHOWN_BINS = 20


class Findings(Protocol):
    """What the page needs of a run."""

    @property
    def info(self) -> Mapping[str, Any]:
        """How the run went."""

    @property
    def class_names(self) -> Sequence[str]:
        """Names of the classes; empty where they have none."""

    @property
    def sql(self) -> Callable[..., pa.Table]:
        """Answers one SELECT over the run's tables."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawing with the sentence that tells how to read it."""

    heading: str
    svg: str
    caption: str


@dataclass(frozen=True, slots=True)
class Overview:
    """The top of the page."""

    num_examples: int
    is_calibrated: bool
    numbers: tuple[tuple[str, str, str], ...]  # value, what it is, remark
    classes: tuple[Mapping[str, str], ...] = ()
    figures: tuple[Figure, ...] = ()
    p_sum: float = 0.0  # errors expected in the whole run
    sentence: str = ""  # what was found, in one
    sizes: tuple[tuple[int, float | None], ...] = ()  # by class: examples, and errors expected among them


def overview(run: Findings) -> Overview:
    """Ask a run's tables for the top of its page."""
    columns = rate_columns(run.sql)
    p = columns["p_mislabeled"]
    summary = summarise(run.sql, run.info, class_names=run.class_names, columns=columns)
    figures = _draw_scores(p) if summary.is_calibrated else []
    return Overview(
        num_examples=len(p),
        is_calibrated=summary.is_calibrated,
        numbers=_numbers(run.info, summary),
        classes=_classes(run, columns) if summary.is_calibrated else (),
        figures=tuple(figures),
        p_sum=float(np.nansum(p)),
        sentence=_sentence(summary),
        sizes=_sizes(columns),
    )


def share(value: float | None, digits: int | None = None) -> str:
    """Write a share as people read it.

    >>> share(0.384), share(0.0312), share(None), share(0.00004)
    ('38%', '3.1%', 'unknown', 'below 0.1%')
    """
    if value is None or not np.isfinite(value):
        return "unknown"
    if 0 < value < 0.0005:
        return "below 0.1%"
    return f"{100 * value:.{(1 if value < 0.0995 else 0) if digits is None else digits}f}%"


def _sentence(summary: Summary) -> str:
    """How many labels look wrong, and on whose word."""
    if not summary.is_calibrated:
        return f"There are no probabilities, since {summary.no_p_reason}; cards are ranked by label score."
    if summary.checked is not None:
        whole = summary.checked["all"]
        about = f"{whole['value'] * whole['count']:,.0f} of {summary.num_examples:,} labels are wrong"
        return f"About {about}, by {whole['num_checked']} labels that people checked."
    if summary.no_totals_reason is not None:
        return f"{summary.num_flagged:,} of {summary.num_examples:,} labels look wrong (nobody has checked yet)."
    return (
        f"About {summary.expected_errors:,.0f} of {summary.num_examples:,} labels look wrong (nobody has checked yet)."
    )


def _sizes(columns: Mapping[str, NDArray[Any]]) -> tuple[tuple[int, float | None], ...]:
    given, p = columns["given_label"].astype(np.int64), columns["p_mislabeled"]
    counts = np.bincount(given)
    errors = np.bincount(given, weights=np.nan_to_num(p))
    known = np.bincount(given, weights=np.isfinite(p)) > 0
    return tuple(
        (int(count), round(float(error), 2) if is_known else None)
        for count, error, is_known in zip(counts, errors, known)
    )


def _numbers(info: Mapping[str, Any], summary: Summary) -> tuple[Any, ...]:
    found = [(f"{summary.num_examples:,}", "examples", f"in {summary.num_classes:,} classes")]
    found += _describe_checked(summary.checked)
    if not summary.is_calibrated:
        found.append(("no", "probabilities", f"{summary.no_p_reason}; cards are ranked by label score"))
    elif summary.no_totals_reason is not None:
        found.append(("unknown", "number of wrong labels", summary.no_totals_reason))
    elif summary.checked is None:
        least, most = share(summary.error_rate_low), share(summary.error_rate_high)
        about = f"{share(summary.error_rate)} ({least} to {most} are possible)"
        found.append((f"{summary.expected_errors:,.0f}", "wrong labels, an estimate", about))
    if summary.is_calibrated:
        found.append((f"{summary.num_flagged:,}", "more likely wrong than right", "each with its own probability"))
    found += [("warning", "these figures may be wrong", text) for text in summary.warnings]
    if summary.num_held_out is not None:
        kind = "verified by people" if info.get("trusted") else "labels as given"
        found.append((f"{summary.num_held_out:,}", "held-out examples for calibration", kind))
    return tuple(found)


def _describe_checked(checked: Mapping[str, Any] | None) -> list[tuple[str, str, str]]:
    """What checked labels say, as `sgoif verify` found it."""
    if checked is None:
        return []
    whole = checked["all"]
    ends = f"90% interval {share(whole['low'])} to {share(whole['high'])}"
    about = f"{share(whole['value'])}, {ends}, from {whole['num_checked']} checked labels"
    found = [(f"{whole['value'] * whole['count']:,.0f}", "wrong labels", about)]
    for item in checked["firsts"]:
        if item["name"] == "flagged":
            ends = f"90% interval {share(item['low'])} to {share(item['high'])}"
            found.append((share(item["value"]), "of the flagged labels are wrong", f"{ends}, from checked labels"))
    return found


def _classes(run: Findings, columns: Mapping[str, NDArray[Any]]) -> tuple[Mapping[str, str], ...]:
    held = run.info.get("held_out_per_class")
    table = class_issues(columns, class_names=run.class_names, held_out=held)
    rows = (dict(zip(table, values)) for values in zip(*(column.tolist() for column in table.values())))
    return tuple(
        {
            "class": str(row["class"]),
            "name": str(row["name"]),
            "rate": share(row["error_rate"]),
            "bar": f"{min(max(row['error_rate'], 0.0), 1.0):.4f}" if np.isfinite(row["error_rate"]) else "0",
            "interval": f"{share(row['error_rate_low'])} to {share(row['error_rate_high'])}",
            "errors": f"{row['expected_errors']:,.0f}",
            "examples": f"{row['num_examples']:,}",
            "confused_with": str(row["confused_with"]),
            "verdict": str(row["verdict"]),
        }
        for row in rows
    )


def _draw_scores(p: NDArray[np.float64]) -> list[Figure]:
    known = p[np.isfinite(p)]
    place = np.minimum((known * _BINS).astype(np.int64), _BINS - 1)
    counts = np.bincount(place, minlength=_BINS)
    sums = np.bincount(place, weights=known, minlength=_BINS)
    shown = counts.reshape(_SHOWN_BINS, -1).sum(1)
    histogram = Figure(
        "Distribution of probabilities",
        bars(shown.tolist(), title="Histogram of the probability of a wrong label", unit="example", first=0, last=1),
        "Probability that a label is wrong, from surely right (0) to surely wrong (1). Heights are square roots.",
    )
    reviewed, found = np.cumsum(counts[::-1]), np.cumsum(sums[::-1])
    some = np.flatnonzero(reviewed > 0)
    last = int(np.searchsorted(reviewed, min(len(known), max(2 * (known >= FLAGGED).sum(), 100))))
    some = some[some <= max(last, some[0])]
    if len(some) < 2:
        return [histogram]
    x = np.concatenate([[0.0], reviewed[some].astype(np.float64)])
    precision = np.concatenate([[found[some[0]] / reviewed[some[0]]], found[some] / reviewed[some]])
    recall = np.concatenate([[0.0], found[some] / max(found[-1], 1e-9)])
    lines = [("estimated to be wrong", precision), ("of all errors found", recall)]
    return [
        histogram,
        Figure(
            "What a review will find",
            curve(x, lines, title="Estimated precision and recall by examples reviewed", top=1.0, percent=True),
            "By how many examples are reviewed, most suspicious first: the share of them estimated to be wrong, and "
            "the share of all estimated errors among them.",
        ),
    ]
