"""Attributions of three libraries against exact influence and retraining."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.records import read_results
from benchmarks.tables.rows import table

__all__ = ["faithfulness", "faithfulness_bars"]

_LIBRARIES = ("sgoif", "kronfluence", "dattri")
_B6_MARGIN = 0.02  # ours may lie so far below dattri's CG
_B6_OURS = ("mlp", "sgoif", "gauss-newton, damping 0.01")  # its damping was chosen before any LDS was seen
# names in the lines from before there was one line per method; all on the same models and retrainings
_EARLIER = {
    "dattri cg, default": ("dattri", "cg, regularization 0"),
    "dattri cg, regularization 0.01": ("dattri", "cg, regularization 0.01"),
    "dattri tracin, 5 checkpoints": ("dattri", "tracin, 5 checkpoints"),
    "tracin, 5 checkpoints": ("sgoif", "tracin, 5 checkpoints"),
    "gauss-newton cg, damping 0.001": ("sgoif", "gauss-newton, damping 0.001"),
    "gauss-newton cg, damping 0.1": ("sgoif", "gauss-newton, damping 0.1"),
}

Found = dict[tuple[str, str, str], Mapping[str, Any]]  # reports by subject, library and method


def faithfulness(file: str = "faithfulness.jsonl") -> str:
    """By library, the most faithful method first; above them what can be reached."""
    found = _attributions(read_results(file))
    truths = {subject: report["truth"] for (subject, *_), report in found.items() if "truth" in report}
    exact, ceiling = truths.get("convex", {}).get("exact", {}), truths.get("mlp", {})
    most = [_three(exact, "pearson"), _three(exact, "loo"), _three(exact, "lds"), _three(ceiling, "ceiling")]
    methods = {key[1:]: [found.get((subject, *key[1:]), {}) for subject in ("convex", "mlp")] for key in found}

    def place(key: tuple[str, str]) -> tuple[float, ...]:
        convex, mlp = methods[key]
        return _LIBRARIES.index(key[0]), -mlp.get("lds", -1.0), -convex.get("lds", -1.0)

    rows = [["", "exact influence; noise ceiling of the MLP", *most, ""]]
    for library, method in sorted(methods, key=place):
        convex, mlp = methods[library, method]
        cells = [_three(convex, "pearson"), _three(convex, "loo"), _lds(convex), _lds(mlp)]
        seconds = " / ".join(f"{report['cpu_s']:.0f}" if report else "-" for report in (convex, mlp))
        rows.append([library, method, *cells, seconds])
    measures = ("Pearson to exact influence", "LOO", "LDS, logistic", "LDS, MLP", "seconds, logistic / MLP")
    return table(("", "method", *measures), rows)


def faithfulness_bars(file: str = "faithfulness.jsonl") -> list[list[str]]:
    """B1 as the convex part measured it, of several solvers the worst; B6 from the lines of the network."""
    runs = read_results(file)
    found, rows = _attributions(runs), []
    for bar in _worst_of_each([run["report"]["bars"] for run in runs if run["settings"]["part"] == "convex"][-1]):
        rows.append(["B1", f"{bar['bar']}, at least {bar['least']:g}", f"{bar['value']:.3f}", _verdict(bar["met"])])
    peers = {key[2]: row["lds"] for key, row in found.items() if key[:2] == ("mlp", "dattri") and key[2][:2] == "cg"}
    best = max(peers, key=lambda name: peers[name])
    ours, least = found[_B6_OURS]["lds"], peers[best] - _B6_MARGIN
    asks = f"LDS on an MNIST MLP not {_B6_MARGIN:g} below dattri's best CG ({best}: {peers[best]:.3f})"
    return [*rows, ["B6", asks, f"{ours:.3f}", _verdict(ours >= least)]]


def _worst_of_each(bars: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    worst: dict[str, Mapping[str, Any]] = {}
    for bar in bars:
        is_solver = bar["bar"].endswith(": Pearson to exact")
        name = "every solver: Pearson to exact influence" if is_solver else bar["bar"]
        if name not in worst or bar["value"] < worst[name]["value"]:
            worst[name] = {**bar, "bar": name}
    return list(worst.values())


def _attributions(runs: Iterable[Mapping[str, Any]]) -> Found:
    """The latest report of each."""
    found: Found = {}
    for run in runs:
        settings = run["settings"]
        if settings["part"] == "attributors":
            found[settings["subject"], settings["library"], settings["method"]] = run["report"]
        elif settings["part"] == "mlp":
            rows = {row["method"]: row for row in run["report"]["methods"]}
            found |= {("mlp", *_EARLIER[name]): row for name, row in rows.items() if name in _EARLIER}
    return found


def _verdict(is_met: bool) -> str:
    return "met" if is_met else "**missed**"


def _three(report: Mapping[str, Any], key: str) -> str:
    return f"{report[key]:.3f}" if key in report else ""


def _lds(report: Mapping[str, Any]) -> str:
    failed = f" ({report['failed']} points failed)" if report.get("failed") else ""
    return f"{report['lds']:.3f} ± {report.get('lds_se', 0.0):.3f}{failed}" if report else ""
