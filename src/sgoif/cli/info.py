"""``sgoif info``: how a run went, from ``run.json`` and the files that are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sgoif.cli.options import Json, RunPath
from sgoif.cli.output import clean, count, emit_json, percent, print_facts, print_lines
from sgoif.cli.run import name_of, open_run, read_one

if TYPE_CHECKING:
    from sgoif.run import Run

Facts = list[tuple[str, str]]

_SHOWN_SKIPPED = 10
_SHOWN_CLASSES = 20
_PATHS = {
    "features": "heads on embeddings from a file",
    "backbone": "heads on a frozen backbone",
    "text": "heads on hashed words and character sequences",
    "table": "heads on the columns of the table",
}
_LOST = {
    "unreadable": "could not be read",
    "without_label": "have no label",
    "not_finite": "have an embedding that is not finite",
}


def info(run: RunPath, as_json: Json = False) -> None:
    """Show how a run went: state, cost, faults, calibration, versions."""
    opened = open_run(run, takes_values=True, takes_sequences=True)
    document = describe(opened)
    if as_json:
        return emit_json("info", **document)
    print_facts(clean(run), _describe_run(opened, document))
    for title, facts in (
        ("Training", _describe_training(opened.info)),
        ("Calibration", _describe_calibration(opened)),
        ("Problems", _describe_problems(document)),
        ("Made with", _describe_environment(opened.files.info)),
    ):
        if facts:
            print_lines([""])
            print_facts(title, facts)


def describe(run: Run) -> dict[str, Any]:
    """All that is known of how a run went."""
    from sgoif.store.schema import TABLES

    info = run.files.info
    facts = info.get("facts") or {}
    noted = ("state", "created", "updated", "schema_version", "keep_visits", "next_step", "attempts")
    return {
        "run": run.url,
        **{name: info.get(name) for name in noted},
        "is_finished": run.files.is_finished,
        "id_kind": run.files.id_kind("visits"),
        "rows": {name: _count_rows(run, name) for name in TABLES},
        "faults": {"training": _counts(facts.get("faults")), "writing": _counts(info.get("faults"))},
        "dropped_rows": info.get("dropped_rows", 0),
        "skipped_parts": [{"path": item.path, "reason": item.reason} for item in run.files.skipped],
        "libraries": info.get("libraries", {}),
        "hardware": info.get("hardware", {}),
        "summary": run.summary().document(),
        "facts": dict(facts),
    }


def _count_rows(run: Run, table: str) -> int:
    """Rows that count: as the footers say, unless a later attempt repeats some of them."""
    parts = run.files.parts(table)
    if all(part.limit is None for part in parts):
        return sum(part.num_rows for part in parts)
    return int(read_one(run, f"select count(*) as n from {table}"))


def _describe_run(run: Run, document: Mapping[str, Any]) -> Facts:
    from sgoif.store.holding import closing_command

    info, facts, rows = run.files.info, run.info, document["rows"]
    attempts, visits = info.get("attempts") or [], rows["visits"] + rows["sequence_visits"]
    state = "finished"
    if not run.files.is_finished:
        ended = "ended without monitor.close()" if info.get("state") == "unclosed" else "running or killed"
        state = f"{ended}; last sign of life {info.get('updated', '?')}, at step {info.get('next_step', '?')}"
    found = [
        ("state", state),
        ("kind", str(facts.get("kind") or "watch")),
        ("created", str(info.get("created", "?"))),
        ("examples", count(rows["examples"]) + ("" if rows["examples"] else ", added up when the run ends")),
    ]
    if facts.get("kind") != "scan":
        found.append(("visits", f"{count(visits)} on disk (kept: {info.get('keep_visits', '?')})"))
    if not run.files.is_finished and visits and not rows["examples"]:
        found.append(("to add up", f"`{clean(closing_command(run.files.url))}`"))
    if facts.get("num_not_judged"):
        where = "whenever they were seen, the scores could not be trusted yet; see `sgoif score --only-unjudged`"
        if run.has_sequences:
            is_watched = facts.get("kind") != "audit"
            early = "were seen before the first look at the evaluation sequences only, " if is_watched else ""
            where = f"they {early}have no token to predict, or gave numbers that are not finite"
        found.insert(4, ("not judged", f"{count(facts['num_not_judged'])} of them: {where}"))
    if facts.get("path"):
        lost = [f"{count(facts[name])} {text}" for name, text in _LOST.items() if facts.get(name)]
        found.insert(2, ("scored by", f"{_PATHS.get(facts['path'], clean(facts['path']))}"))
        found += [("left out", ", ".join(lost))] if lost else []
    starts = ", ".join(f"from step {item['start_step']}" for item in attempts)
    return [*found, ("attempts", f"{len(attempts)}: {starts}" if len(attempts) > 1 else str(len(attempts)))]


def _describe_training(facts: Mapping[str, Any]) -> Facts:
    found: Facts = []
    counters = _mapping(facts.get("counters"))
    if counters:
        judged = counters.get("visits", 0) - counters.get("visits_not_judged", 0)
        found.append(("steps", f"{count(counters.get('steps', 0))}, {count(counters.get('refreshes', 0))} refreshes"))
        passed = counters.get("visits_passed_over", 0)
        more = f"; {count(passed)} more were in steps that the plan does not score" if passed else ""
        found.append(("visits scored", f"{count(counters.get('visits', 0))}, {count(judged)} of them judged{more}"))
    if facts.get("head") is not None:
        found.append(("head", clean(facts["head"])))
    plan = _mapping(facts.get("plan"))
    if plan:
        what = "or more evaluation sequences" if facts.get("task") == "sequences" else "hold-out examples"
        found.append(("plan", _plan(plan, what)))
        changes = facts.get("plan_changes") or []
        found += [("changed", _change(change, what)) for change in changes]
        if not changes:
            found.append(("plan changes", "none"))
    if isinstance(facts.get("overhead"), int | float):
        parts = _mapping(facts.get("overhead_by_part"))
        by = ", ".join(f"{name} {percent(share)}" for name, share in parts.items())
        found.append(("overhead", f"{percent(facts['overhead'])} of the bare step, measured{f' ({by})' if by else ''}"))
    return found


def _describe_calibration(run: Run) -> Facts:
    from sgoif.summary import describe_checked, kind_of_holdout

    if run.info.get("task") in ("regression", "annotators", "sequences"):  # they hold nothing out
        return _parts([line for line in run.summary().lines()[1:] if not line.startswith("Warning: ")])
    found: Facts = [] if run.info.get("kind") == "scan" else [("hold-out", kind_of_holdout(run.info))]
    held = run.info.get("held_out_per_class")
    if isinstance(held, list):
        named = [f"{clean(name_of(run, label))} {number}" for label, number in enumerate(held)]
        more = f" and {len(named) - _SHOWN_CLASSES} classes more" if len(named) > _SHOWN_CLASSES else ""
        found.append(("held out", f"{count(sum(held))}: {', '.join(named[:_SHOWN_CLASSES])}{more}"))
    if not run.num_examples:
        not_yet = ("calibrated", "not yet: that is done when the run ends")
        return found if run.files.is_finished else [*found, not_yet]
    summary = run.summary()
    lines = summary.lines()
    if not summary.is_calibrated:
        lines = describe_checked(run.info["checked"]) if "checked" in run.info else []
        return [*found, ("calibrated", f"no: {clean(summary.no_p_reason)}"), *_parts(lines)]
    judged = f"yes, {count(run.num_judged)} of {count(run.num_examples)} examples judged"
    return [*found, ("calibrated", judged), *_parts(lines[1 + len(summary.warnings) :])]


def _parts(lines: Sequence[str]) -> Facts:
    return [(line[:1].lower() + line.partition(":")[0][1:], line.partition(": ")[2]) for line in lines if ": " in line]


def _describe_problems(document: Mapping[str, Any]) -> Facts:
    found: Facts = []
    for kind, faults in document["faults"].items():
        found += [(f"while {kind}", f"{number} x {clean(cause)}") for cause, number in faults.items()]
    facts = _mapping(document["facts"])
    for what in ("refused", "lost"):
        causes = _counts(facts.get(f"visits_{what}"))
        found += [(f"visits {what}", f"{count(number)}: {clean(cause)}") for cause, number in causes.items()]
    cost = _mapping(facts.get("warnings")).get("overhead")
    found += [("warning", f"{text}.") for text in document["summary"]["warnings"]]
    found += [("warning", clean(str(cost)))] if cost else []
    if document["dropped_rows"]:
        found.append(("dropped rows", f"{count(document['dropped_rows'])}, which could not be written"))
    skipped = document["skipped_parts"]
    found += [("skipped part", f"{clean(item['path'])}: {clean(item['reason'])}") for item in skipped[:_SHOWN_SKIPPED]]
    if len(skipped) > _SHOWN_SKIPPED:
        found.append(("", f"and {len(skipped) - _SHOWN_SKIPPED} more"))
    return found or [("faults", "none")]


def _describe_environment(info: Mapping[str, Any]) -> Facts:
    libraries, hardware = _mapping(info.get("libraries")), _mapping(info.get("hardware"))
    versions = ", ".join(f"{name} {version}" for name, version in libraries.items())
    gpus = hardware.get("gpus") or []
    where = f"measured on {', '.join(gpus) if gpus else 'CPU'}"
    cores = f"{hardware.get('system', '?')} {hardware.get('machine', '?')}, {hardware.get('cpu_count', '?')} cores"
    return [("versions", clean(versions)), ("hardware", f"{clean(cores)}; {clean(where)}")]


def _plan(plan: Mapping[str, Any], what: str) -> str:
    every = "every step" if plan.get("stride", 1) == 1 else f"every {plan['stride']} steps"
    layers = f" (head and {', '.join(plan['layers'])})" if plan.get("layers") else ""
    return (
        f"scores {every}{layers}, observes curvature every {plan.get('observe_every', '?')} steps, refreshes from "
        f"{plan.get('examples_per_refresh', '?')} {what} every {plan.get('refresh_every', '?')} steps"
    )


def _change(change: Mapping[str, Any], what: str) -> str:
    overhead = percent(change.get("overhead"))
    return f"at step {change.get('step', '?')}, overhead {overhead}: {_plan(_mapping(change.get('plan')), what)}"


def _counts(value: Any) -> dict[str, int]:
    return {str(cause): int(number) for cause, number in _mapping(value).items()}


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
