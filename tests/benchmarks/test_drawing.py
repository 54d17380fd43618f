"""Charts have a light and a dark form, and lengths that say what the numbers say."""

import re
from xml.etree import ElementTree

import pytest

from benchmarks import figures
from benchmarks.drawing import DARK, LIGHT, Bars, Panel, draw_bars, draw_panels

COLOURS = {"ours": "rust", "a < b": "grey"}
CHART = Bars("x & y", [("first", [("ours", 80.0), ("a < b", 20.0)]), ("second", [("ours", 40.0), ("a < b", 10.0)])])


def widths(drawing):
    return [float(value) for value in re.findall(r'width="([\d.]+)" height="15"', drawing)]


def test_bars_are_as_long_as_their_values():
    ours, theirs, *rest = widths(draw_bars(CHART, COLOURS))
    assert ours / theirs == pytest.approx(4, rel=0.01) and rest == pytest.approx([ours / 2, theirs / 2], rel=0.01)


def test_names_are_escaped_and_the_drawing_is_xml():
    root = ElementTree.fromstring(draw_bars(CHART, COLOURS))
    texts = [item.text for item in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "x & y" in texts and "a < b" in texts and "80" in texts


def test_single_bars_have_no_legend():
    chart = Bars("one", [("first", [("ours", 80.0)])])
    assert draw_bars(chart, {"ours": "rust"}).count("ours") == 0


def test_every_colour_has_a_dark_form():
    assert LIGHT.keys() == DARK.keys()
    panel = Panel("lines", [("ours", [(0.0, 0.0), (1.0, 1.0)])], [(0.0, "0"), (1.0, "1")], 1.0)
    for drawing in (draw_bars(CHART, COLOURS), draw_panels([panel], {"ours": "blue"})):
        light, dark = drawing.split("@media(prefers-color-scheme:dark)")
        for name in ("rust", "blue", "grey"):
            assert f".{name}{{fill:{LIGHT[name]}}}" in light and f".{name}{{fill:{DARK[name]}}}" in dark


@pytest.mark.parametrize("name", figures.FIGURES)
def test_a_figure_has_no_colour_outside_its_style_sheet(name):
    drawing = (figures.FOLDER / name).read_text()
    assert "prefers-color-scheme:dark" in drawing and "#" not in drawing.split("</style>")[1]
