"""Figures of the benchmark pages, as plain SVG: ``python -m benchmarks.figures`` draws them from the raw results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from benchmarks.tables.pages import FOLDER as PAGES
from benchmarks.tables.rows import Run
from benchmarks.tables.watched import places

FOLDER = PAGES / "figures"
SETTINGS = {"pair-20": "#b5532a", "sym-40": "#2a6f97", "worst": "#4c7a34"}
SIGNALS = {"harm": "#b5532a", "worst": "#2a6f97", "probe_margin": "#4c7a34", "margin": "#777777"}
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 300, 200, 40, 30

Line = tuple[str, Sequence[float]]  # its name, which says its colour, and its values


def residual_and_confidence() -> str:
    """Relative residual and confidence against the epoch, one line per seed, trusted hold-out."""
    runs = [(name, run) for name in SETTINGS for run in _trusted(name)]
    panels = []
    for title, key in (("relative residual", "residual"), ("confidence", "confidence")):
        lines = [(name, run["report"][f"{key} by epoch"]) for name, run in runs]
        panels.append((f"{title} by epoch", 1.0, lines))
    return _drawing(panels, SETTINGS)


def ap_by_epoch() -> str:
    """What the visits so far find, by signal: one line per seed, trusted hold-out."""
    panels = []
    for name in ("pair-20", "worst"):
        known = [run["report"]["epochs"] for run in _trusted(name) if "epochs" in run["report"]]
        lines = [(signal, found[signal]["accumulated ap"]) for signal in SIGNALS for found in known]
        panels.append((f"{name}: AP of all visits so far, by epoch", 100.0, lines))
    return _drawing(panels, SIGNALS)


FIGURES: Mapping[str, Callable[[], str]] = {
    "residual.svg": residual_and_confidence,
    "ap_by_epoch.svg": ap_by_epoch,
}


def _trusted(setting: str) -> list[Run]:
    return dict(places()).get(("cifar10", setting, "trusted"), [])


def _drawing(panels: Sequence[tuple[str, float, Sequence[Line]]], colours: Mapping[str, str]) -> str:
    drawn = [_panel(*panel, colours, x=place * (_WIDTH + 60)) for place, panel in enumerate(panels)]
    legend = "".join(
        f'<text x="{_LEFT + 110 * i}" y="{_HEIGHT + 62}" fill="{colour}">— {name}</text>'
        for i, (name, colour) in enumerate(colours.items())
    )
    size = f'width="{len(panels) * (_WIDTH + 60)}" height="{_HEIGHT + 75}"'
    style = 'font-family="sans-serif" font-size="12" style="background:white"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{"".join(drawn)}{legend}</svg>\n'


def _panel(title: str, unit: float, lines: Sequence[Line], colours: Mapping[str, str], x: int) -> str:
    top = max([unit, *(max(values) for _, values in lines)])
    longest = max([2, *(len(values) for _, values in lines)])

    def point(epoch: int, value: float) -> str:
        across = _LEFT + _WIDTH * epoch / (longest - 1)
        return f"{across:.1f},{20 + _HEIGHT * (1 - value / top):.1f}"

    drawn = "".join(
        f'<polyline fill="none" stroke="{colours[name]}" stroke-width="1.5" '
        f'points="{" ".join(point(epoch, value) for epoch, value in enumerate(values))}"/>'
        for name, values in lines
    )
    frame = f'<path d="M{_LEFT},20 V{20 + _HEIGHT} H{_LEFT + _WIDTH}" fill="none" stroke="#555"/>'
    ticks = "".join(
        f'<text x="{_LEFT - 6}" y="{24 + _HEIGHT * (1 - value / top):.1f}" text-anchor="end">{value:g}</text>'
        for value in np.linspace(0, unit, 5)
    ) + "".join(
        f'<text x="{point(epoch, 0).partition(",")[0]}" y="{_HEIGHT + 36}" text-anchor="middle">{epoch + 1}</text>'
        for epoch in range(longest)
    )
    return f'<g transform="translate({x},0)"><text x="{_LEFT}" y="12">{title}</text>{frame}{ticks}{drawn}</g>'


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, draw in FIGURES.items():
        (FOLDER / name).write_text(draw())


if __name__ == "__main__":
    main()
