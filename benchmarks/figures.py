"""Figures of the benchmarks page, as plain SVG: ``python -m benchmarks.figures`` draws them from the raw results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.records import read_results

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "figures"
_COLOURS = {"pair-20": "#b5532a", "sym-40": "#2a6f97", "worst": "#4c7a34"}
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 300, 200, 40, 30


def residual_and_confidence() -> str:
    """Relative residual and confidence against the epoch, one line per seed, trusted hold-out."""
    runs = [run for run in read_results("label_noise_reported.jsonl") if run["settings"]["holdout"] == "trusted"]
    runs = [run for run in runs if run["settings"]["setting"] in _COLOURS and run["settings"]["dataset"] == "cifar10"]
    panels = []
    for place, (title, key) in enumerate((("relative residual", "residual"), ("confidence", "confidence"))):
        lines = [(run["settings"]["setting"], run["report"][f"{key} by epoch"]) for run in runs]
        panels.append(_panel(title, lines, x=place * (_WIDTH + 60)))
    legend = "".join(
        f'<text x="{_LEFT + 90 * i}" y="{_HEIGHT + 62}" fill="{colour}">— {name}</text>'
        for i, (name, colour) in enumerate(_COLOURS.items())
    )
    size = f'width="{2 * _WIDTH + 120}" height="{_HEIGHT + 75}"'
    style = 'font-family="sans-serif" font-size="12" style="background:white"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{"".join(panels)}{legend}</svg>\n'


def _panel(title: str, lines: Sequence[tuple[str, Sequence[float]]], x: int) -> str:
    top = max(1.0, *(max(values) for _, values in lines))
    longest = max(len(values) for _, values in lines)

    def point(epoch: int, value: float) -> str:
        across = _LEFT + _WIDTH * epoch / max(longest - 1, 1)
        return f"{across:.1f},{20 + _HEIGHT * (1 - value / top):.1f}"

    drawn = "".join(
        f'<polyline fill="none" stroke="{_COLOURS[name]}" stroke-width="1.5" '
        f'points="{" ".join(point(epoch, value) for epoch, value in enumerate(values))}"/>'
        for name, values in lines
    )
    frame = f'<path d="M{_LEFT},20 V{20 + _HEIGHT} H{_LEFT + _WIDTH}" fill="none" stroke="#555"/>'
    ticks = "".join(
        f'<text x="{_LEFT - 6}" y="{24 + _HEIGHT * (1 - value / top):.1f}" text-anchor="end">{value:g}</text>'
        for value in np.linspace(0, 1, 5)
    ) + "".join(
        f'<text x="{point(epoch, 0).partition(",")[0]}" y="{_HEIGHT + 36}" text-anchor="middle">{epoch + 1}</text>'
        for epoch in range(longest)
    )
    return f'<g transform="translate({x},0)"><text x="{_LEFT}" y="12">{title} by epoch</text>{frame}{ticks}{drawn}</g>'


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "residual.svg").write_text(residual_and_confidence())


if __name__ == "__main__":
    main()
