"""How cost grows, and what a large run would cost: from the rows of ``python -m benchmarks.scale``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.tables.rows import Run, latest, table

__all__ = ["meeting", "plan", "ranks", "step", "store"]

_FILE = "scale.jsonl"
_SWEEPS = {"examples": "n", "classes": "K", "width": "d"}


def _rows(part: str, *names: str) -> list[Run]:
    """The last row of each point of a part; its names tell points apart."""
    found = latest(_FILE, key=lambda run: (run["settings"]["part"], *(str(run.get(name)) for name in names)))
    return [run for run in found if run["settings"]["part"] == part]


def step() -> str:
    """The monitor's processor time per step by part, beside the forecast and the bare step."""
    rows = []
    points = _rows("step", "sweep", "shape")
    for run in sorted(points, key=lambda run: (list(_SWEEPS).index(run["sweep"]), run["shape"][run["sweep"]])):
        shape, own, told = run["shape"], run["own_s"], run["forecast_s"]
        point = f"{_SWEEPS[run['sweep']]} = {shape[run['sweep']]:,}"
        ratio = f"{run['timing']['watched']['ratio']:.2f}" if run.get("timing") else ""
        work = [sum(part[kind] for part in run["work"].values()) / shape["batch"] / 1e6 for kind in ("flops", "bytes")]
        parts = [_short(1e3 * own[name]) for name in ("scoring", "curvature", "refresh")]
        forecast = f"{sum(told.values()) / sum(own.values()):.2f}"
        rows.append([point, *parts, ratio, forecast, " / ".join(map(_short, work))])
    header = ("", "scoring, ms", "curvature", "refreshes", "step over bare", "forecast over measured")
    return table((*header, "MFLOP / MB per example"), rows)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def ranks() -> str:
    """Bytes of one rank's buffers per step: real and declared, with a tiny and a large head."""
    found = _rows("ranks", "kind", "ranks", "shape")
    cells: dict[int, dict[str, Run]] = {}
    for run in found:
        kind = run["kind"] if run["shape"]["classes"] < 1000 else "large"
        cells.setdefault(run["ranks"], {})[kind] = run
    rows = []
    for size, kinds in sorted(cells.items()):
        bytes_of = {kind: f"{run['bytes_per_step'] / 1e3:,.1f}" for kind, run in kinds.items()}
        waited = kinds.get("real")
        took = "" if waited is None else f"{1e3 * waited['seconds_per_exchange']:.2g}"
        rows.append([f"{size:,}", *(bytes_of.get(kind, "") for kind in ("real", "declared", "large")), took])
    return table(("ranks", "real, KB a step", "declared", "declared, K = 1,000, d = 1,024", "ms an exchange"), rows)


def meeting() -> str:
    """Joining a group with sockets made at once and when they are used, and its smallest exchange."""
    found = {(run["ranks"], run["is_lazy"]): run for run in _rows("meeting", "ranks", "is_lazy")}
    rows = []
    for size in sorted({size for size, _ in found}):
        pair = [found[size, is_lazy] for is_lazy in (False, True)]
        told = {"join_s": ".2f", "sockets": "d"}
        cells = [" / ".join(f"{run[name]:{form}}" for run in pair) for name, form in told.items()]
        rows.append([f"{size}", *cells, " / ".join(f"{1e3 * run['meet_cpu_s']:.1f}" for run in pair)])
    return table(("ranks", "s to join: at once / when used", "open files", "CPU ms of a meeting"), rows)


def store() -> str:
    """Writing, asking and adding up."""
    rows = []
    for run in _rows("store", "rows", "ids"):
        merge = run.get("merge")
        added = (
            ["", ""] if merge is None else [f"{1e6 / merge['rows_per_cpu_s']:.1f}", f"{merge['bytes_per_example']:.0f}"]
        )
        peaks = [run[name]["peak_mb"] for name in ("write", "query", "merge") if name in run]
        numbers = [f"{run['bytes_per_row']:.0f}", f"{run['write']['rows_per_cpu_s']:,.0f}"]
        numbers += [f"{run['query']['cpu_s']:.1f}", *added, " / ".join(f"{peak:.0f}" for peak in peaks)]
        rows.append([f"{run['rows']:,}, {run['ids']}", *numbers])
    header = (
        "visits, ids",
        "bytes a visit",
        "written per CPU s",
        "query, CPU s",
        "CPU s to add up 10^6",
        "bytes an example",
    )
    return table((*header, "peak MiB: write / query / add up"), rows)


_Number = Callable[[Run], Any]
_PLAN: dict[str, tuple[_Number, str]] = {
    "bare step, ms": (lambda r: r["bare_ms"], ".0f"),
    "scoring, ms": (lambda r: r["own_ms"]["scoring"], ".1f"),
    "curvature, ms": (lambda r: r["own_ms"]["curvature"], ".1f"),
    "refreshes, ms": (lambda r: r["own_ms"]["refresh"], ".1f"),
    "exchanges, ms (around a ring)": (lambda r: f"{r['exchange_ms']:.1f} ({r['ring_ms']:.0f})", ""),
    "**all of it, % of the step**": (lambda r: 100 * r["share"], ".0f"),
    "exchanged, MB a step": (lambda r: r["exchange_bytes"] / 1e6, ".1f"),
    "of the gradient that DDP reduces, %": (lambda r: 100 * r["exchange_bytes"] / r["gradient_bytes"], ".1f"),
    "device memory, GB": (lambda r: r["device_mb"] / 1e3, ".1f"),
    "host memory of a rank, GB": (lambda r: r["host_mb"] / 1e3, ".1f"),
    "training with it, hours": (lambda r: r["hours"], ".1f"),
    "training with it, $": (lambda r: r["gpu_usd"], ",.0f"),
    "**of that for watching, $**": (lambda r: r["watching_usd"], ",.0f"),
    "visits, TB": (lambda r: r["store"]["tb"], ".2f"),
    "kept for a month, $": (lambda r: r["store"]["usd_per_month"], ".1f"),
    "files": (lambda r: r["store"]["files"], ",.0f"),
    "opening the run, s": (lambda r: r["store"]["open_s"], ",.0f"),
    "requests, $": (lambda r: r["store"]["requests_usd"], ",.2f"),
    "adding up, core hours": (lambda r: r["store"]["add_up_core_hours"], ".1f"),
    "table of examples, GB": (lambda r: r["store"]["held_at_close_gb"], ",.0f"),
    "one query over all visits, CPU s": (lambda r: r["store"]["query_s"], ",.0f"),
    "second pass by a snapshot, GPU hours": (lambda r: r["second_pass"]["gpu_hours"], ",.0f"),
    "second pass, $": (lambda r: r["second_pass"]["usd"], ",.0f"),
}


def plan() -> str:
    """What each case of the plan comes to."""
    runs = _rows("plan", "case")
    heads = []
    for run in runs:
        case = run["case"]
        rare = ", rarest plan" if case["plan"]["refresh_every"] > 20 else ""
        heads.append(f"{case['ranks']:,} x {case['batch']}, {case['classes']:,} classes{rare}")
    return table(("", *heads), [[name, *(f"{of(run):{form}}" for run in runs)] for name, (of, form) in _PLAN.items()])
