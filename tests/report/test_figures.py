from __future__ import annotations

from xml.etree import ElementTree

import numpy as np

from sgoif.report.figures import bars, curve


def test_bars_stand_in_proportion_to_roots():
    rects = ElementTree.fromstring(bars([4, 1, 0], title="t", unit="u", first=0, last=1)).findall("rect")
    heights = [float(rect.get("height")) for rect in rects]
    np.testing.assert_allclose(heights, [heights[0], heights[0] / 2, 0], atol=0.1)


def test_curves_pass_over_what_is_not_known():
    x = np.arange(4.0)
    svg = curve(x, [("a", np.array([0.0, np.nan, 0.5, 1.0]))], title="t", top=1.0)
    assert len(ElementTree.fromstring(svg).find("polyline").get("points").split()) == 3
