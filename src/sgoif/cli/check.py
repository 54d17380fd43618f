"""``sgoif check``: is the data good enough? For continuous integration: exit codes, Markdown and JUnit XML."""

from __future__ import annotations

import html
import os
import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sgoif.cli.options import Json, MaybeInt, MaybeText, RunPath, need_both, parse_share
from sgoif.cli.output import count, emit_json, interval, percent, print_lines, print_table, shorten
from sgoif.cli.run import open_run
from sgoif.errors import SgoifError
from sgoif.files.tables import write_text

if TYPE_CHECKING:
    from sgoif.cli.limits import Outcome, Verdict
    from sgoif.run import Run
    from sgoif.summary import AnySummary

_STATES = {  # in the order in which they are shown: exit code, mark and words
    "exceeded": (1, "❌", "a limit is exceeded"),
    "not judged": (2, "❔", "could not judge"),
    "unsure": (2, "⚠️", "cannot tell: the limit lies within what is possible"),
    "fine": (0, "✅", "within all limits"),
}
_SHOWN = 20  # classes in the Markdown summary
_SHOWN_LABELS = 10
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def check(
    run: RunPath,
    max_error_rate: Annotated[
        MaybeText, typer.Option(metavar="SHARE", help="Allow this share of wrong labels, such as 2% or 0.02.")
    ] = None,
    max_class_error_rate: Annotated[
        MaybeText, typer.Option(metavar="SHARE", help="Allow this share of wrong labels in any class.")
    ] = None,
    max_new: Annotated[
        MaybeInt,
        typer.Option(metavar="N", min=0, help="Allow this many newly flagged labels, compared with --against."),
    ] = None,
    against: Annotated[MaybeText, typer.Option(metavar="OLD", help="Compare with this older run.")] = None,
    summary: Annotated[MaybeText, typer.Option(metavar="FILE.md", help="Write a Markdown summary.")] = None,
    junit: Annotated[MaybeText, typer.Option(metavar="FILE.xml", help="Write JUnit XML.")] = None,
    as_json: Json = False,
) -> None:
    """Compare a run with limits: exit code 0 within them, 1 exceeded, 2 cannot tell.

    The error rate is judged by labels that a person checked with `sgoif verify`, class rates by a verified hold-out.
    Without them, or where too few were checked to tell, the exit code is 2.
    """
    if max_error_rate is None and max_class_error_rate is None and max_new is None:
        raise SgoifError("give at least one of --max-error-rate, --max-class-error-rate and --max-new.")
    need_both(max_new, against, "--max-new N and --against OLD")
    from sgoif.cli.limits import Limits, Verdict, judge
    from sgoif.findings.suspects import FLAGGED

    limits = Limits(
        None if max_error_rate is None else parse_share(max_error_rate, "--max-error-rate"),
        None if max_class_error_rate is None else parse_share(max_class_error_rate, "--max-class-error-rate"),
        max_new,
    )
    opened: Run | None = None
    try:
        opened = open_run(run, takes_sequences=True)
        verdict = judge(opened, limits, None if against is None else open_run(against))
    except SgoifError as error:  # no run at all: what reads the reports must hear of it too
        verdict = Verdict([], str(error))
    found = opened.summary() if opened is not None else None
    worst = []
    if opened is not None and opened.num_examples and not opened.has_sequences:
        worst = opened.label_issues(top=_SHOWN_LABELS, min_p=FLAGGED if opened.is_calibrated else None).to_pylist()
    if summary is not None:
        _write_summary(summary, markdown(run, verdict, found, worst))
    if junit is not None:
        write_text(junit, junit_xml(run, verdict, _judged(found)))
    code = _STATES[verdict.state][0]
    if as_json:
        document = {"run": run, "state": verdict.state, "exit_code": code, "reason": verdict.reason}
        outcomes = [asdict(item) for item in verdict.outcomes]
        emit_json("check", **document, outcomes=outcomes, summary=None if found is None else found.document())
    else:
        _print(run, verdict, found)
    raise typer.Exit(code)


def _print(url: str, verdict: Verdict, found: AnySummary | None) -> None:
    print_lines([f"{url}: {_STATES[verdict.state][2]}"])
    from sgoif.summary import Summary, competence_line

    if isinstance(found, Summary):
        known = competence_line(found.competence, has_trained=found.has_trained_on_holdout)
        print_lines([] if known is None else [known])
    if verdict.reason is not None:
        print_lines([verdict.reason])
    if verdict.outcomes:
        columns = {
            "limit": _limit,
            "of": lambda item: shorten(item.about),
            "state": lambda item: item.state,
            "found": lambda item: item.text,
        }
        print_table(_sort(verdict), columns, shrink=["of"], wrap=["found"])


def _sort(verdict: Verdict) -> list[Outcome]:
    return sorted(verdict.outcomes, key=lambda item: list(_STATES).index(item.state))


def markdown(url: str, verdict: Verdict, found: AnySummary | None, worst: list[dict[str, Any]]) -> str:
    """Write the verdict for a page such as GitHub's job summary."""
    _, mark, words = _STATES[verdict.state]
    lines = [f"## {mark} {_judged(found).capitalize()} of {_text(url)}: {words}", ""]
    if verdict.reason is not None:
        lines += [_text(verdict.reason), ""]
    if verdict.outcomes:
        rows = _sort(verdict)
        lines += ["| | limit | of | found |", "|---|---|---|---|"]
        lines += [
            f"| {_STATES[item.state][1]} | {_text(_limit(item))} | {_text(item.about)} | {_text(item.text)} |"
            for item in rows[:_SHOWN]
        ]
        if len(rows) > _SHOWN:
            lines += ["", f"{len(rows) - _SHOWN} more are not shown; none of them is worse."]
        lines.append("")
    if found is not None and found.num_examples:
        lines += [*(f"- {_text(line)}" for line in found.lines()), ""]
    if worst:
        lines += ["| most suspicious | given | suggested | p (range) |", "|---|---|---|---|"]
        lines += [_label_row(row) for row in worst]
        lines.append("")
    return "\n".join(lines)


def _judged(found: AnySummary | None) -> str:
    """What is right or wrong in a run."""
    from sgoif.summary import SequenceSummary

    return "sequences" if isinstance(found, SequenceSummary) else "labels"


def junit_xml(url: str, verdict: Verdict, what: str = "labels") -> str:
    """Write the verdict as JUnit XML: a test case per limit and class; what was not judged is skipped."""
    from xml.etree import ElementTree

    outcomes = verdict.outcomes
    failed, skipped = (sum(item.state == state for item in outcomes) for state in ("exceeded", "not judged"))
    errors = int(verdict.reason is not None)
    numbers = {"tests": len(outcomes) + errors, "failures": failed, "errors": errors, "skipped": skipped}
    counts = {name: str(number) for name, number in numbers.items()}
    root = ElementTree.Element("testsuites", {"name": "sgoif check", **counts})
    suite = ElementTree.SubElement(root, "testsuite", {"name": _xml(f"{what} of {url}"), **counts})
    for item in outcomes:
        name = f"{item.about} <= {_amount(item)}"
        case = ElementTree.SubElement(
            suite, "testcase", {"classname": f"sgoif.{item.kind}", "name": _xml(name), "time": "0"}
        )
        if item.state == "exceeded":
            told = ElementTree.SubElement(case, "failure", {"type": item.kind, "message": _xml(item.text)})
            told.text = _xml(f"{item.about}: {item.text}; the limit is {_amount(item)}.")
        elif item.state == "not judged":
            ElementTree.SubElement(case, "skipped", {"message": _xml(item.text)})
        elif item.state == "unsure":
            ElementTree.SubElement(case, "system-out").text = _xml(f"unsure: {item.text}")
    if verdict.reason is not None:
        case = ElementTree.SubElement(suite, "testcase", {"classname": "sgoif", "name": "can be judged", "time": "0"})
        ElementTree.SubElement(case, "error", {"type": "not judged", "message": _xml(verdict.reason)})
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _write_summary(path: str, text: str) -> None:
    """Write a file of its own; GitHub's, which other commands of a step write too, is added to."""
    if os.environ.get("GITHUB_STEP_SUMMARY") == path:
        with open(path, "a", encoding="utf-8") as file:
            file.write(text + "\n")
    else:
        write_text(path, text)


def _limit(item: Outcome) -> str:
    return f"--{item.kind} {_amount(item)}"


def _amount(item: Outcome) -> str:
    return count(item.limit) if item.kind == "max-new" else percent(item.limit, _digits(item.limit))


def _digits(share: float) -> int:
    """As many as a person would write: 2%, 2.5%, 0.25%."""
    return next((digits for digits in (0, 1) if abs(round(100 * share, digits) - 100 * share) < 1e-9), 2)


def _label_row(row: dict[str, Any]) -> str:
    p = interval(row.get("p_mislabeled"), row.get("p_mislabeled_low"), row.get("p_mislabeled_high"))
    numbers = {kind: row[f"{kind}_label"] for kind in ("given", "suggested")}
    labels = (row[f"{kind}_name"] or ("" if label < 0 else str(label)) for kind, label in numbers.items())
    cells = [shorten(row["id"], 120), *labels, p]
    return f"| {' | '.join(_text(cell) for cell in cells)} |"


def _text(value: str) -> str:
    """Write any text so that Markdown and HTML show it as it is, on one line."""
    one_line = " ".join(shorten(value, 400).split())
    return re.sub(r"([\\`*_{}\[\]|~#!])", r"\\\1", html.escape(one_line, quote=False))


def _xml(value: str) -> str:
    """Leave out characters that XML cannot hold, even escaped; attributes and text are escaped by the writer."""
    return _NOT_IN_XML.sub("\ufffd", value)
