"""What checked labels are worth: coverage and width of intervals, and how ``sgoif check`` ends.

Verifications are simulated on rankings whose errors are known: made ones, where the ranking sees all errors well or
badly, half of them, or none, and says too much or too little; and tables of the trust grid as ``sgoif scan`` ranks
them. Each group is 1,000 verifications, spread over sizes from 200 to 1,000,000 examples. Kept are the coverage of
every 90% interval, its width, and how ``sgoif check`` ends at rates below and above a limit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from benchmarks.experiment import Experiment, option
from benchmarks.tables.rows import Run, latest, table
from benchmarks.trust import ours
from benchmarks.trust.cells import DEVELOPMENT
from benchmarks.trust.draws import draw
from sgoif.evidence.checked import TOPS, CheckedShare, Design, Verdicts, draw_ranks, estimate, make_design

KINDS = ("good", "weak", "half seen", "unseen", "p too high", "p too low")
RATES = (0.0, 0.001, 0.005, 0.02, 0.05, 0.2, 0.4)
SIZES = (200, 1_000, 5_000, 100_000, 1_000_000)
LIMITS = ((0.02, 60), (0.05, 60), (0.1, 60), (0.2, 60), (0.05, 120), (0.02, 300))  # and cards
FACTORS = (0.5, 1.02, 1.5)  # true rate, as a share of the limit
FIGURES = ("all labels", "flagged", "top 1%", "top 5%", "top 10%")
TABLES = ("made-linear-dev", "made-bent-dev")
_SEPARATION = {"good": 3.0, "weak": 1.2, "half seen": 3.0, "unseen": 0.0, "p too high": 2.0, "p too low": 2.0}
_SHIFT = {"p too high": 2.0, "p too low": -2.0}  # of the log-odds
_FLAGGED, _DOUBTFUL = 0.5, 0.1

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class World:
    """A ranking: which labels are wrong, most suspicious first, and how many of them a run would flag."""

    wrong: Bools
    num_flagged: int
    num_doubtful: int


def make_world(kind: str, size: int, rate: float, rng: np.random.Generator) -> World:
    """Scores are normal, shifted for wrong labels that the ranking sees; p is their posterior, or far off."""
    wrong = np.zeros(size, bool)
    wrong[rng.choice(size, round(rate * size), replace=False)] = True
    seen = wrong & (rng.random(size) < 0.5) if kind == "half seen" else wrong
    apart, prior = _SEPARATION[kind], max(rate, 0.002)
    scores = rng.normal(size=size) + apart * seen
    log_odds = apart * scores - apart**2 / 2 + math.log(prior / (1 - prior)) + _SHIFT.get(kind, 0.0)
    return rank(1 / (1 + np.exp(-log_odds)), wrong)


def rank(p: Floats, wrong: Bools) -> World:
    """Order labels by p."""
    order = np.argsort(-p, kind="stable")
    return World(wrong[order], int((p >= _FLAGGED).sum()), int((p >= _DOUBTFUL).sum()))


def verify(world: World, times: int, num_cards: int, rng: np.random.Generator) -> Iterator[tuple[Design, Verdicts]]:
    """Simulate verifications: other cards each time, and a person who knows."""
    design = make_design(len(world.wrong), world.num_flagged, world.num_doubtful, num_cards)
    for _ in range(times):
        wrong = [int(world.wrong[ranks].sum()) for ranks in draw_ranks(design, rng)]
        right = [cards - number for cards, number in zip(design.num_cards, wrong, strict=True)]
        yield design, Verdicts(wrong, right, [0] * len(wrong))


class Estimates:
    """Estimates by what they were made of: many verifications of one world come out alike."""

    def __init__(self) -> None:
        self._known: dict[Any, CheckedShare] = {}

    def find(self, design: Design, verdicts: Verdicts, count: int) -> CheckedShare:
        upto = design.edges.index(count)
        key = design.edges, tuple(verdicts.num_wrong[:upto]), count
        if key not in self._known:
            found = estimate(design, verdicts, count)
            assert found is not None
            self._known[key] = found
        return self._known[key]


def cover(worlds: list[World], times: int, rng: np.random.Generator) -> dict[str, Any]:
    """How often each interval holds, on some worlds together."""
    rows: dict[str, list[tuple[float, float, float, float, float]]] = {}
    for world in worlds:
        known, size = Estimates(), len(world.wrong)
        asked = {f"top {100 * share:g}%": math.ceil(share * size - 1e-9 * size) for share in TOPS}
        asked = {"all labels": size, **({"flagged": world.num_flagged} if world.num_flagged else {}), **asked}
        truths = {count: float(world.wrong[:count].mean()) for count in asked.values()}
        for design, verdicts in verify(world, times, 60, rng):
            for name, count in asked.items():
                found, true = known.find(design, verdicts, count), truths[count]
                ends = float(true < found.low - 1e-9), float(true > found.high + 1e-9)
                row = *ends, found.high - found.low, float(found.num_wrong), float(found.num_checked)
                rows.setdefault(name, []).append(row)
    return {name: _summarise(np.array(found)) for name, found in rows.items()}


def _summarise(rows: Floats) -> dict[str, float]:
    below, above, width, wrong, checked = rows.T
    return {
        "verifications": len(rows),
        "coverage": float(1 - (below + above).mean()),
        "true_below": float(below.mean()),
        "true_above": float(above.mean()),
        "median_width": float(np.median(width)),
        "errors_in_sample": float(wrong.mean()),
        "right_in_sample": float((checked - wrong).mean()),
    }


def judge(worlds: list[World], limit: float, cards: int, times: int, rng: np.random.Generator) -> dict[str, Any]:
    """How ``sgoif check`` ends: fine, exceeded, or unsure."""
    states = []
    for world in worlds:
        known = Estimates()
        for design, verdicts in verify(world, times, cards, rng):
            found = known.find(design, verdicts, design.num_examples)
            states.append("fine" if found.at_most <= limit else "exceeded" if found.low > limit else "unsure")
    return {"verifications": len(states), **{s: states.count(s) / len(states) for s in ("fine", "unsure", "exceeded")}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One group of verifications; what its part does not need stays None, and is not written."""

    part: Literal["coverage", "check", "tables"] = "coverage"
    kind: str | None = option(None, KINDS)
    rate: float | None = option(None, RATES)
    limit: float | None = None
    cards: int | None = None
    factor: float | None = None  # true rate, as a share of the limit
    cell: str | None = None
    times: int = 1_000  # verifications


def measure(setup: Setup) -> dict[str, Any]:
    part = {"coverage": _cover, "check": _judge, "tables": _cover_cell}[setup.part]
    return {"report": part(setup)}


def _cover(setup: Setup) -> dict[str, Any]:
    assert setup.kind is not None and setup.rate is not None
    rng = np.random.default_rng([1, KINDS.index(setup.kind), RATES.index(setup.rate)])
    worlds = [make_world(setup.kind, size, setup.rate, rng) for size in SIZES]
    return cover(worlds, max(setup.times // len(SIZES), 1), rng)


def _judge(setup: Setup) -> dict[str, Any]:
    assert setup.kind is not None and setup.limit is not None and setup.cards is not None and setup.factor is not None
    rng = np.random.default_rng([2, KINDS.index(setup.kind), round(1000 * setup.limit), setup.cards])
    sizes = [size for size in SIZES if size >= 1_000]  # of 200, 60 are nearly a third
    worlds = [make_world(setup.kind, size, setup.factor * setup.limit, rng) for size in sizes]
    return judge(worlds, setup.limit, setup.cards, max(setup.times // len(sizes), 1), rng)


def _cover_cell(setup: Setup) -> dict[str, Any]:
    """A development cell of the trust grid, ranked by ``sgoif scan``."""
    cell = next(cell for cell in DEVELOPMENT if cell.name == setup.cell)
    worlds = []
    for seed in (31, 32):
        drawn = draw(cell, seed)
        found = ours.find(drawn.rows, drawn.given, drawn.num_classes, seed)
        p = np.zeros(len(drawn.given)) if found.p is None else np.nan_to_num(found.p)
        world = rank(p, drawn.wrong)
        # label_score ranks where p is null
        worlds.append(World(drawn.wrong[np.argsort(-found.score, kind="stable")], world.num_flagged, 0))
    return cover(worlds, setup.times // 2, np.random.default_rng(3))


def _of(part: str) -> list[Run]:
    return [run for run in latest(EXPERIMENT.results) if run["settings"]["part"] == part]


def coverage_table() -> str:
    """Mean coverage over the kinds of rankings, the least, and the median width, by rate of errors and figure."""
    runs = _of("coverage")
    rows = []
    for rate in dict.fromkeys(run["settings"]["rate"] for run in runs):
        cells = []
        for name in FIGURES:
            found = [run["report"][name] for run in runs if run["settings"]["rate"] == rate and name in run["report"]]
            covers = [100 * item["coverage"] for item in found]
            width = 100 * float(np.median([item["median_width"] for item in found]))
            cells.append(f"{np.mean(covers):.0f} ({min(covers):.0f}), {width:.1f}")
        rows.append([f"{100 * rate:g}%", *cells])
    return table(["wrong labels", *FIGURES], rows)


def groups_table() -> str:
    """How many groups of 1,000 verifications hold in 85% or more, and which hold in more than 97%."""
    rows = []
    for name in FIGURES:
        found = [run["report"][name] for run in _of("coverage") if name in run["report"]]
        covers = [100 * item["coverage"] for item in found]
        held = sum(value >= 85 for value in covers)
        few = [item for item in found if item["coverage"] > 0.97]
        plenty = [item for item in few if min(item["errors_in_sample"], item["right_in_sample"]) >= 5]
        all_wrong = sum(item["errors_in_sample"] >= 5 for item in few)
        rows.append(
            [name, f"{held} of {len(found)}", f"{min(covers):.1f}%", str(len(few)), str(all_wrong), str(len(plenty))]
        )
    header = ["figure", "groups with 85% or more", "least", "above 97%"]
    return table([*header, "of these, 5 wrong labels or more in the sample", "and 5 right ones or more"], rows)


def cells_table() -> str:
    """Coverage and width on tables of the trust grid, as `sgoif scan` ranks them."""
    rows = []
    for run in _of("tables"):
        found = [run["report"].get(name) for name in FIGURES]
        cells = [
            "-" if item is None else f"{100 * item['coverage']:.0f}, {100 * item['median_width']:.1f}" for item in found
        ]
        rows.append([run["settings"]["cell"], *cells])
    return table(["cell", *FIGURES], rows)


def check_table() -> str:
    """How `sgoif check` ends by limit, number of checked labels and true rate, over the kinds of rankings."""
    runs = _of("check")
    rows = []
    for limit, cards in dict.fromkeys((run["settings"]["limit"], run["settings"]["cards"]) for run in runs):
        found: dict[float, list[Run]] = {run["settings"]["factor"]: [] for run in runs}
        for run in runs:
            if (run["settings"]["limit"], run["settings"]["cards"]) == (limit, cards):
                found[run["settings"]["factor"]].append(run["report"])
        fine = {factor: [100 * item["fine"] for item in items] for factor, items in found.items()}
        said = [f"{np.mean(fine[0.5]):.0f}% ({min(fine[0.5]):.0f}-{max(fine[0.5]):.0f})"]
        said += [f"{np.mean(fine[factor]):.1f}% ({max(fine[factor]):.0f})" for factor in (1.02, 1.5)]
        over = 100 * float(np.mean([item["exceeded"] for item in found[1.5]]))
        rows.append([f"{100 * limit:g}%", str(cards), *said, f"{over:.0f}%"])
    header = ["limit", "checked", "exit 0 at half the limit", "exit 0 just above it", "exit 0 at 1.5 times"]
    return table([*header, "exit 1 at 1.5 times"], rows)


EXPERIMENT = Experiment(
    name="verify",
    settings=Setup,
    run=measure,
    tables={
        "verify_coverage": coverage_table,
        "verify_groups": groups_table,
        "verify_tables": cells_table,
        "verify_check": check_table,
    },
    full=(
        {"part": "coverage", "kind": KINDS, "rate": RATES},
        *({"part": "check", "limit": x, "cards": n, "kind": KINDS, "factor": FACTORS} for x, n in LIMITS),
        {"part": "tables", "cell": [cell.name for cell in DEVELOPMENT if cell.data in TABLES]},
    ),
    unrecorded=("times",),
    sparse=True,
    describe=lambda row: str({k: v["coverage"] if isinstance(v, dict) else v for k, v in row["report"].items()}),
)
