"""What a run found, in a few lines: how many errors to expect, how good its list is, and what it rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgoif.doubts import doubts_of, has_trained_on_holdout
from sgoif.evidence import Competence, error_rates
from sgoif.findings.label import class_name
from sgoif.findings.suspects import FLAGGED, Sql, columns_of, counts_holdout, rate_columns
from sgoif.types import Floats
from sgoif.wording import clean, count, percent, percents

__all__ = [
    *("AnnotatorSummary", "AnySummary", "Leak", "Summary", "TagSummary", "ValueSummary", "describe_checked"),
    *("SequenceSummary", "summarise_sequences"),
    *("competence_line", "count_examples", "kind_of_holdout", "read_transition", "summarise", "summarise_annotators"),
    *("summarise_tags", "summarise_values", "why_no_probabilities"),
]

_SHOWN_LEAKS = 4
_SHOWN_ANNOTATORS = 5
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
    num_held_out: int | None
    is_calibrated: bool
    no_p_reason: str | None  # why there are no probabilities
    no_totals_reason: str | None  # why there are probabilities, and no numbers of errors
    competence: dict[str, Any] | None
    holdout: str
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
        held = "" if self.num_held_out is None else f" of {count(self.num_held_out)}"
        known = competence_line(self.competence, has_trained=self.has_trained_on_holdout)
        lines = [f"{about}; hold-out{held} {self.holdout}.{'' if known is None else f' {known}'}"]
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
            lines.append(f"Estimated errors: {number}; {likely}. Check some: `sgoif verify`.")
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
        columns = rate_columns(sql, info) if columns_of(sql, "examples") else {}
    p = columns.get("p_mislabeled", np.zeros(0))
    num_judged = int(np.isfinite(p).sum())
    why_not = info.get("no_totals_reason")
    rate = low = high = errors = None
    if num_judged and why_not is None:
        errors = float(np.nansum(p))
        lows, highs = columns["p_mislabeled_low"], columns["p_mislabeled_high"]
        found = error_rates(p, lows, highs, np.zeros(len(p), np.int64), 1)
        rate, low, high = (float(values[0]) for values in (found.rate, found.low, found.high))
        high = _widen_rate(info, high)
    labels = [-1, *(int(columns[name].max(initial=-1)) for name in ("given_label", "suggested_label") if columns)]
    num_classes = max(len(class_names), len(held) if isinstance(held, list) else 0, max(labels) + 1)
    competence = info.get("competence")
    num_examples = count_examples(sql, info)
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
        holdout=kind_of_holdout(info),
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


def describe_checked(checked: Mapping[str, Any], what: str = "label") -> list[str]:
    """Say what checked labels say of all of them; ``checked`` is the document of ``checked.json``."""
    found = checked["all"]
    unsure = "" if not found["num_unsure"] else f", {count(found['num_unsure'])} could not be told"
    number = found["num_checked"] + found["num_unsure"]
    rates = f"{percent(found['value'])} of all, 90% interval {percents(found['low'], found['high'])}"
    about = count(found["value"] * found["count"])
    lines = [
        f"Checked {what}s: {count(number)}, {count(found['num_wrong'])} of them wrong{unsure}.",
        f"Wrong {what}s: {about} of {count(found['count'])} ({rates}); at 90% confidence at most "
        f"{percent(found['at_most'])}.",
    ]
    firsts = []
    for item in checked["firsts"]:
        number = count(item["count"])
        name = f"{number} flagged" if item["name"] == "flagged" else f"{item['name']} ({number})"
        firsts.append(f"{percent(item['value'])} of the {name} [{percents(item['low'], item['high'])}]")
    return [*lines, f"Precision: {', '.join(firsts)}."] if firsts else lines


def _widen_rate(info: Mapping[str, Any], high: float) -> float:
    """The upper end of the share of wrong labels, as far as nobody verified any.

    The model contradicts some of the held-out labels. Each may be its own mistake or a wrong label, and nothing in the
    run tells which: up to all of them may be wrong labels.
    """
    known = info.get("competence")
    accuracy, number = (known.get("accuracy"), known.get("num_examples")) if isinstance(known, dict) else (None, None)
    if info.get("trusted") or not isinstance(accuracy, float) or not isinstance(number, int) or number < 1:
        return high
    return max(high, Competence(accuracy, number, 0.0, 0.0, 0.0, True).most_wrong)


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
    num_examples = count_examples(sql, info)
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
            loss = "never looked at" if last is None else f"mean loss per token {last:.3g}{when}"
            lines.append(f"Group {clean(name)}: {count(group['num_sequences'], 'evaluation sequence')}, {loss}.")
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
    num_examples, method = count_examples(sql, info), info.get("method") or {}
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


AnySummary = Summary | TagSummary | ValueSummary | AnnotatorSummary | SequenceSummary


def competence_line(competence: Mapping[str, Any] | None, *, has_trained: bool = False) -> str | None:
    """Say how often the model is right on the hold-out, beside guessing; None where that was not measured.

    ``has_trained`` tells whether the hold-out was noticed to be trained on.
    """
    try:
        accuracy, number = float(competence["accuracy"]), int(competence["num_examples"])  # type: ignore[index]
        guessing = max(float(competence["chance"]), float(competence["majority"]))  # type: ignore[index]
    except (TypeError, KeyError, ValueError):
        return None
    if not number:
        return None
    said = f"The model is right on {percent(accuracy)} of {count(number, 'example')}"
    if has_trained:
        return f"{said} of its hold-out, on which it was trained: that tells nothing of how good it is."
    return f"{said} that it was not trained on; guessing is right on {percent(guessing)}."


def why_no_probabilities(info: Mapping[str, Any]) -> str:
    """Say why a run has no probabilities, as it noted itself."""
    for key in ("no_p_reason", "calibration_error"):
        if info.get(key):
            return str(info[key])
    if str(info.get("state") or "finished") != "finished":
        return "the run did not finish, and they are learnt when it ends"
    return "the run did not note why"


def kind_of_holdout(info: Mapping[str, Any]) -> str:
    """Whether the hold-out's labels were verified, and if not, whether they were cleaned and why."""
    if info.get("trusted"):
        return "trusted"
    choice, verified = info.get("holdout_cleaning"), info.get("num_verified")
    labels = f"as given but for {count(verified)} verified" if isinstance(verified, int) and verified else "as given"
    if "estimate" in info:  # a scan doubts the labels of its hold-out as it doubts all others
        return labels
    if not isinstance(choice, dict):
        return f"{labels}, not self-cleaned"
    return f"{labels}, {'self-cleaned' if choice.get('clean') else 'not self-cleaned'} ({choice.get('reason', '?')})"


def count_examples(sql: Sql, info: Mapping[str, Any]) -> int:
    """How many examples a run is about; a scan's hold-out is a part of the data, that of a training is not."""
    tables = ("examples", "holdout") if counts_holdout(info) else ("examples",)
    present = [name for name in tables if columns_of(sql, name)]
    return sum(int(sql(f"select count(*) as n from {name}")["n"][0].as_py()) for name in present)


def read_transition(info: Mapping[str, Any]) -> Floats:
    """Share of each true class (rows) that is labelled as each class, ``[C, C]``; empty where the run does not know."""
    try:
        found = np.array(info.get("transition") or np.zeros((0, 0)), dtype=np.float64)
    except (TypeError, ValueError):
        return np.zeros((0, 0))
    return found if found.ndim == 2 and found.shape[0] == found.shape[1] else np.zeros((0, 0))


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
