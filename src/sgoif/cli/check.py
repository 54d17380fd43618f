"""``sgoif check``: is the data good enough? For continuous integration: exit codes, Markdown and JUnit XML."""

from __future__ import annotations

import html
import os
import re
from dataclasses import asdict
from typing import Any
from xml.etree import ElementTree

from sgoif.cli.limits import EXCEEDED, FINE, UNJUDGED, UNSURE, Limits, Outcome, Verdict, judge
from sgoif.cli.output import count, emit_json, interval, percent, print_lines, print_table, shorten
from sgoif.cli.run import Run, open_run
from sgoif.errors import SgoifError
from sgoif.files.tables import write_text
from sgoif.findings.suspects import FLAGGED
from sgoif.summary import Summary, TagSummary, competence_line

__all__ = ["check", "junit_xml", "markdown"]

_CODES = {FINE: 0, UNSURE: 2, EXCEEDED: 1, UNJUDGED: 2}
_SAID = {
    FINE: "within all limits",
    UNSURE: "cannot tell: the limit lies within what is possible",
    EXCEEDED: "a limit is exceeded",
    UNJUDGED: "could not judge",
}
_MARKS = {FINE: "✅", UNSURE: "⚠️", EXCEEDED: "❌", UNJUDGED: "❔"}
_ORDER = (EXCEEDED, UNJUDGED, UNSURE, FINE)  # in which limits are shown
_SHOWN = 20  # classes in the Markdown summary
_SHOWN_LABELS = 10
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def check(
    url: str,
    limits: Limits,
    *,
    against: str | None = None,
    summary: str | None = None,
    junit: str | None = None,
    as_json: bool = False,
) -> int:
    """Hold a run against limits, report, and return the exit code."""
    run: Run | None = None
    try:
        run = open_run(url)
        verdict = judge(run, limits, None if against is None else open_run(against))
    except SgoifError as error:  # no run at all: what reads the reports must hear of it too
        verdict = Verdict([], str(error))
    found = run.summary() if run is not None else None
    worst = []
    if run is not None and run.num_examples:
        worst = run.label_issues(top=_SHOWN_LABELS, min_p=FLAGGED if run.is_calibrated else None).to_pylist()
    if summary is not None:
        _write_summary(summary, markdown(url, verdict, found, worst))
    if junit is not None:
        write_text(junit, junit_xml(url, verdict))
    if as_json:
        outcomes = [asdict(item) for item in verdict.outcomes]
        emit_json(
            {
                "command": "check",
                "format": 1,
                "run": url,
                "state": verdict.state,
                "exit_code": _CODES[verdict.state],
                "reason": verdict.reason,
                "outcomes": outcomes,
                "summary": None if found is None else found.document(),
            }
        )
    else:
        _print(url, verdict, found)
    return _CODES[verdict.state]


def _print(url: str, verdict: Verdict, found: Summary | TagSummary | None) -> None:
    print_lines([f"{url}: {_SAID[verdict.state]}"])
    if isinstance(found, Summary):
        known = competence_line(found.competence, has_trained=found.has_trained_on_holdout)
        print_lines([] if known is None else [known])
    if verdict.reason is not None:
        print_lines([verdict.reason])
    rows = sorted(verdict.outcomes, key=lambda item: _ORDER.index(item.state))
    if rows:
        print_table(
            ["limit", "of", "state", "found"],
            [[_limit(item), shorten(item.about), item.state, item.text] for item in rows],
            shrink=["of"],
            wrap=["found"],
        )


def markdown(url: str, verdict: Verdict, found: Summary | TagSummary | None, worst: list[dict[str, Any]]) -> str:
    """Write the verdict for a page such as GitHub's job summary."""
    lines = [f"## {_MARKS[verdict.state]} Labels of {_text(url)}: {_SAID[verdict.state]}", ""]
    if verdict.reason is not None:
        lines += [_text(verdict.reason), ""]
    if verdict.outcomes:
        rows = sorted(verdict.outcomes, key=lambda item: _ORDER.index(item.state))
        lines += ["| | limit | of | found |", "|---|---|---|---|"]
        lines += [
            f"| {_MARKS[item.state]} | {_text(_limit(item))} | {_text(item.about)} | {_text(item.text)} |"
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


def junit_xml(url: str, verdict: Verdict) -> str:
    """Write the verdict as JUnit XML: a test case per limit and class; what was not judged is skipped."""
    outcomes = verdict.outcomes
    failed, skipped = (sum(item.state == state for item in outcomes) for state in (EXCEEDED, UNJUDGED))
    errors = int(verdict.reason is not None)
    counts = {
        "tests": str(len(outcomes) + errors),
        "failures": str(failed),
        "errors": str(errors),
        "skipped": str(skipped),
    }
    root = ElementTree.Element("testsuites", {"name": "sgoif check", **counts})
    suite = ElementTree.SubElement(root, "testsuite", {"name": _xml(f"labels of {url}"), **counts})
    for item in outcomes:
        name = f"{item.about} <= {_amount(item)}"
        case = ElementTree.SubElement(
            suite, "testcase", {"classname": f"sgoif.{item.kind}", "name": _xml(name), "time": "0"}
        )
        if item.state == EXCEEDED:
            told = ElementTree.SubElement(case, "failure", {"type": item.kind, "message": _xml(item.text)})
            told.text = _xml(f"{item.about}: {item.text}; the limit is {_amount(item)}.")
        elif item.state == UNJUDGED:
            ElementTree.SubElement(case, "skipped", {"message": _xml(item.text)})
        elif item.state == UNSURE:
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
    labels = (row[f"{kind}_name"] or _numbered(row[f"{kind}_label"]) for kind in ("given", "suggested"))
    cells = [shorten(row["id"], 120), *labels, p]
    return f"| {' | '.join(_text(cell) for cell in cells)} |"


def _numbered(label: int) -> str:
    return "" if label < 0 else str(label)


def _text(value: str) -> str:
    """Write any text so that Markdown and HTML show it as it is, on one line."""
    one_line = " ".join(shorten(value, 400).split())
    return re.sub(r"([\\`*_{}\[\]|~#!])", r"\\\1", html.escape(one_line, quote=False))


def _xml(value: str) -> str:
    """Leave out characters that XML cannot hold, even escaped; attributes and text are escaped by the writer."""
    return _NOT_IN_XML.sub("\ufffd", value)
