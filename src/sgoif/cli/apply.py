"""``sgoif apply``: what people decided about a run's examples becomes a manifest to train on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sgoif.cli.apply_sequences import apply_sequences
from sgoif.cli.export import describe_left_out
from sgoif.cli.options import Images, Json, MaybeText, MaybeTexts, RunPath, Table, need_both, parse_share, require
from sgoif.cli.output import clean, count, emit_json, percent, percents, print_lines, shorten
from sgoif.cli.report import open_images
from sgoif.cli.run import name_of, open_run
from sgoif.errors import SgoifError
from sgoif.files.tables import read_columns

if TYPE_CHECKING:
    from sgoif.review.estimate import ErrorRate
    from sgoif.review.manifest import Loss, Settled
    from sgoif.review.results import ReviewResults
    from sgoif.run import Run

_ACTIONS = {
    "relabel": "relabelled",
    "drop": "dropped",
    "none": "dropped as none of the classes",
    "keep": "kept",
    "several": "of several classes (kept as given)",
    "unsure": "unsure (kept as given)",
    "unreviewed": "not looked at",
}


@dataclass(frozen=True, slots=True)
class _Review:
    """Decisions matched with a run, and what follows from them."""

    run: Run
    settled: Settled
    results: ReviewResults | None  # None where nobody has looked
    losses: list[tuple[str, Loss]]  # name of the class or group

    @property
    def disagreements(self) -> list[str]:
        """Ids of the examples that people disagree about."""
        return [item.id for item in self.settled.merged.outcomes if item.is_disputed]

    @property
    def num_automatic(self) -> int:
        """How many outcomes nobody looked at."""
        return sum(item.outcome.is_automatic for item in self.settled.applied)

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


def apply(
    run: RunPath,
    out: Annotated[str, require("FILE", "Write the manifest to this .parquet or .csv file.")],
    files: Annotated[
        MaybeTexts,
        typer.Argument(
            metavar="DECISIONS.csv...",
            help="Read decisions, one file per person, or a JSON export of Label Studio.",
            show_default=False,
        ),
    ] = None,
    relabel_from: Annotated[
        MaybeText,
        typer.Option(
            metavar="P", help="Relabel without review where a label is at least this probably wrong, such as 95%."
        ),
    ] = None,
    drop_from: Annotated[
        MaybeText,
        typer.Option(metavar="P", help="Drop examples without review where a label is at least this probably wrong."),
    ] = None,
    by: Annotated[
        MaybeText, typer.Option(metavar="COLUMN", help="Warn about groups of this column of --table too.")
    ] = None,
    table: Table = None,
    disagreements: Annotated[
        MaybeText, typer.Option(metavar="FILE.html", help="Write a page of the examples that people disagree about.")
    ] = None,
    images: Images = None,
    as_json: Json = False,
) -> None:
    """Turn what people decided into a manifest to train on."""
    need_both(by, table, "--by COLUMN and --table FILE")
    if not files and relabel_from is None and drop_from is None:
        raise SgoifError("name the DECISIONS.csv of the page; or clean unseen, by --relabel-from or --drop-from.")
    from sgoif.review.manifest import write_manifest

    unseen = {"relabel_from": relabel_from, "drop_from": drop_from}
    shares = {
        name: parse_share(text, f"--{name.replace('_', '-')}") for name, text in unseen.items() if text is not None
    }
    own = None if by is None or table is None else (by, table)
    opened = open_run(run, needs_examples=True, takes_sequences=True)
    if opened.has_sequences:
        if shares or own is not None or disagreements is not None or images is not None:
            raise SgoifError(
                "sequences of a language model are kept or dropped by decisions alone: pass files of decisions (of the "
                "page, or filled in after `sgoif export`), --out and --json."
            )
        return apply_sequences(opened, run, files or [], out, as_json=as_json)
    found = _apply(opened, run, files or [], own, shares)
    write_manifest(found.run.files, found.settled, out, found.run.class_names)
    second = None
    if disagreements is not None and found.disagreements:
        title = f"What people disagree about: {count(len(found.disagreements), 'example')}"
        pictures = open_images(found.run, images)
        second = str(found.run.report(disagreements, ids=found.disagreements, images=pictures, title=title)[0])
    if as_json:
        return emit_json("apply", run=run, out=out, second_page=second, **_document(found))
    results = found.results
    told = [] if results is None else [_describe_people(results), _describe_labels(results)]
    for lines in (*told, _describe_examples(found), [f"Warning: {line}" for line in found.warnings()]):
        if lines:
            print_lines([*lines, ""])
    lines = [
        *describe_left_out(found.run, has_unlabelled=True),
        f"The manifest is in {clean(out)}. Train on it:",
        f"  dataset = sgoif.cleaned(dataset, {out!r})",
    ]
    if second is not None:
        again = " ".join(clean(name) for name in (*(files or []), "decisions.csv"))
        lines.append(f"{clean(second)} asks once more about what people disagree about. When that is decided:")
        lines.append(f"  sgoif apply {clean(run)} {again} --out {clean(out)}")
    print_lines(lines)


def _apply(run: Run, url: str, files: Sequence[str], own: tuple[str, str] | None, unseen: dict[str, float]) -> _Review:
    """Match the decisions of some files with a run.

    ``own`` is a column and the user's own table: groups that would lose many of their examples are listed like classes.
    ``unseen`` holds ``relabel_from`` and ``drop_from``, see :func:`sgoif.review.merge.add_automatic`.
    """
    from sgoif.review.decisions import read_decisions
    from sgoif.review.manifest import class_losses, group_losses, settle
    from sgoif.review.merge import add_automatic, merge
    from sgoif.review.plan import read_plans, resolve_tokens
    from sgoif.review.results import canaries_of, review_results

    decisions = [item for path in files for item in read_decisions(path, run.class_names, run.num_classes)]
    if not decisions and not unseen:
        raise SgoifError(f"nothing is decided in {', '.join(map(repr, files))}: the column decision is empty.")
    lists = {item.list_id for item in decisions}
    plans = [plan for plan in read_plans(url) if plan.list_id in lists]
    decisions = resolve_tokens(decisions, plans)
    merged = merge(decisions, canaries_of(plans))
    by_people = settled = settle(run.files, merged)
    if unseen:
        settled = settle(run.files, add_automatic(merged, run.sql, **unseen))
    losses = [(name_of(run, loss.about), loss) for loss in class_losses(run.files, settled)]
    if own is not None:
        by, table = own
        rows = read_columns(table, ["id", by])
        losses += [(f"{by} {loss.about}", loss) for loss in group_losses(settled, rows, by)]
    results = review_results(run.files, run.info, decisions, by_people, plans) if decisions else None
    return _Review(run, settled, results, losses)


def _describe_people(results: ReviewResults) -> list[str]:
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


def _describe_labels(results: ReviewResults) -> list[str]:
    lines: list[str] = []
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
        lines.append(_describe_rate(results.error_rate))
    return lines


def _describe_rate(found: ErrorRate) -> str:
    everything = f"all {count(found.num_examples, 'example')}"
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


def _describe_examples(found: _Review) -> list[str]:
    counts = found.settled.counts()
    changed, kept = (
        ", ".join(f"{count(counts[kind])} {_ACTIONS[kind]}" for kind in kinds if counts.get(kind))
        for kinds in (("relabel", "drop", "none"), ("keep", "several", "unsure", "unreviewed"))
    )
    lines = [f"{changed or 'Nothing is changed'}{'; ' if kept else ''}{kept}."]
    if found.num_automatic:
        lines.append(f"{count(found.num_automatic)} of these by their probability alone, without anybody looking.")
    if found.disagreements:
        lines.append(f"People disagree about {count(len(found.disagreements), 'example')}, kept as given.")
    return lines


def _document(found: _Review) -> dict[str, Any]:
    from sgoif.review.decisions import KINDS

    settled = found.settled
    return (_results_document(found.results) if found.results is not None else {}) | {
        "counts": {kind: settled.counts().get(kind, 0) for kind in (*KINDS, "unreviewed")},
        "num_automatic": found.num_automatic,
        "not_in_run": len(settled.strangers),
        "other_label_in_run": len(settled.changed),
        "disagreements": found.disagreements,
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
