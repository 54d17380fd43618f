"""The bars of the trust grid, each met or missed with its figure; what was not run is said to be so."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from benchmarks.tables.rows import latest, table
from benchmarks.trust.cells import REPORTED
from benchmarks.trust.tables import (
    NEW,
    SCALE_FILE,
    CellRuns,
    compare_few_errors,
    cost_ratios,
    mean_ap,
    read_cells,
    real_groups,
)

NO_ERRORS = ("made-linear", "made-bent", "digits", "wine", "breast_cancer", "cifar10", "fashion")  # none when clean
ASKED = ("mnist", "cifar10", "cifar100")  # judged test sets on features; the variants are shown, not judged
FEW = 30  # errors; below this single seeds say little
SHOWN = 6  # misses that are listed by name

Judged = Sequence[tuple[str, float, bool]]  # where, figure, met
Row = list[str]


def bars() -> str:
    """Every bar that the grid can judge."""
    cells = read_cells(NEW)
    found = [*_ranking(cells), *_real(), *_clean(cells), *_flags(cells), *_competence(cells), *_cost(cells)]
    note = f"{len(cells)} of {len(REPORTED)} reported cells were run with the new estimator."
    draws = sum(len(item.seeds) for item in cells)
    return f"{note} They have {draws} draws.\n\n" + table(("", "asks", "measured", ""), found)


def _row(name: str, asks: str, judged: Judged, digits: int = 1, unit: str = "") -> Row:
    """One bar over many places: met where all meet it, and the misses by name."""
    if not judged:
        return [name, asks, "-", "not run"]
    missed = sorted((item for item in judged if not item[2]), key=lambda item: item[1])
    listed = ", ".join(f"{where} {value:.{digits}f}{unit}" for where, value, _ in missed[:SHOWN])
    more = f", and {len(missed) - SHOWN} more" if len(missed) > SHOWN else ""
    figure = f"{len(judged) - len(missed)} of {len(judged)}" + (f"; not: {listed}{more}" if missed else "")
    return [name, asks, figure, "**missed**" if missed else "met"]


def _ranking(cells: Sequence[CellRuns]) -> Iterator[Row]:
    noisy = [item for item in cells if item.ahead]
    gains = [(item.name, float(np.mean(item.ahead))) for item in noisy]
    yield _row("ranking", "AP not 1 below the best rival, every cell", [(w, v, v >= -1) for w, v in gains])
    pairs = []
    for item in noisy:
        is_pair = item.cell.noise.startswith("pair") and item.cell.rate >= 0.03 and item.cell.shape != "two"
        best = item.best_rival
        if is_pair and best is not None:
            asked = min(10.0, (100 - float(np.mean(item.theirs(best)))) / 2)
            gain = float(np.mean(item.ahead))
            pairs.append((f"{item.name} (asks +{asked:.1f})", gain, gain >= asked))
    yield _row("ranking", "class pairs from 3%: 10 above it, or half of the gap to 100", pairs)
    large = [item for item in noisy if item.errors >= FEW]
    single = [
        (f"{item.name} seed {s}", v, v >= -4) for item in large for s, v in zip(item.shared, item.ahead, strict=True)
    ]
    yield _row("ranking", f"no seed more than 4 below it, cells of {FEW} errors or more", single)
    small = [value for item in noisy if item.errors < FEW for value in item.ahead]
    pooled = [("pooled", float(np.mean(small)), float(np.mean(small)) >= -4)] if small else []
    yield _row("ranking", f"smaller cells pooled: not more than 4 below, {len(small)} draws", pooled)
    yield _few_errors(sum(item.cell.rate <= 0.03 for item in noisy))


def _few_errors(num_cells: int) -> Row:
    found = [
        (f"{item.rival} ({item.theirs:.1f}, ours {item.ours:.1f})", item.ours - item.theirs, item.ours > item.theirs)
        for item in compare_few_errors(NEW)
    ]
    return _row("ranking", f"3% noise or less: mean AP of {num_cells} cells above every rival's", found)


def _real() -> Iterator[Row]:
    for kind, start in (("cleanlab on the same features", "logistic"), ("the study's probabilities", "published")):
        judged = []
        for name, runs, rivals in real_groups(NEW):
            ours = mean_ap(runs)
            theirs = [float(np.mean(aps)) for rival, aps in rivals.items() if rival.startswith(start)]
            if name in ASKED and ours is not None and theirs:
                judged.append(
                    (f"{name} ({ours:.1f} against {max(theirs):.1f})", ours - max(theirs), ours >= max(theirs))
                )
        yield _row("real errors", f"AP among judged examples not below {kind}", judged)


def _clean(cells: Sequence[CellRuns]) -> Iterator[Row]:
    clean = [item for item in cells if item.cell.noise == "clean" and item.cell.data in NO_ERRORS]
    flagged = [(item.name, 100 * item.mean("num_flagged") / item.num_examples) for item in clean]
    yield _row("clean sets", "at most 0.2% of the labels flagged", [(w, v, v <= 0.2) for w, v in flagged], 2, "%")
    totals = [(item.name, 100 * item.mean("total") / item.num_examples) for item in clean if item.figures("total")]
    judged = [(w, v, v <= 0.5) for w, v in totals]
    silent = [item.name for item in clean if not item.figures("total")]
    row = _row("clean sets", "at most 0.5% of the labels claimed wrong", judged, 2, "%")
    yield [*row[:2], row[2] + (f"; no total: {', '.join(silent)}" if silent else ""), row[3]]


def _flags(cells: Sequence[CellRuns]) -> Iterator[Row]:
    strong = [item for item in cells if item.cell.expects == "competent" and item.cell.noise != "clean"]
    asked = [item for item in strong if item.cell.rate >= 0.01]
    right = [(item.name, item.mean("flag_precision"), item.mean("flag_precision") >= 50) for item in asked]
    right = [item if np.isfinite(item[1]) else (f"{item[0]} (no flags)", 0.0, False) for item in right]
    yield _row("flags", "at least 50% right, every cell from 1%", right, 0, "%")
    worse = []
    for item in cells:
        for seed in item.seeds:
            after = item.ours[seed]["report"]["ours"].get("left_after_relabelling", item.ours[seed]["errors"])
            more = after - item.ours[seed]["errors"]
            worse.append((f"{item.name} seed {seed}", float(more), more <= 0))
    yield _row("flags", "relabelling leaves no more errors than there were, every draw (errors added)", worse, 0)
    recall = []
    for item in asked:
        cleanlab, mine = item.cleanlab_recall(), item.mean("flag_recall")
        if item.shared:
            cleanlab = 0.0 if cleanlab is None else cleanlab
            mine = 0.0 if np.isnan(mine) else mine
            is_met = mine >= cleanlab and mine > 0
            recall.append((f"{item.name} ({mine:.0f}% against {cleanlab:.0f}%)", mine - cleanlab, is_met))
    yield _row("flags", "recall not below that of cleanlab's order, cut at the precision of our flags", recall)
    totals = []
    for item in strong:
        if item.cell.rate >= 0.02:
            share = item.mean("total") / item.errors
            where = item.name if np.isfinite(share) else f"{item.name} (no total)"
            totals.append((where, share if np.isfinite(share) else 0.0, bool(0.5 <= share <= 2)))
    yield _row("flags", "errors claimed over true ones between 0.5 and 2, every cell from 2%", totals, 2)


def _competence(cells: Sequence[CellRuns]) -> Iterator[Row]:
    judged = []
    for item in cells:
        if item.cell.expects == "weak":
            claims: dict[str, Callable[[dict[str, object]], bool]] = {
                "p": lambda report: report.get("ece") is not None,
                "flags": lambda report: bool(report.get("num_flagged")),
                "total": lambda report: report.get("total") is not None,
            }
            reports = [item.ours[seed]["report"]["ours"] for seed in item.seeds]
            told = [name for name, is_told in claims.items() if any(is_told(report) for report in reports)]
            judged.append((f"{item.name} ({', '.join(told)})", float(len(told)), not told))
    yield _row("competence", "weak features: no p, no flags, no total", judged, 0)


def _cost(cells: Sequence[CellRuns]) -> Iterator[Row]:
    ratios = [(name, ratio, ratio <= 3) for name, _, ratio in cost_ratios(cells)]
    asks = "5,000 examples: at most 3 times the CPU of logistic regression and cleanlab"
    row = _row("cost", asks, ratios)
    worst = f"; {max(item[1] for item in ratios):.1f} at most" if ratios else ""
    yield [*row[:2], row[2] + worst, row[3]]
    runs = [run for run in latest(SCALE_FILE) if run["settings"]["method"] == NEW]
    full = [run for run in runs if run["settings"]["examples"] >= 10**6]
    asks = "10^6 x 512, 1,000 classes: at most 8 GB and 2 hours of one core"
    if full:
        report = full[-1]["report"]
        is_met = report["peak_gb"] <= 8 and report["cpu_s"] <= 7_200
        said = f"{report['peak_gb']:.1f} GB, {report['cpu_s'] / 3600:.2f} hours"
        yield ["cost", asks, said, "met" if is_met else "**missed**"]
    else:
        yield ["cost", asks, "-", "not run"]
