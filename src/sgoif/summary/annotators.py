"""What a scan of labels by several annotators found: of the labels, and of those who gave them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sgoif.findings.suspects import Sql
from sgoif.summary.classes import Summary, summarise
from sgoif.summary.shared import describe_checked
from sgoif.wording import clean, count, percent, percents

__all__ = ["AnnotatorSummary", "summarise_annotators"]

_SHOWN_ANNOTATORS = 5


@dataclass(frozen=True, slots=True)
class AnnotatorSummary:
    """What is known of a scan of labels by several annotators; ``labels`` is about the label that most gave."""

    labels: Summary
    num_annotators: int
    num_labels: int
    num_changed: int
    structure: str
    model_trust: float
    best_quality: float | None
    worst_quality: float | None
    worst_annotators: list[str]  # whose accuracy is surely below the mean of all

    @property
    def num_examples(self) -> int:
        """How many there are, with a label or without."""
        return self.labels.num_examples

    @property
    def is_calibrated(self) -> bool:
        """Whether there are probabilities."""
        return self.labels.is_calibrated

    @property
    def no_p_reason(self) -> str | None:
        """Why there are none."""
        return self.labels.no_p_reason

    @property
    def warnings(self) -> list[str]:
        """What was noticed."""
        return self.labels.warnings

    def document(self) -> dict[str, Any]:
        """The summary for ``--json``: that of the labels, and of the annotators beside it."""
        found = asdict(self)
        return {**found.pop("labels"), **found}

    def lines(self) -> list[str]:
        """The summary for people."""
        of = self.labels
        about = f"{clean(of.run)}: {count(of.num_examples, 'example')} in {count(of.num_classes, 'class')}, "
        about += f"{count(self.num_labels, 'label')} by {count(self.num_annotators, 'annotator')}."
        lines = [about, *(f"Warning: {text}." for text in of.warnings)]
        lines += [] if of.checked is None else describe_checked(of.checked)
        if not of.is_calibrated:
            lines.append(f"No probabilities, so ranked by `label_score`: {clean(of.no_p_reason)}.")
        else:
            number = f"about {count(of.expected_errors or 0)} ({percent(of.error_rate)}, range "
            number += f"{percents(of.error_rate_low, of.error_rate_high)})"
            lines.append(f"Labels that most annotators gave: {number} estimated wrong.")
            lines.append(f"The consensus differs from them for {count(self.num_changed, 'example')}.")
        voice = "no model is heard" if self.model_trust == 0 else f"the model's voice has weight {self.model_trust:g}"
        told = f"Annotators: accuracy {percent(self.worst_quality)} to {percent(self.best_quality)}; {voice}; "
        told += f"errors by {self.structure}."
        if self.worst_annotators:
            told += f" Surely below the mean: {', '.join(clean(name) for name in self.worst_annotators)}."
        return [*lines, told]


def summarise_annotators(sql: Sql, info: Mapping[str, Any], *, run: str) -> AnnotatorSummary:
    """Collect the summary of a scan of labels by several annotators."""
    names = [str(name) for name in info.get("class_names") or ()]
    labels = summarise(sql, info, run=run, class_names=names)
    known = info.get("annotation")
    facts: Mapping[str, Any] = known if isinstance(known, dict) else {}
    table = sql("select * from annotators where num_labels > 0 order by quality").to_pylist()
    total = sum(row["num_labels"] for row in table)
    mean = sum(row["quality"] * row["num_labels"] for row in table) / max(total, 1)
    return AnnotatorSummary(
        labels=labels,
        num_annotators=len(table),
        num_labels=total,
        num_changed=int(facts.get("num_changed") or 0),
        structure=str(facts.get("structure") or "?"),
        model_trust=float(facts.get("model_trust") or 0.0),
        best_quality=table[-1]["quality"] if table else None,
        worst_quality=table[0]["quality"] if table else None,
        worst_annotators=[row["annotator"] for row in table if row["quality_high"] < mean][:_SHOWN_ANNOTATORS],
    )
