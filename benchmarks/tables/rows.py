"""Raw results read back: the last row of each measurement, groups of them, and how a mean is printed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from benchmarks.records import RESULTS, read_results

Run = dict[str, Any]

_T = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776}  # of a 95% interval, by number of seeds


def latest(name: str, key: Callable[[Any], Any] | None = None) -> list[Run]:
    """The last result of each setting and seed, in the order of first appearance; none where there is no file.

    In which precision a machine is fast is no setting: a later result replaces one of another precision.
    """
    if not (RESULTS / name).is_file():
        return []
    make = key or (lambda run: (str(sorted({**run["settings"], "amp": None}.items())), run["seed"]))
    found: dict[Any, Run] = {}
    for run in read_results(name):
        found[make(run)] = run
    return list(found.values())


def group_runs(runs: Iterable[Run], names: Sequence[str]) -> list[tuple[tuple[str, ...], list[Run]]]:
    """Group runs by some of their settings, in the order of first appearance."""
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(tuple(run["settings"][name] for name in names), []).append(run)
    return list(groups.items())


def half_interval(values: Sequence[float]) -> float:
    """Half a 95% t-interval of the mean; NaN for one value."""
    if len(values) < 2:
        return float("nan")
    return float(_T.get(len(values), 1.96) * np.std(values, ddof=1) / len(values) ** 0.5)


def interval(values: Sequence[float], sign: str = "") -> str:
    """A mean with half its interval; two values stand for themselves, one alone. ``sign="+"`` for a difference.

    The t-interval of two seeds is 13 times their standard error: true, and of no use.
    """
    beside = ""
    if len(values) == 2:
        beside = f" ({', '.join(f'{value:{sign}.1f}' for value in values)})"
    elif len(values) > 2:
        beside = f" ± {half_interval(values):.1f}"
    return f"{np.mean(values):{sign}.1f}{beside}"


def means(values: Iterable[float]) -> str:
    return f"{np.mean(list(values)):.1f}"


def describe_seeds(runs: Sequence[Run]) -> str:
    """Which seeds stand behind a row: ``3 seeds``, ``seed 1``."""
    seeds = sorted({run["seed"] for run in runs})
    return f"{len(seeds)} seeds" if len(seeds) > 1 else f"seed {seeds[0]}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Lay out a Markdown table."""
    lines = [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def calibration_header(first: str) -> tuple[str, ...]:
    tops = ("top 1%: mean p / wrong, %", "top 5%", "top 10%")
    return (first, *tops, "most above the truth", "errors estimated / true")


def calibration_cells(found: Sequence[Run]) -> list[str]:
    """Mean precision of the top 1, 5 and 10%, the largest excess over the truth, and the number of errors."""
    cells, over = [], []
    for items in zip(*(run["precision"] for run in found), strict=True):
        said, true = (100 * np.mean([item[key] for item in items]) for key in ("value", "true"))
        cells.append(f"{said:.0f} / {true:.0f}")
        over += [100 * (item["value"] - item["true"]) for item in items]
    expected, true = (np.mean([run["errors"][key] for run in found]) for key in ("expected", "true"))
    return [*cells, f"{max(over):+.0f}", f"{expected:,.0f} / {true:,.0f}"]
