"""What the rule changes: totals over the clean and the noisy cells, and a line per draw."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.tables.rows import Run, latest, table

Pair = tuple[Run, Run]  # a draw without the rule, and with it

_SAID = {"counted": "counted", "spread": "spread evenly", "clean": "no sign of any", "unknown": "cannot tell"}


def read_pairs(group: str = "reported") -> list[Pair]:
    """Every draw of a group that was measured both ways, in the order of the grid."""
    found: dict[tuple[object, ...], dict[bool, Run]] = {}
    for run in latest("weakness.jsonl"):
        settings = run["settings"]
        if settings["group"] == group:
            key = settings["data"], settings["noise"], settings["size"], run["seed"]
            found.setdefault(key, {})[settings["rule"]] = run
    return [(both[False], both[True]) for both in found.values() if len(both) == 2]


def totals() -> str:
    """Flags, intervals, ranking and sure errors over all draws."""
    pairs = read_pairs()
    clean, noisy = ([pair for pair in pairs if (pair[0]["errors"] > 0) == has_errors] for has_errors in (False, True))
    rows = []
    for place, name in enumerate(("without the rule", "with it")):
        for kind, some in (("clean", [pair[place] for pair in clean]), ("noisy", [pair[place] for pair in noisy])):
            if some:
                rows.append([f"{kind}, {name}", str(len(some)), *_sum_up(some)])
    rows.sort(key=lambda row: row[0].partition(",")[0])
    header = ("draws", "number", "with p", "flagged", "right", "of all errors", "interval holds the true rate", "AP")
    return table((*header, "lower end of p 0.9 or more", "of these right labels"), rows)


def _sum_up(runs: Sequence[Run]) -> list[str]:
    reports = [run["report"] for run in runs]
    flagged, right, sure, wrongly = (
        sum(report[key] for report in reports) for key in ("num_flagged", "flags_right", "sure", "sure_wrongly")
    )
    held = [report["rate_range"]["holds"] for report in reports if report.get("rate_range")]
    aps = [report["ap"] for report in reports if report.get("ap") is not None]
    with_p = sum(report["total"] is not None for report in reports)
    return [
        str(with_p),
        f"{flagged:,}",
        f"{right:,}" if aps else "-",
        f"{sum(run['errors'] for run in runs):,}" if aps else "-",
        f"{sum(held)} of {len(held)}",
        f"{np.mean(aps):.1f}" if aps else "-",
        str(sure),
        str(wrongly),
    ]


def cells() -> str:
    """A line per draw."""
    rows = []
    for before, after in read_pairs():
        settings, has_errors = after["settings"], after["errors"] > 0
        size = f"/n{settings['size']}" if settings["size"] else ""
        name = f"{settings['data']}/{settings['noise']}{size}, seed {after['seed']}"
        evidence = f"{after['evidence']:+.1f}"
        true = f"{100 * after['errors'] / after['examples']:.1f}"
        changed = [_beside(before, after, part) for part in (_claimed, _flags, _ap) if has_errors or part is not _ap]
        rows.append([name, true, _said(after), evidence, *changed, *([] if has_errors else ["-"])])
    header = ("draw", "wrong, %", "what is believed", "nats", "claimed, %", "flagged (right)", "AP")
    return table(header, rows)


def _said(run: Run) -> str:
    return _SAID.get(run["kind"], "not competent")


def _beside(before: Run, after: Run, part: object) -> str:
    first, second = part(before), part(after)  # type: ignore[operator]
    return str(first) if first == second else f"{first} → {second}"


def _claimed(run: Run) -> str:
    report = run["report"]
    between = report.get("rate_range")
    if between is None:
        return "no p"
    held = "" if between["holds"] else ", missed"
    total = "none" if report["total"] is None else f"{100 * report['total'] / run['examples']:.1f}"
    return f"{total} ({100 * between['low']:.1f} to {100 * between['high']:.1f}{held})"


def _flags(run: Run) -> str:
    report = run["report"]
    return f"{report['num_flagged']} ({report['flags_right']})" if run["errors"] else str(report["num_flagged"])


def _ap(run: Run) -> str:
    return f"{run['report']['ap']:.1f}"
