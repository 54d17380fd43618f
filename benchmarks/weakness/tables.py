"""What the rule changes: totals over the clean and the noisy cells, and a line per draw."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.tables.rows import Run, latest, table

Pair = tuple[Run, Run]  # a draw without the rule, and with it

_SAID = {
    "counted": "counted",
    "spread": "spread evenly",
    "clean": "no sign of errors",
    "unknown": "cannot tell",
    "none": "too weak to judge",
}


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
    pairs, rows = read_pairs(), []
    for kind in ("clean", "noisy"):
        some = [pair for pair in pairs if (pair[0]["errors"] == 0) == (kind == "clean")]
        if some:
            for name, runs in zip(("without the rule", "with it"), zip(*some, strict=True), strict=True):
                rows.append([f"{kind}, {name}", str(len(some)), *_sum_up(runs)])
    header = ("draws", "number", "with p", "flagged", "right", "of all errors", "interval holds the true rate", "AP")
    return table((*header, "lower end of p 0.9 or more", "of these right labels"), rows)


def _sum_up(runs: Sequence[Run]) -> list[str]:
    reports, errors = [run["report"] for run in runs], sum(run["errors"] for run in runs)
    names = ("num_flagged", "flags_right", "sure", "sure_wrongly")
    flagged, right, sure, wrongly = (sum(report[name] for report in reports) for name in names)
    held = [report["rate_range"]["holds"] for report in reports if report.get("rate_range")]
    ap = f"{np.mean([report['ap'] for report in reports]):.1f}" if errors else "-"
    return [
        str(sum(report["total"] is not None for report in reports)),
        f"{flagged:,}",
        f"{right:,}" if errors else "-",
        f"{errors:,}" if errors else "-",
        f"{sum(held)} of {len(held)}",
        ap,
        str(sure),
        str(wrongly),
    ]


def cells() -> str:
    """A line per draw: what is said without the rule, and with it where that differs."""
    rows = []
    for before, after in read_pairs():
        settings = after["settings"]
        size = f"/n{settings['size']}" if settings["size"] else ""
        name = f"{settings['data']}/{settings['noise']}{size}, seed {after['seed']}"
        true = f"{100 * after['errors'] / after['examples']:.1f}"
        changed = [_beside(part(before), part(after)) for part in (_claimed, _flags, _ap)]
        rows.append([name, true, _SAID[after["kind"]], f"{after['evidence']:+.1f}", *changed])
    header = ("draw", "wrong, %", "what is believed", "nats", "claimed, %", "flagged (right)", "AP")
    return table(header, rows)


def _beside(before: str, after: str) -> str:
    return before if before == after else f"{before} → {after}"


def _claimed(run: Run) -> str:
    report, between = run["report"], run["report"].get("rate_range")
    if between is None:
        return "no p"
    total = "no p" if report["total"] is None else f"{100 * report['total'] / run['examples']:.1f}"
    missed = "" if between["holds"] else ", missed"
    return f"{total} ({100 * between['low']:.1f} to {100 * between['high']:.1f}{missed})"


def _flags(run: Run) -> str:
    report = run["report"]
    return f"{report['num_flagged']} ({report['flags_right']})" if run["errors"] else str(report["num_flagged"])


def _ap(run: Run) -> str:
    return f"{run['report']['ap']:.1f}" if run["errors"] else "-"
