"""Charts have a light and a dark form, and lengths that say what the numbers say."""

import re
from xml.etree import ElementTree

import pytest

from benchmarks import figures
from benchmarks.drawing import Bars, draw_bars

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


@pytest.mark.parametrize("name", figures.FIGURES)
def test_a_figure_has_no_colour_outside_its_style_sheet(name):
    drawing = (figures.FOLDER / name).read_text()
    assert "prefers-color-scheme:dark" in drawing and "#" not in drawing.split("</style>")[1]
