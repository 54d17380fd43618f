"""What a scan of a regression's values found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sgoif.doubts import doubts_of
from sgoif.findings.suspects import FLAGGED, Sql
from sgoif.summary.shared import why_no_probabilities
from sgoif.wording import clean, count, percent

__all__ = ["ValueSummary", "summarise_values"]


@dataclass(frozen=True, slots=True)
class ValueSummary:
    """What is known of a whole scan of values; numbers about errors are None where it has no probabilities."""

    run: str
    state: str
    kind: str
    num_examples: int
    num_judged: int
    is_calibrated: bool
    no_p_reason: str | None
    competence: dict[str, Any] | None
    num_flagged: int
    expected_errors: float | None
    expected_errors_low: float | None
    expected_errors_high: float | None
    sources: list[dict[str, Any]]  # of errors: name, share of the values, and nats gained
    warnings: list[str]

    def document(self) -> dict[str, Any]:
        """The summary for ``--json``."""
        return asdict(self)

    def lines(self) -> list[str]:
        """The summary for people."""
        about = f"{clean(self.run)}: {count(self.num_examples, 'example')} with a value each."
        if self.competence is not None:
            about += (
                f" Predictions that have not seen a value explain {percent(max(self.competence['r2_trusted'], 0))} of "
                "the variance of those that are not doubted."
            )
        lines = [about, *(f"Warning: {text}." for text in self.warnings)]
        if not self.is_calibrated:
            return [*lines, f"No probabilities, so ranked by `label_score`: {clean(self.no_p_reason)}."]
        verb = "is" if self.num_flagged == 1 else "are"
        span = f"range {count(self.expected_errors_low or 0)} to {count(self.expected_errors_high or 0)}"
        number = f"about {count(self.expected_errors or 0)} of {count(self.num_judged)} ({span})"
        lines.append(
            f"Estimated wrong values: {number}; {count(self.num_flagged)} {verb} more likely wrong than right."
        )
        if not self.sources:
            return [*lines, "No source of errors is supported by the residuals: large ones look like tails."]
        named = [f"{clean(item['name'])} ({percent(item['rate'])} of the values)" for item in self.sources]
        return [*lines, f"Sources of errors that the residuals support: {', '.join(named)}."]


def summarise_values(sql: Sql, info: Mapping[str, Any], *, run: str) -> ValueSummary:
    """Collect the summary of a scan of values."""
    names = ("p_mislabeled", "p_mislabeled_low", "p_mislabeled_high")
    sums = ", ".join(f"sum({name}) as {name}" for name in names)
    row = sql(
        f"select count(*) as n, count(p_mislabeled) as judged, {sums}, "
        f"count(*) filter (where p_mislabeled >= {FLAGGED}) as flagged from examples"
    ).to_pylist()[0]
    competence, estimate = info.get("competence"), info.get("estimate")
    return ValueSummary(
        run=run,
        state=str(info.get("state") or "finished"),
        kind=str(info.get("kind", "scan")),
        num_examples=row["n"],
        num_judged=row["judged"],
        is_calibrated=row["judged"] > 0,
        no_p_reason=None if row["judged"] else why_no_probabilities(info),
        competence=competence if isinstance(competence, dict) else None,
        num_flagged=row["flagged"],
        expected_errors=row["p_mislabeled"],
        expected_errors_low=row["p_mislabeled_low"],
        expected_errors_high=row["p_mislabeled_high"],
        sources=list(estimate.get("sources") or ()) if isinstance(estimate, dict) else [],
        warnings=[doubt.text for doubt in doubts_of(info, row["n"])],
    )
