"""What the monitor costs under the governor, as the benchmark sees it."""

import pytest

from benchmarks import overhead


def test_the_clock_stands_still_in_bare_steps(monkeypatch):
    seconds = iter([10.0, 11.0, 15.0, 18.0])
    monkeypatch.setattr(overhead.time, "perf_counter", lambda: next(seconds))
    clock = overhead._PausedClock()
    assert clock.now() == 10.0
    with clock.pause():
        pass  # from 11 to 15
    assert clock.now() == 14.0


@pytest.mark.usefixtures("narrow_networks")
def test_a_governed_training_tells_its_cost_and_its_plan(monkeypatch):
    monkeypatch.setattr(overhead, "BATCH", 16)
    row = overhead.measure(overhead.Settings(part="governed", steps=6, promise=0.25))
    assert row["part"] == "governed" and row["promise"] == 0.25 and row["scored_share"] == 1.0
    assert row["told"] > 0 and row["plan"]["stride"] == 1 and row["ratio"] > 0.5
    assert "promise 0.25" in overhead.describe(row)
