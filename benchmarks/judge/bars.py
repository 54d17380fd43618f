"""The bars that were set for the judge, each met or missed with its figure, for every judge that was measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.judge.tables import BELOW, FEW_FLAGS, HOLDOUTS, JUDGES, Figures, clean, noisy, read_figures
from benchmarks.tables.rows import table

SHOWN = 3  # replays that are listed by name

Verdict = tuple[str, bool]  # figure, met
Bar = tuple[str, Callable[[Sequence[Figures]], Verdict | None]]  # what is asked; None: nothing to judge


def bars() -> str:
    """One row per bar, one column per judge that was measured."""
    figures = read_figures()
    judged = {judge: [item for item in figures if item.judge == judge] for judge in JUDGES}
    measured = {judge: found for judge, found in judged.items() if found}
    rows = [[asks, *(_say(bar(found)) for found in measured.values())] for asks, bar in BARS]
    return table(("asks", *(JUDGES[judge] for judge in measured)), rows)


def _say(verdict: Verdict | None) -> str:
    if verdict is None:
        return "not run"
    figure, is_met = verdict
    return f"{figure}: {'met' if is_met else '**missed**'}"


def _ahead(figures: Sequence[Figures]) -> Verdict | None:
    gains = [item.ap - item.free for item in noisy(figures)]
    return (f"{np.mean(gains):+.1f}", bool(np.mean(gains) >= 3)) if gains else None


def _none_below(figures: Sequence[Figures]) -> Verdict | None:
    gains = {item.cell.name: item.ap - item.free for item in noisy(figures)}
    below = {name: gain for name, gain in gains.items() if gain < -BELOW}
    return (_misses(below, len(gains), "{:+.1f}"), not below) if gains else None


def _misses(missed: dict[str, float], total: int, form: str) -> str:
    """How many of all miss a bar, the worst by name."""
    worst = sorted(missed, key=lambda name: missed[name])
    listed = ", ".join(f"{name} {form.format(missed[name])}" for name in worst[:SHOWN])
    more = f", and {len(worst) - SHOWN} more" if len(worst) > SHOWN else ""
    return f"{len(missed)} of {total}" + (f" ({listed}{more})" if missed else "")


def _share(hits: Sequence[bool], least: float, most: float = 1.0) -> Verdict | None:
    if not hits:
        return None
    return f"{sum(hits)} of {len(hits)}", least <= sum(hits) / len(hits) <= most


def _claims(holdout: str) -> Callable[[Sequence[Figures]], Verdict | None]:
    def judge(figures: Sequence[Figures]) -> Verdict | None:
        here = [item for item in noisy(figures) if item.cell.holdout == holdout]
        return _share([item.total is not None for item in here], 0.80)

    return judge


def _near(holdout: str) -> Callable[[Sequence[Figures]], Verdict | None]:
    def judge(figures: Sequence[Figures]) -> Verdict | None:
        here = [item for item in noisy(figures) if item.cell.holdout == holdout and item.total is not None]
        return _share([item.is_near for item in here], 0.90)

    return judge


def _quiet(figures: Sequence[Figures]) -> Verdict | None:
    return _share([item.claimed <= 0.5 for item in clean(figures)], 0.95)


def _flags_right(figures: Sequence[Figures]) -> Verdict | None:
    right = {item.cell.name: item.right for item in noisy(figures) if item.num_flags >= FEW_FLAGS}
    wrong = {name: share for name, share in right.items() if share < 70}
    return (_misses(wrong, len(right), "{:.0f}%"), not wrong) if right else None


def _found(figures: Sequence[Figures]) -> Verdict | None:
    found = [item.found for item in noisy(figures)]
    return (f"{np.mean(found):.0f}%", bool(np.mean(found) >= 62)) if found else None


def _hold(figures: Sequence[Figures]) -> Verdict | None:
    return _share([item.holds for item in figures if item.holds is not None], 0.85, 0.97)


BARS: Sequence[Bar] = (
    ("AP at least 3 above the best free signal, mean over replays with wrong labels", _ahead),
    (f"no such replay more than {BELOW} below it (replays that are)", _none_below),
    *((f"hold-out {HOLDOUTS[kind]}: a total in at least 80% of them", _claims(kind)) for kind in ("given", "trusted")),
    *((f"hold-out {HOLDOUTS[kind]}: 90% of the totals within 2 times", _near(kind)) for kind in ("given", "trusted")),
    ("clean labels: at most 0.5% claimed, or no total, in 95% of them", _quiet),
    (f"at least 70% of the flags right, wherever there are {FEW_FLAGS} (replays below)", _flags_right),
    ("at least 62% of the errors flagged, mean over replays with wrong labels", _found),
    ("85 to 97% of the ranges hold the truth", _hold),
)
