"""``sgoif issues`` and ``sgoif info`` of a multi-label run: which tags are too many, and which are missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from sgoif.adaptors import tag_issues
from sgoif.cli.opened import OpenRun
from sgoif.cli.output import clean, count, emit_json, interval, percent, percents, print_lines, print_table, shorten
from sgoif.cli.summary import kind_of_holdout
from sgoif.files import write_csv, write_parquet

__all__ = ["TagSummary", "has_tags", "show_tag_issues", "summarise_tags"]

_SIDES = {"extra": "num_present", "missing": "num_absent"}


def has_tags(run: OpenRun) -> bool:
    """Whether a run is about tags."""
    return run.facts.get("task") == "multilabel"


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
    why_not_calibrated: str | None
    expected_errors: Mapping[str, float]
    expected_precision: Mapping[str, list[dict[str, Any]]]
    share_noticed: float | None

    def document(self) -> dict[str, Any]:
        """The summary for ``--json``."""
        return asdict(self)

    def lines(self) -> list[str]:
        """The summary for people."""
        about = f"{clean(self.run)}: {count(self.num_examples, 'example')}, each with or without {self.num_tags} tags"
        lines = [f"{about}; hold-out of {count(self.num_held_out)} {self.holdout}."]
        lines.append(f"Kept: {count(self.num_pairs)} of {count(self.num_present + self.num_absent)} pairs.")
        if not self.is_calibrated:
            return [*lines, f"Not calibrated, so ranked by loss without probabilities: {self.why_not_calibrated}."]
        for side, total in _SIDES.items():
            if side not in self.expected_errors:
                lines.append(f"{side.capitalize()} tags: no held-out example to judge them by.")
                continue
            of = "given" if side == "extra" else "not given"
            tops = ", ".join(
                f"{percent(item['value'])} of the top {100 * item['top']:g}% ({count(item['count'])}) "
                f"[{percents(item['low'], item['high'])}]"
                for item in self.expected_precision.get(side, [])
            )
            expected = f"{count(self.expected_errors[side])} expected among {count(getattr(self, total))} {of}"
            lines.append(f"{side.capitalize()} tags: {expected}; {tops}.")
        if self.share_noticed is not None and self.share_noticed < 0.995:
            lines.append(f"Of tags that are missing, {percent(self.share_noticed)} would be noticed at all.")
        return lines


def summarise_tags(run: OpenRun) -> TagSummary:
    """Collect the summary of a multi-label run."""
    facts = run.facts
    expected = facts.get("expected_tag_errors") or {}
    why_not = facts.get("calibration_error") or "its hold-out was too small, or the network explained nothing of it"
    noticed = facts.get("share_noticed")
    return TagSummary(
        run=run.url,
        state=str(run.info.get("state")),
        kind=str(facts.get("kind", "watch")),
        num_examples=run.num_examples,
        num_tags=len(facts.get("held_out_per_tag") or []),
        num_held_out=int(facts.get("held_out") or 0),
        holdout=kind_of_holdout(run),
        num_present=int(facts.get("num_present") or 0),
        num_absent=int(facts.get("num_absent") or 0),
        num_pairs=int(facts.get("num_pairs") or 0),
        is_calibrated=bool(expected),
        why_not_calibrated=None if expected else str(why_not),
        expected_errors=expected,
        expected_precision=facts.get("expected_tag_precision") or {},
        share_noticed=noticed if isinstance(noticed, float) and noticed == noticed else None,
    )


def show_tag_issues(
    run: OpenRun,
    *,
    top: int | None = 50,
    csv: str | None = None,
    parquet: str | None = None,
    as_json: bool = False,
    of_class: str | None = None,
    min_p: float | None = None,
) -> None:
    """Print or write the most suspicious tags of a run."""
    tag = None if of_class is None else run.label_of(of_class)
    table = pa.table(tag_issues(run.files.sql, run.class_names, top=top, tag=tag, min_p=min_p))
    if csv is not None or parquet is not None:
        write_csv(table, csv) if csv is not None else write_parquet(table, str(parquet))
        print_lines([f"{count(len(table), 'tag')} written to {csv or parquet}."])
        return
    summary = summarise_tags(run)
    if as_json:
        emit_json({"command": "issues", "format": 1, "summary": summary.document(), "issues": table.to_pylist()})
        return
    print_lines([*summary.lines(), ""])
    if not len(table):
        print_lines(["No tag matches."])
        return
    score = "p (90% interval)" if summary.is_calibrated else "loss"
    print_table(
        ["#", "id", "tag", "verdict", score, "visits"],
        [
            [
                str(rank),
                shorten(row["id"]),
                clean(row["tag_name"]),
                row["verdict"],
                interval(row["p_wrong"], row["p_wrong_low"], row["p_wrong_high"])
                if summary.is_calibrated
                else f"{row['loss']:.3g}",
                count(row["n_visits"]),
            ]
            for rank, row in enumerate(table.to_pylist(), 1)
        ],
        right=["#", "visits"],
        shrink=["id", "tag"],
    )
