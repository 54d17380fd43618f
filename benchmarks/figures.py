"""Figures of the benchmark pages, as plain SVG, drawn from the raw results by ``python -m benchmarks tables``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from benchmarks.label_noise_tables import places
from benchmarks.records import read_results
from benchmarks.tables.pages import FOLDER as PAGES
from benchmarks.tables.rows import Run

FOLDER = PAGES / "figures"
SETTINGS = {"pair-20": "#b5532a", "sym-40": "#2a6f97", "worst": "#4c7a34"}
SIGNALS = {"harm": "#b5532a", "worst": "#2a6f97", "probe_margin": "#4c7a34", "margin": "#777777"}
LABELS = {"right label": "#2a6f97", "wrong label": "#b5532a"}
GATE = {"residual": "#b5532a", "confidence": "#2a6f97"}
BELIEFS = {"what was true": "#b5532a", "what was said": "#777777"}
_WIDTH, _HEIGHT, _LEFT = 300, 200, 40

Point = tuple[float, float]


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


def residual_and_confidence() -> str:
    """Relative residual and confidence against the epoch, one line per seed, trusted hold-out."""
    runs = [(name, run) for name in SETTINGS for run in _trusted(name)]
    panels = []
    for title, key in (("relative residual", "residual"), ("confidence", "confidence")):
        lines = [(name, run["report"][f"{key} by epoch"]) for name, run in runs]
        panels.append(Panel.by_epoch(f"{title} by epoch", 1.0, lines))
    return _drawing(panels, SETTINGS)


def ap_by_epoch() -> str:
    """What the visits so far find, by signal: one line per seed, trusted hold-out."""
    panels = []
    for name in ("pair-20", "worst"):
        known = [run["report"]["epochs"] for run in _trusted(name) if "epochs" in run["report"]]
        lines = [(signal, found[signal]["accumulated ap"]) for signal in SIGNALS for found in known]
        panels.append(Panel.by_epoch(f"{name}: AP of all visits so far, by epoch", 100.0, lines))
    return _drawing(panels, SIGNALS)


def concepts_of(key: str) -> str:
    """How loss or harm lies for right and for wrong labels, each side with an area of one."""
    found = _concepts()
    edges = np.array(found["edges"])
    middles = ((edges[1:] + edges[:-1]) / 2).tolist()
    shares = [np.array(found[key][name.split()[0]], float) for name in LABELS]
    lines = [(name, list(zip(middles, share / share.sum()))) for name, share in zip(LABELS, shares)]
    ticks = [(value, f"{value:g}") for value in (-8, -4, 0, 4, 8)]
    top = max(y for _, line in lines for _, y in line)
    panel = Panel(f"{key}, in robust standard deviations", lines, ticks, top, has_ticks=False)
    return _drawing([panel], LABELS)


def concepts_gate() -> str:
    """Residual and confidence against the step, mean over anchors."""
    found = _concepts()
    lines = [
        (name, [(10 * place, value) for place, value in enumerate(found[name]) if value is not None]) for name in GATE
    ]
    return _drawing([Panel("by step", lines, [(step, str(step)) for step in range(0, 801, 200)], 1.0)], GATE)


def concepts_calibration() -> str:
    """Share of truly wrong labels among those that got about the same probability."""
    beliefs = _concepts()["beliefs"]
    lines = [
        ("what was said", [(0.0, 0.0), (1.0, 1.0)]),
        ("what was true", [(item["said"], item["true"]) for item in beliefs]),
    ]
    ticks = [(value, f"{value:g}") for value in (0, 0.25, 0.5, 0.75, 1)]
    return _drawing([Panel("wrong labels, by p_mislabeled", lines, ticks, 1.0)], BELIEFS)


FIGURES: Mapping[str, Callable[[], str]] = {
    "residual.svg": residual_and_confidence,
    "ap_by_epoch.svg": ap_by_epoch,
    "concepts_loss.svg": partial(concepts_of, "loss"),
    "concepts_harm.svg": partial(concepts_of, "harm"),
    "concepts_gate.svg": concepts_gate,
    "concepts_calibration.svg": concepts_calibration,
}


def _concepts() -> Run:
    """The last training of ``benchmarks.concepts``."""
    return read_results("concepts.jsonl")[-1]


def _trusted(setting: str) -> list[Run]:
    return dict(places()).get(("cifar10", setting, "trusted"), [])


def _drawing(panels: Sequence[Panel], colours: Mapping[str, str]) -> str:
    drawn = [_panel(panel, colours, x=place * (_WIDTH + 60)) for place, panel in enumerate(panels)]
    legend = "".join(
        f'<text x="{_LEFT + 110 * i}" y="{_HEIGHT + 62}" fill="{colour}">— {name}</text>'
        for i, (name, colour) in enumerate(colours.items())
    )
    width = len(panels) * (_WIDTH + 60)
    size = f'width="{width}" height="{_HEIGHT + 75}" viewBox="0 0 {width} {_HEIGHT + 75}"'
    style = 'font-family="sans-serif" font-size="12" style="background:white;max-width:100%;height:auto"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{"".join(drawn)}{legend}</svg>\n'


def _panel(panel: Panel, colours: Mapping[str, str], x: int) -> str:
    top = max([panel.top, *(y for _, line in panel.lines for _, y in line)])
    first, last = panel.across[0][0], panel.across[-1][0]

    def across(value: float) -> float:
        return _LEFT + _WIDTH * (value - first) / (last - first)

    def down(value: float) -> float:
        return 20 + _HEIGHT * (1 - value / top)

    drawn = "".join(
        f'<polyline fill="none" stroke="{colours[name]}" stroke-width="1.5" '
        f'points="{" ".join(f"{across(at):.1f},{down(value):.1f}" for at, value in line)}"/>'
        for name, line in panel.lines
    )
    frame = f'<path d="M{_LEFT},20 V{20 + _HEIGHT} H{_LEFT + _WIDTH}" fill="none" stroke="#555"/>'
    ticks = "".join(
        f'<text x="{across(value):.1f}" y="{_HEIGHT + 36}" text-anchor="middle">{text}</text>'
        for value, text in panel.across
    )
    if panel.has_ticks:
        ticks += "".join(
            f'<text x="{_LEFT - 6}" y="{4 + down(value):.1f}" text-anchor="end">{value:g}</text>'
            for value in np.linspace(0, panel.top, 5)
        )
    return f'<g transform="translate({x},0)"><text x="{_LEFT}" y="12">{panel.title}</text>{frame}{ticks}{drawn}</g>'
