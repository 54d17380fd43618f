"""``sgoif apply``: what people decided about a run's examples becomes a manifest to train on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sgoif.cli.export import left_out
from sgoif.cli.output import clean, count, emit_json, percent, percents, print_lines, shorten
from sgoif.cli.report import find_images
from sgoif.cli.run import Run, name_of, need_examples, open_run
from sgoif.errors import SgoifError
from sgoif.files.tables import read_columns
from sgoif.review.decisions import KINDS, Decision, read_decisions
from sgoif.review.estimate import ErrorRate
from sgoif.review.manifest import Loss, Settled, class_losses, group_losses, settle, write_manifest
from sgoif.review.merge import MACHINE, add_automatic, disagreements, merge
from sgoif.review.plan import ReviewPlan, read_plans, resolve_tokens
from sgoif.review.results import ReviewResults, canaries_of, review_results

__all__ = ["Review", "apply_decisions", "show_apply"]

_SAID = {
    "relabel": "relabelled",
    "drop": "dropped",
    "none": "dropped as none of the classes",
    "keep": "kept",
    "several": "of several classes (kept as given)",
    "unsure": "unsure (kept as given)",
    "unreviewed": "not looked at",
}


@dataclass(frozen=True, slots=True)
class Review:
    """Decisions matched with a run, and what follows from them."""

    run: Run
    settled: Settled
    results: ReviewResults | None  # None where nobody has looked
    losses: list[tuple[str, Loss]]  # name of the class or group

    @property
    def disputed(self) -> list[str]:
        """Ids of the examples that people disagree about."""
        return disagreements(self.settled.merged)

    def warnings(self) -> list[str]:
        """What to look at before training on the manifest."""
        found = []
        strangers, changed = self.settled.strangers, self.settled.changed
        if strangers:
            found.append(
                f"{count(len(strangers), 'decision')} not applied: the run has no such id, for example "
                f"{shorten(strangers[0].id, 80)!r}. Has a spreadsheet changed it?"
            )
        if changed:
            found.append(
                f"{count(len(changed), 'decision')} not applied: the example has another label in this run, for "
                f"example {shorten(changed[0].id, 80)!r}."
            )
        found += [
            f"{clean(name)} would lose {count(loss.num_lost)} of its {count(loss.num_examples, 'example')} "
            f"({percent(loss.num_lost / loss.num_examples)})."
            for name, loss in self.losses
        ]
        return found


def show_apply(
    url: str,
    files: Sequence[str],
    *,
    out: str,
    by: str | None = None,
    table: str | None = None,
    relabel_from: float | None = None,
    drop_from: float | None = None,
    page: tuple[str, str | None] | None = None,
    as_json: bool = False,
) -> None:
    """Apply decisions, write the manifest and print what they say.

    Args:
        url: of the run.
        files: a ``decisions.csv`` of each person.
        out: where the manifest goes.
        by: see :func:`apply_decisions`.
        table: see :func:`apply_decisions`.
        relabel_from: see :func:`apply_decisions`.
        drop_from: see :func:`apply_decisions`.
        page: where to put a page of what people disagree about, and where its pictures are.
        as_json: print one JSON document.
    """
    found = apply_decisions(url, files, by=by, table=table, relabel_from=relabel_from, drop_from=drop_from)
    write_manifest(found.run.files, found.settled, out, found.run.class_names)
    second = None if page is None or not found.disputed else _second_page(found, *page)
    if as_json:
        document = {"run": found.run.url, "out": out, "second_page": second, **_document(found)}
        emit_json({"command": "apply", "format": 1, **document})
        return
    for lines in (_people(found.results), _labels(found.results), _examples(found)):
        if lines:
            print_lines([*lines, ""])
    warnings = [f"Warning: {line}" for line in found.warnings()]
    if warnings:
        print_lines([*warnings, ""])
    print_lines(
        [
            *left_out(found.run.sql, has_unlabelled=True),
            f"The manifest is in {clean(out)}. Train on it:",
            f"  dataset = sgoif.cleaned(dataset, {out!r})",
        ]
    )
    if second is not None:
        again = " ".join(clean(name) for name in (*files, "decisions.csv"))
        print_lines(
            [
                f"{clean(second)} asks once more about what people disagree about. When that is decided:",
                f"  sgoif apply {clean(url)} {again} --out {clean(out)}",
            ]
        )


def _second_page(found: Review, out: str, images: str | None) -> str:
    """Write a page of what people disagree about."""
    run = found.run
    title = f"What people disagree about: {count(len(found.disputed), 'example')}"
    return str(run.report(out, ids=found.disputed, images=find_images(run, images), title=title)[0])


def apply_decisions(
    url: str,
    files: Sequence[str],
    *,
    by: str | None = None,
    table: str | None = None,
    relabel_from: float | None = None,
    drop_from: float | None = None,
) -> Review:
    """Hold the decisions of some files against a run.

    Args:
        url: of the run.
        files: a ``decisions.csv`` of each person.
        by: a column of ``table``; groups that would lose many of their examples are listed, as classes are.
        table: the user's own CSV or Parquet file with a column ``id``.
        relabel_from: labels that nobody decided on and that are at least so probably wrong take the suggested one.
        drop_from: examples whose labels are at least so probably wrong go.
    """
    run = open_run(url)
    need_examples(run)
    decisions = [item for path in files for item in read_decisions(path, run.class_names, run.num_classes)]
    is_automatic = relabel_from is not None or drop_from is not None
    if not decisions and not is_automatic:
        raise SgoifError(f"nothing is decided in {', '.join(map(repr, files))}: the column decision is empty.")
    plans = _plans_of(url, decisions)
    decisions = resolve_tokens(decisions, plans)
    merged = merge(decisions, canaries_of(plans))
    by_people = settled = settle(run.files, merged)
    if is_automatic:
        merged = add_automatic(merged, run.sql, relabel_from=relabel_from, drop_from=drop_from)
        settled = settle(run.files, merged)
    losses = [(name_of(run, loss.about), loss) for loss in class_losses(run.files, settled)]
    if by is not None and table is not None:
        own = read_columns(table, ["id", by])
        losses += [(f"{by} {loss.about}", loss) for loss in group_losses(settled, own, by)]
    results = review_results(run.files, decisions, by_people, plans) if decisions else None
    return Review(run, settled, results, losses)


def _plans_of(url: str, decisions: Sequence[Decision]) -> list[ReviewPlan]:
    """The plans of the lists that the decisions came from."""
    lists = {item.list_id for item in decisions}
    return [plan for plan in read_plans(url) if plan.list_id in lists]


def _people(results: ReviewResults | None) -> list[str]:
    if results is None:
        return []
    names = [f"{clean(name)} {count(number)}" for name, number in results.num_decisions.items()]
    lines = [f"{count(sum(results.num_decisions.values()), 'decision')} read: {', '.join(names)}."]
    shared = results.agreement
    if shared.num_shared:
        kappa = "cannot be told" if math.isnan(shared.kappa) else f"{shared.kappa:.2f}"
        lines.append(f"Agreement on {count(shared.num_shared, 'shared card')}: kappa {kappa}.")
    lines += [
        f"{clean(name)} saw through {score.num_right} of {score.num_shown} canaries "
        f"({percents(score.low, score.high)})."
        for name, score in results.canaries.items()
    ]
    return lines


def _labels(results: ReviewResults | None) -> list[str]:
    lines: list[str] = []
    if results is None:
        return lines
    precision = results.precision
    if precision is not None:
        lines.append(
            f"Wrong were {percent(precision.value)} of {count(precision.num_decided, 'decided card')} of the list "
            f"(90% interval {percents(precision.low, precision.high)})."
        )
    if results.left_over is not None and results.num_undecided:
        expected, deviation = results.left_over
        lines.append(
            f"Of {count(results.num_undecided)} not decided, about {count(expected)} are wrong too "
            f"(give or take {count(deviation)})."
        )
    if results.error_rate is not None:
        lines.append(_rate(results.error_rate))
    return lines


def _rate(found: ErrorRate) -> str:
    everything = f"all {count(found.num_examples, 'training example')}"
    if not found.num_sampled:  # nothing has checked what the run thinks of the rest
        return (
            f"Wrong labels of {everything}: {count(found.num_known)} found, {percent(found.rate)} by the run's "
            "probabilities for the rest. Only random cards can check that: `sgoif report --reviewers`."
        )
    parts = [
        f"{count(found.num_known)} wrong labels found",
        f"a random sample of {count(found.num_sampled)} of the rest",
    ]
    if found.model_share > 0.0005:
        parts.append(f"the run's probabilities for {percent(found.model_share)} of the errors")
    return (
        f"Error rate of {everything}: {percent(found.rate)} (90% interval {percents(found.low, found.high)}), from "
        f"{', '.join(parts)}."
    )


def _examples(found: Review) -> list[str]:
    counts = found.settled.counts()
    lines = [
        ", ".join(f"{count(counts[kind])} {_SAID[kind]}" for kind in ("relabel", "drop", "none") if counts.get(kind))
        or "Nothing is changed",
        ", ".join(
            f"{count(counts[kind])} {_SAID[kind]}"
            for kind in ("keep", "several", "unsure", "unreviewed")
            if counts.get(kind)
        ),
    ]
    said = [f"{'; '.join(line for line in lines if line)}."]
    automatic = sum(item.outcome.reviewers == (MACHINE,) for item in found.settled.applied)
    if automatic:
        said.append(f"{count(automatic)} of these by their probability alone, without anybody looking.")
    if found.disputed:
        said.append(f"People disagree about {count(len(found.disputed), 'example')}, kept as given.")
    return said


def _document(found: Review) -> dict[str, Any]:
    settled = found.settled
    return (_results_document(found.results) if found.results is not None else {}) | {
        "counts": {kind: settled.counts().get(kind, 0) for kind in (*KINDS, "unreviewed")},
        "num_automatic": sum(item.outcome.reviewers == (MACHINE,) for item in settled.applied),
        "not_in_run": len(settled.strangers),
        "other_label_in_run": len(settled.changed),
        "disagreements": found.disputed,
        "warnings": found.warnings(),
    }


def _results_document(results: ReviewResults) -> dict[str, Any]:
    rate, (left, deviation) = results.error_rate, results.left_over or (None, None)
    return {
        "decisions": dict(results.num_decisions),
        "kappa": None if math.isnan(results.agreement.kappa) else results.agreement.kappa,
        "num_shared": results.agreement.num_shared,
        "canaries": {name: asdict(score) for name, score in results.canaries.items()},
        "precision": None if results.precision is None else asdict(results.precision),
        "num_undecided": results.num_undecided,
        "expected_errors_undecided": left,
        "expected_errors_undecided_sd": deviation,
        "error_rate": None if rate is None else asdict(rate),
    }
