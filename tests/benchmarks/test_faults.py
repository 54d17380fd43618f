"""The table of faults, in little: ranks killed under torchrun."""

import pytest

from benchmarks.faults.ranks import kill_ranks

pytestmark = pytest.mark.data


@pytest.mark.slow  # a minute of starting processes; tests/distributed and tests/store kill and resume in seconds
def test_a_rank_killed_in_mid_step_and_in_close(tmp_path):
    (row,) = kill_ranks(tmp_path, times=2, steps=60)
    assert row.tried == 2 and row.met, row
