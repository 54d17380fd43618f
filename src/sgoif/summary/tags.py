"""What a multi-label run found: tags too many and tags that are missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sgoif.doubts import doubts_of
from sgoif.findings.suspects import Sql
from sgoif.summary.shared import count_examples, kind_of_holdout, why_no_probabilities
from sgoif.wording import clean, count, percent

__all__ = ["TagSummary", "summarise_tags"]


@dataclass(frozen=True, slots=True)
class TagSummary:
    """What is known of a whole multi-label run; expectations are empty where it was not calibrated."""

    run: str
    state: str
    kind: str
    num_examples: int
    num_tags: int
    num_held_out: int
    holdout: str
    num_present: int
    num_absent: int
    num_pairs: int
    is_calibrated: bool
    no_p_reason: str | None
    expected_errors: Mapping[str, float]
    share_noticed: float | None
    warnings: list[str]

    def document(self) -> dict[str, Any]:
        """The summary for ``--json``."""
        return asdict(self)

    def lines(self) -> list[str]:
        """The summary for people."""
        about = f"{clean(self.run)}: {count(self.num_examples, 'example')}, each with or without {self.num_tags} tags"
        lines = [f"{about}; hold-out of {count(self.num_held_out)} {self.holdout}."]
        lines += [f"Warning: {text}." for text in self.warnings]
        lines.append(f"Kept: {count(self.num_pairs)} of {count(self.num_present + self.num_absent)} pairs.")
        if not self.is_calibrated:
            return [*lines, f"Not calibrated, so ranked by loss without probabilities: {self.no_p_reason}."]
        for side, total, of in (("extra", self.num_present, "given"), ("missing", self.num_absent, "not given")):
            expected = "no held-out example to judge them by"
            if side in self.expected_errors:
                expected = f"{count(self.expected_errors[side])} estimated among {count(total)} {of}"
            lines.append(f"{side.capitalize()} tags: {expected}.")
        if self.share_noticed is not None and self.share_noticed < 0.995:
            lines.append(f"Of tags that are missing, {percent(self.share_noticed)} would be noticed at all.")
        return lines


def summarise_tags(sql: Sql, info: Mapping[str, Any], *, run: str) -> TagSummary:
    """Collect the summary of a multi-label run."""
    expected, noticed = info.get("expected_tag_errors") or {}, info.get("share_noticed")
    num_examples = count_examples(sql)
    return TagSummary(
        run=run,
        state=str(info.get("state") or "finished"),
        kind=str(info.get("kind", "watch")),
        num_examples=num_examples,
        num_tags=len(info.get("held_out_per_tag") or []),
        num_held_out=int(info.get("held_out") or 0),
        holdout=kind_of_holdout(info),
        num_present=int(info.get("num_present") or 0),
        num_absent=int(info.get("num_absent") or 0),
        num_pairs=int(info.get("num_pairs") or 0),
        is_calibrated=bool(expected),
        no_p_reason=None if expected else why_no_probabilities(info),
        expected_errors=expected,
        share_noticed=noticed if isinstance(noticed, float) and noticed == noticed else None,
        warnings=[doubt.text for doubt in doubts_of(info, num_examples)],
    )
