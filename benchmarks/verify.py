"""What checked labels are worth: ``python -m benchmarks.verify --save verify.jsonl``.

Verifications are simulated on rankings whose errors are known: made ones, where the ranking sees all errors well or
badly, half of them, or none, and says too much or too little; and tables of the trust grid as ``sgoif scan`` ranks them
(``--part tables``). Each group is 1,000 verifications, spread over sizes from 200 to 1,000,000 examples. Kept are the
coverage of every 90% interval, its width, and how ``sgoif check`` ends at rates below and above a limit.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.records import append_result, is_recorded
from benchmarks.trust import ours
from benchmarks.trust.cells import find_cells
from benchmarks.trust.draws import draw
from sgoif.evidence.checked import TOPS, CheckedShare, Design, Verdicts, draw_ranks, estimate, make_design

KINDS = ("good", "weak", "half seen", "unseen", "p too high", "p too low")
RATES = (0.0, 0.001, 0.005, 0.02, 0.05, 0.2, 0.4)
SIZES = (200, 1_000, 5_000, 100_000, 1_000_000)
LIMITS = ((0.02, 60), (0.05, 60), (0.1, 60), (0.2, 60), (0.05, 120), (0.02, 300))  # and cards
FACTORS = (0.5, 1.02, 1.5)  # true rate, as a share of the limit
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
    return {name: _told(np.array(found)) for name, found in rows.items()}


def _told(rows: Floats) -> dict[str, float]:
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


def made_groups(times: int) -> Iterator[tuple[dict[str, Any], Callable[[], dict[str, Any]]]]:
    """The groups of made rankings: settings, and what measures them."""
    for kind in KINDS:
        for rate in RATES:
            yield {"part": "coverage", "kind": kind, "rate": rate}, partial(_cover, kind, rate, times)
    for limit, cards in LIMITS:
        for kind in KINDS:
            for factor in FACTORS:
                settings = {"part": "check", "kind": kind, "limit": limit, "cards": cards, "factor": factor}
                yield settings, partial(_judge, settings, times)


def _cover(kind: str, rate: float, times: int) -> dict[str, Any]:
    rng = np.random.default_rng([1, KINDS.index(kind), RATES.index(rate)])
    return cover([make_world(kind, size, rate, rng) for size in SIZES], max(times // len(SIZES), 1), rng)


def _judge(settings: dict[str, Any], times: int) -> dict[str, Any]:
    limit, cards = settings["limit"], settings["cards"]
    rng = np.random.default_rng([2, KINDS.index(settings["kind"]), round(1000 * limit), cards])
    sizes = [size for size in SIZES if size >= 1_000]  # of 200, 60 are nearly a third
    rate = settings["factor"] * limit
    worlds = [make_world(settings["kind"], size, rate, rng) for size in sizes]
    return judge(worlds, limit, cards, max(times // len(sizes), 1), rng)


def table_groups(times: int) -> Iterator[tuple[dict[str, Any], Callable[[], dict[str, Any]]]]:
    """Development cells of the trust grid, ranked by ``sgoif scan``."""
    for cell in find_cells("development", TABLES):
        yield {"part": "tables", "cell": cell.name}, partial(_cover_cell, cell, times)


def _cover_cell(cell: Any, times: int) -> dict[str, Any]:
    worlds = []
    for seed in (31, 32):
        drawn = draw(cell, seed)
        found = ours.find(drawn.rows, drawn.given, drawn.num_classes, seed)
        p = np.zeros(len(drawn.given)) if found.p is None else np.nan_to_num(found.p)
        world = rank(p, drawn.wrong)
        # label_score ranks where p is null
        worlds.append(World(drawn.wrong[np.argsort(-found.score, kind="stable")], world.num_flagged, 0))
    return cover(worlds, times // 2, np.random.default_rng(3))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=["made", "tables"], default="made")
    parser.add_argument("--times", type=int, default=1_000, help="verifications of each group")
    parser.add_argument("--save", metavar="FILE")
    options = parser.parse_args()
    groups = made_groups if options.part == "made" else table_groups
    for settings, run in groups(options.times):
        if options.save and is_recorded(options.save, settings, 0):
            continue
        report = run()
        print(settings, {k: v["coverage"] if isinstance(v, dict) else v for k, v in report.items()}, flush=True)
        if options.save:
            append_result(options.save, {"benchmark": "verify", "settings": settings, "seed": 0, "report": report})


if __name__ == "__main__":
    main()
