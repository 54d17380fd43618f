"""What a run about sequences of a language model found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sgoif.doubts import doubts_of
from sgoif.findings.suspects import Sql
from sgoif.summary.shared import count_examples, describe_checked, why_no_probabilities
from sgoif.wording import clean, count

__all__ = ["SequenceSummary", "summarise_sequences"]


@dataclass(frozen=True, slots=True)
class SequenceSummary:
    """What is known of a whole run of sequences."""

    run: str
    state: str
    kind: str
    num_examples: int
    num_judged: int
    groups: dict[str, Any]  # by name: sequences, and the mean loss per token when they were last looked at
    curvature: str
    num_layers: int
    is_calibrated: bool  # whether people have checked a sample
    no_p_reason: str | None
    warnings: list[str]
    tuning: dict[str, Any] | None  # how an audit learnt the evaluation sequences
    checked: dict[str, Any] | None = None  # what they found, see `sgoif.review.verify`

    def document(self) -> dict[str, Any]:
        """The summary for ``--json``."""
        return asdict(self)

    def lines(self) -> list[str]:
        """The summary for people."""
        about = f"{clean(self.run)}: {count(self.num_examples, 'sequence')}, {count(self.num_judged)} of them judged"
        lines = [f"{about}; curvature {self.curvature} at {count(self.num_layers, 'layer')}. Experimental."]
        lines += [f"Warning: {text}." for text in self.warnings]
        for name, group in self.groups.items():
            last = group.get("last_loss")
            when = "" if self.kind == "audit" else " when last looked at"
            loss = ", never looked at" if last is None else f", mean loss per token {last:.3g}{when}"
            loss = loss if "last_loss" in group else ""  # of a training that was not closed nobody knows
            lines.append(f"Group {clean(name)}: {count(group['num_sequences'], 'evaluation sequence')}{loss}.")
        if self.tuning is not None and "loss_after" in self.tuning:
            before, after = (f"{self.tuning[name]:.3g}" for name in ("loss_before", "loss_after"))
            learnt = "once half of the evaluation sequences were learnt, the loss of the rest was"
            lines.append(f"Tuned losses: {learnt} {after} instead of {before}.")
        if self.checked is not None:
            return [*lines, *describe_checked(self.checked, "sequence")]
        return [
            *lines,
            f"No probabilities: {clean(self.no_p_reason or 'not noted why')}.",
        ]


def summarise_sequences(sql: Sql, info: Mapping[str, Any], *, run: str) -> SequenceSummary:
    """Collect the summary of a run of sequences."""
    num_examples, method = count_examples(sql), info.get("method") or {}
    checked = checked if isinstance(checked := info.get("checked"), dict) else None
    return SequenceSummary(
        run=run,
        state=str(info.get("state") or "finished"),
        kind=str(info.get("kind", "watch")),
        num_examples=num_examples,
        num_judged=num_examples - int(info.get("num_not_judged") or 0),
        groups=dict(info.get("groups") or {}),
        curvature=str(method.get("curvature", "unknown")),
        num_layers=len(method.get("layers") or ()),
        is_calibrated=checked is not None,
        no_p_reason=why_no_probabilities(info) if checked is None else None,
        warnings=[doubt.text for doubt in doubts_of(info, num_examples)],
        tuning=info.get("tuning"),
        checked=checked,
    )
