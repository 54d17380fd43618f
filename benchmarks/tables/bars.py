"""The bars that were set before anything was measured, each met or missed with its figure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.faithfulness import faithfulness_bars
from benchmarks.frozen_noise import LABEL_FREE, PROBE, aps, frozen_places
from benchmarks.label_noise_tables import Place, best_free, name_of, places, values
from benchmarks.overhead import MEMORY_BAR, TIME_BAR, cost_rows, memory_ratio, time_ratio
from benchmarks.tables.rows import Run, latest, table

__all__ = ["bars"]

CLASSIC = ("pair-20", "sym-40", "worst")


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar; ``value`` meets it where it is not below ``least``."""

    name: str
    asks: str
    value: float
    least: float
    where: str  # the worst place, whose value it is
    unit: str = ""

    @property
    def row(self) -> list[str]:
        met = "met" if self.value >= self.least else "**missed**"
        return [self.name, self.asks, f"{self.value:.1f}{self.unit} ({self.where})", met]


def bars() -> str:
    """Every bar with its figure, the worst place deciding."""
    *convex, network = faithfulness_bars()
    found: list[Bar | list[str]] = [*convex, *_noise(), *_frozen(), *_cost(), *_calibration(), network]
    return table(("", "asks", "measured", ""), [bar if isinstance(bar, list) else bar.row for bar in found])


def _worst(name: str, asks: str, found: Sequence[tuple[float, str]], least: float, unit: str = "") -> Bar:
    value, where = min(found)
    return Bar(name, asks, value, least, where, unit)


def _said(place: Place) -> str:
    return f"{name_of(*place[:2])}, {place[2]}"


def _trained_rivals(group: str, setting: str, seeds: set[int]) -> dict[str, dict[int, float]]:
    """AP of the rivals that were run on these seeds, by name and seed."""
    found: dict[str, dict[int, float]] = {}
    for run in latest("rivals.jsonl"):
        settings = run["settings"]
        if run["group"] == group and (settings["dataset"], settings["setting"]) == ("cifar10", setting):
            found.setdefault(settings["rival"], {})[run["seed"]] = run["report"]["ap"]
    return {name: aps for name, aps in found.items() if seeds & aps.keys()}


def _ahead(runs: Sequence[Run], theirs: dict[int, float]) -> float:
    """Mean paired difference over the seeds that both have."""
    ours = {run["seed"]: ap for run, ap in zip(runs, values(runs, "p_mislabeled"), strict=True)}
    return float(np.mean([ours[seed] - theirs[seed] for seed in ours.keys() & theirs.keys()]))


def _label_free(place: Place, runs: Sequence[Run]) -> float:
    """How far ahead of the best rival that needs no clean label."""
    seeds = {run["seed"] for run in runs}
    _, free = best_free(runs)
    rivals = [dict(zip([run["seed"] for run in runs], free, strict=True))]
    if place[0] == "cifar10":
        rivals += _trained_rivals("label-free", place[1], seeds).values()
    return min(_ahead(runs, rival) for rival in rivals)


def _noise() -> Iterator[Bar]:
    found = {place: runs for place, runs in places() if not place[1].startswith("cl-70")}
    ahead = {place: _label_free(place, runs) for place, runs in found.items()}
    yield _worst(
        "B2",
        "training: AP not 1 below the best label-free rival, every setting",
        [(value, _said(place)) for place, value in ahead.items()],
        -1.0,
    )
    for holdout, least in (("trusted", 20.0), ("as-given", 15.0)):
        place = ("cifar10", "pair-20", holdout)
        if place in ahead:
            asks = f"training, {holdout}: pair-20 at least {least:.0f} above it"
            yield Bar("B2", asks, ahead[place], least, _said(place))
    trusted = ("cifar10", "pair-20", "trusted")
    rivals = _trained_rivals("trusted", "pair-20", {1, 2, 3})
    if trusted in found and rivals:
        gains = [(_ahead(found[trusted], aps), name) for name, aps in rivals.items()]
        yield _worst("B2", "training, trusted: pair-20 at least 4 above rivals with the same hold-out", gains, 4.0)
    precise = [
        (float(np.mean(values(runs, "p_mislabeled", "p@1%"))), _said(place))
        for place, runs in found.items()
        if place[0] == "cifar10" and place[1] in CLASSIC
    ]
    yield _worst("B2", "training: P@1% at least 95 on pair-20, sym-40, worst", precise, 95.0)


def _frozen() -> Iterator[Bar]:
    ahead: dict[tuple[str, ...], float] = {}
    for place, runs in frozen_places():
        rivals = (*LABEL_FREE, PROBE) if place[1] == "trusted" else LABEL_FREE
        best = max(np.mean(aps(runs, name)) for name in rivals if aps(runs, name))
        ahead[place] = float(np.mean(aps(runs, "p_mislabeled")) - best)
    if ahead:
        gains = [(value, ", ".join(place)) for place, value in ahead.items()]
        yield _worst("B2", "frozen features: AP not below the best rival with the same hold-out", gains, 0.0)
        if ("pair-20", "as-given") in ahead:
            asks = "frozen features, as given: pair-20 at least 15 above it"
            yield Bar("B2", asks, ahead["pair-20", "as-given"], 15.0, "pair-20, as-given")


def _cost() -> Iterator[list[str]]:
    times = [(time_ratio(run), f"{run['model']}, {run['classes']:,} classes") for run in cost_rows()]
    memory = [(ratio, f"{r['model']}, {r['classes']:,} classes") for r in cost_rows() if (ratio := memory_ratio(r))]
    for asks, bar, found in (("time of a step", TIME_BAR, times), ("peak memory", MEMORY_BAR, memory)):
        if not found:
            continue
        good = [where for value, where in found if value <= bar]
        value, where = max(found)
        verdict = "met" if len(good) == len(found) else f"met for {len(good)} of {len(found)}: **missed**"
        yield ["B3", f"{asks} at most {bar:.2f} of the bare one", f"{value:.3f} at most ({where})", verdict]


def _calibration() -> Iterator[Bar]:
    off: dict[str, list[tuple[float, str]]] = {"classic": [], "aggre": [], "above": []}
    for place, runs in places():
        for run in runs:
            for item in run["report"].get("precision") or ():
                gap = 100 * (item["value"] - item["true"])
                where = f"{_said(place)}, seed {run['seed']}, top {100 * item['top']:.0f}%"
                if place[2] == "as-given":
                    off["above"].append((-gap, where))
                elif place[0] == "cifar10" and place[1] in (*CLASSIC, "aggre"):
                    off["aggre" if place[1] == "aggre" else "classic"].append((-abs(gap), where))
    asks = (
        (
            "classic",
            "trusted: mean p of the first within 10 points of their precision, pair-20, sym-40, worst",
            -10.0,
        ),
        ("aggre", "trusted: within 15 points on aggre", -15.0),
        ("above", "as given: never more than 10 points above the truth", -10.0),
    )
    for key, text, least in asks:
        if off[key]:
            yield _worst("B4", text, off[key], least)
