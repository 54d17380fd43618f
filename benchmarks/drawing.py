"""Lines and bars as SVG, in a light and a dark form: the reader's colour scheme chooses.

Colours are names, defined for both forms in one style sheet inside the drawing. Each drawing has its own background, so
that it can be read wherever it is shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

__all__ = ["Bars", "Panel", "Point", "draw_bars", "draw_panels"]

Point = tuple[float, float]

LIGHT = {"paper": "#ffffff", "ink": "#24292f", "dim": "#6e7781", "line": "#d0d7de"}
LIGHT |= {"rust": "#b5532a", "blue": "#2a6f97", "green": "#4c7a34", "grey": "#8a8f98"}
DARK = {"paper": "#1e2129", "ink": "#e6e8eb", "dim": "#a9b0ba", "line": "#474c57"}
DARK |= {"rust": "#f0936a", "blue": "#74b9e0", "green": "#9ccc7c", "grey": "#8f96a1"}
_WIDTH, _HEIGHT, _LEFT = 300, 200, 40
_LETTER = 6.4  # pixels that a character takes at 12 px, about


@dataclass(frozen=True, slots=True)
class Panel:
    """Lines over one pair of axes; a line's name says its colour."""

    title: str
    lines: Sequence[tuple[str, Sequence[Point]]]
    across: Sequence[tuple[float, str]]  # places on the lower axis, and what is written there
    top: float  # of the left axis, which begins at 0; lines may rise above it
    has_ticks: bool = True

    @staticmethod
    def by_epoch(title: str, top: float, lines: Sequence[tuple[str, Sequence[float]]]) -> Panel:
        longest = max([2, *(len(values) for _, values in lines)])
        drawn = [(name, list(enumerate(values))) for name, values in lines]
        return Panel(title, drawn, [(epoch, str(epoch + 1)) for epoch in range(longest)], top)


@dataclass(frozen=True, slots=True)
class Bars:
    """Horizontal bars in groups; a bar's name says its colour, and its value is written beside it."""

    title: str
    groups: Sequence[tuple[str, Sequence[tuple[str, float]]]]  # name of a group; name and value of its bars
    first: float = 0.0  # where the axis begins
    last: float = 100.0
    digits: int = 0


def draw_panels(panels: Sequence[Panel], colours: Mapping[str, str]) -> str:
    """Draw panels side by side with one legend below."""
    drawn = [_draw_panel(panel, colours, x=place * (_WIDTH + 60)) for place, panel in enumerate(panels)]
    width, height = len(panels) * (_WIDTH + 60), _HEIGHT + 75
    return _wrap("".join(drawn) + _draw_legend(colours, _LEFT, _HEIGHT + 62), width, height)


def draw_bars(chart: Bars, colours: Mapping[str, str], width: int = 720) -> str:
    """Draw bars; with one bar in each group, the group's name says what it is and no legend is needed."""
    left = 26 + _LETTER * max(len(name) for name, _ in chart.groups)
    room = width - left - 60
    parts, y = [f'<text x="12" y="22" font-weight="600">{escape(chart.title)}</text>'], 40.0
    for name, bars in chart.groups:
        height = 18 * len(bars)
        parts.append(f'<text x="{left - 8:.0f}" y="{y + height / 2 + 4:.0f}" text-anchor="end">{escape(name)}</text>')
        for place, (what, value) in enumerate(bars):
            length = room * (value - chart.first) / (chart.last - chart.first)
            top = y + 18 * place
            parts.append(
                f'<rect x="{left:.0f}" y="{top + 1:.0f}" width="{length:.1f}" height="15" class="{colours[what]}"/>'
                f'<text x="{left + length + 6:.1f}" y="{top + 13:.0f}">{value:.{chart.digits}f}</text>'
            )
        y += height + (12 if len(bars) > 1 else 4)
    parts.append(f'<path d="M{left:.0f},34 V{y:.0f}" class="axis"/>')
    is_single = all(len(bars) == 1 for _, bars in chart.groups)
    if not is_single:
        parts.append(_draw_legend(colours, left, y + 20))
    return _wrap("".join(parts), width, int(y + (10 if is_single else 34)))


def _wrap(inside: str, width: int, height: int) -> str:
    """Make a whole drawing of its parts: size, style sheet, background."""

    def rules(form: Mapping[str, str]) -> str:
        named = "".join(
            f".{name}{{fill:{form[name]}}}.{name}-line{{stroke:{form[name]}}}"
            for name in form
            if name not in ("ink", "line")
        )
        return f"text{{fill:{form['ink']}}}.axis{{stroke:{form['line']}}}{named}"

    style = f"path,polyline{{fill:none}}{rules(LIGHT)}@media(prefers-color-scheme:dark){{{rules(DARK)}}}"
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    font = 'font-family="system-ui,sans-serif" font-size="12" style="max-width:100%;height:auto"'
    paper = f'<rect width="{width}" height="{height}" rx="6" class="paper"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}><style>{style}</style>{paper}{inside}</svg>\n'


def _draw_legend(colours: Mapping[str, str], x: float, y: float) -> str:
    parts = []
    for name, colour in colours.items():
        parts.append(
            f'<rect x="{x:.0f}" y="{y - 9:.0f}" width="10" height="10" class="{colour}"/>'
            f'<text x="{x + 15:.0f}" y="{y:.0f}">{escape(name)}</text>'
        )
        x += 38 + _LETTER * len(name)
    return "".join(parts)


def _draw_panel(panel: Panel, colours: Mapping[str, str], x: int) -> str:
    top = max([panel.top, *(y for _, line in panel.lines for _, y in line)])
    first, last = panel.across[0][0], panel.across[-1][0]

    def across(value: float) -> float:
        return _LEFT + _WIDTH * (value - first) / (last - first)

    def down(value: float) -> float:
        return 24 + _HEIGHT * (1 - value / top)

    drawn = "".join(
        f'<polyline class="{colours[name]}-line" stroke-width="1.5" '
        f'points="{" ".join(f"{across(at):.1f},{down(value):.1f}" for at, value in line)}"/>'
        for name, line in panel.lines
    )
    frame = f'<path d="M{_LEFT},24 V{24 + _HEIGHT} H{_LEFT + _WIDTH}" class="axis"/>'
    ticks = "".join(
        f'<text x="{across(value):.1f}" y="{_HEIGHT + 40}" text-anchor="middle">{text}</text>'
        for value, text in panel.across
    )
    if panel.has_ticks:
        ticks += "".join(
            f'<text x="{_LEFT - 6}" y="{4 + down(value):.1f}" text-anchor="end">{value:g}</text>'
            for value in np.linspace(0, panel.top, 5)
        )
    title = f'<text x="{_LEFT}" y="16" font-weight="600">{escape(panel.title)}</text>'
    return f'<g transform="translate({x},0)">{title}{frame}{ticks}{drawn}</g>'
