"""The derived multi-label set: tags say what is in a collage, and planted errors are as many as asked for."""

import numpy as np
import pytest

from benchmarks.collages import draw_collages, plant_errors

pytestmark = pytest.mark.data


def test_a_collage_is_tagged_with_what_is_in_it():
    found = draw_collages("fashion", "held", 400, seed=1)
    assert found.pixels.shape == (400, 28, 28, 1)
    cells = found.pixels.reshape(400, 2, 14, 2, 14).any((2, 4)).sum((1, 2))
    assert set(np.unique(cells)) == {1, 2, 3, 4}
    assert (found.tags.sum(1) <= cells).all() and (found.tags.sum(1) >= 1).all()
    again = draw_collages("fashion", "held", 400, seed=1)
    np.testing.assert_array_equal(found.pixels, again.pixels)


@pytest.mark.parametrize("noise", ["uniform", "swap"])
def test_as_many_tags_are_wrong_as_asked_for(noise):
    tags = draw_collages("fashion", "held", 2_000, seed=1).tags
    found = plant_errors(noise, "fashion", tags, 0.05, seed=1)
    asked = round(0.05 * tags.sum())
    missing, extra = (found.wrong & tags).sum(), (found.wrong & ~tags).sum()
    assert abs(missing - asked) < 0.1 * asked  # a swap may give a tag back that another one took away
    assert 0.6 * asked < extra <= asked
    np.testing.assert_array_equal(found.given != tags, found.wrong)
