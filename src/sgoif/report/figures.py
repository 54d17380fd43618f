"""Figures as SVG, written by hand: they scale, follow the page's colours, and every number in them is text."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

from sgoif.wording import count

__all__ = ["bars", "curve"]

_LETTER = 6.4  # pixels that a letter of the figures' text takes, about


def bars(counts: Sequence[float], *, title: str, unit: str, first: float, last: float) -> str:
    """A histogram over equal bins between two values; heights are square roots, so that few beside many are seen."""
    width, height, left, bottom = 460, 190, 46, 34
    tall = np.sqrt(np.maximum(np.asarray(counts, dtype=np.float64), 0))
    most = max(float(tall.max(initial=0)), 1e-9)
    room, step = height - bottom - 16, (width - left - 10) / max(len(counts), 1)
    parts = []
    for i, (number, size) in enumerate(zip(counts, tall)):
        high = room * float(size) / most
        low_edge, high_edge = (first + (last - first) * (i + end) / len(counts) for end in (0, 1))
        parts.append(
            f'<rect class="bar" x="{left + i * step + 1:.1f}" y="{height - bottom - high:.1f}" '
            f'width="{max(step - 2, 1):.1f}" height="{high:.1f}"><title>{low_edge:.2f} to {high_edge:.2f}: '
            f"{escape(count(number, unit))}</title></rect>"
        )
    parts += [f'<text x="{left - 6}" y="26" text-anchor="end">{max(counts, default=0):,.0f}</text>']
    parts += _axis(width, height, left, bottom, f"{first:g}", f"{(first + last) / 2:g}", f"{last:g}")
    return _drawing(width, height, title, parts)


def curve(
    x: NDArray[np.float64],
    lines: Sequence[tuple[str, NDArray[np.float64]]],
    *,
    title: str,
    top: float | None = None,
    band: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None,
    percent: bool = False,
) -> str:
    """Lines over a common axis, told apart by their dashes and names; a band behind them where there is one.

    ``top`` is the largest value shown, ``band`` has lower and upper values, and a screen reader reads the title.
    """
    width, height, left, bottom = 460, 190, 46, 34
    highest = top or max([1e-9, *(float(np.nanmax(values, initial=0)) for _, values in lines)])
    across = (width - left - 10) / max(float(x[-1] - x[0]), 1e-9)

    def point(place: float, value: float) -> str:
        up = (height - bottom - 16) * min(max(value, 0.0), highest) / highest
        return f"{left + (place - float(x[0])) * across:.1f},{height - bottom - up:.1f}"

    parts = []
    if band is not None:
        there = [point(float(a), float(b)) for a, b in zip(x, band[1]) if np.isfinite(b)]
        back = [point(float(a), float(b)) for a, b in zip(x[::-1], band[0][::-1]) if np.isfinite(b)]
        parts.append(f'<polygon class="band" points="{" ".join(there + back)}"/>')
    for number, (name, values) in enumerate(lines):
        points = " ".join(point(float(a), float(b)) for a, b in zip(x, values) if np.isfinite(b))
        parts.append(f'<polyline class="line line-{number}" points="{points}"/>')
        start = left + 8 + sum(int(len(other) * _LETTER) + 44 for other, _ in lines[:number])
        parts.append(f'<line class="line line-{number}" x1="{start}" x2="{start + 22}" y1="8" y2="8"/>')
        parts.append(f'<text x="{start + 27}" y="12">{escape(name)}</text>')
    shown = f"{100 * highest:.0f}%" if percent else f"{highest:.2g}"
    parts.append(f'<text x="{left - 6}" y="26" text-anchor="end">{shown}</text>')
    ends = [f"{value:,.0f}" for value in (x[0], (x[0] + x[-1]) / 2, x[-1])]
    parts += _axis(width, height, left, bottom, *ends)
    return _drawing(width, height, title, parts)


def _axis(width: int, height: int, left: int, bottom: int, *marks: str) -> list[str]:
    floor = height - bottom
    parts = [f'<line class="axis" x1="{left}" x2="{width - 10}" y1="{floor}" y2="{floor}"/>']
    parts.append(f'<text x="{left - 6}" y="{floor + 4}" text-anchor="end">0</text>')
    anchors = ("start", "middle", "end")
    places = (left, (left + width - 10) / 2, width - 10)
    for text, anchor, place in zip(marks, anchors, places):
        parts.append(f'<text x="{place:.0f}" y="{floor + 16}" text-anchor="{anchor}">{escape(text)}</text>')
    return parts


def _drawing(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg class="figure" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" role="img" '
        f'aria-label="{escape(title)}"><title>{escape(title)}</title>{"".join(parts)}</svg>'
    )
