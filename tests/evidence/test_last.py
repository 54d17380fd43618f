"""The last prediction of each example: of its last visit that can be used."""

import numpy as np

from sgoif.evidence import LAST_COLUMNS, LastPredictions


def test_a_later_prediction_replaces_an_earlier_and_what_cannot_be_used_replaces_none():
    last = LastPredictions()
    last.keep([3, 0, 3], [0.5, 0.1, 0.6], [1.0, -2.0, 3.0], [4, 5, 6])  # of the same row the later one
    last.keep([3, 0, 1], [0.9, np.nan, 0.2], [9.0, 9.0, np.nan], [9, 9, 9], usable=[False, True, True])
    found = last.columns(5)
    assert tuple(found) == LAST_COLUMNS
    assert [found[name].dtype for name in LAST_COLUMNS] == [np.float32, np.float32, np.int32]
    assert sum(found[name].itemsize for name in LAST_COLUMNS) == 12
    nan = np.nan
    np.testing.assert_array_equal(found["p_given_last"], np.float32([0.1, nan, nan, 0.6, nan]))
    np.testing.assert_array_equal(found["margin_last"], np.float32([-2, nan, nan, 3, nan]))
    assert found["runner_up_last"].tolist() == [5, -1, -1, 6, -1]


def test_a_restart_goes_on_where_it_was():
    first, second = LastPredictions(), LastPredictions()
    first.keep([1], [0.5], [1.0], [2])
    second.load_state_dict(first.state_dict(2))
    second.keep([4], [0.25], [0.5], [3])
    assert second.columns(5)["runner_up_last"].tolist() == [-1, 2, -1, -1, 3]
    assert first.columns(2)["runner_up_last"].tolist() == [-1, 2]
