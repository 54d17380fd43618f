"""What the monitor costs under the governor, as the benchmark sees it."""

from benchmarks import overhead


def test_the_clock_stands_still_in_bare_steps(monkeypatch):
    seconds = iter([10.0, 11.0, 15.0, 18.0])
    monkeypatch.setattr(overhead.time, "perf_counter", lambda: next(seconds))
    clock = overhead._PausedClock()
    assert clock.now() == 10.0
    with clock.pause():
        pass  # from 11 to 15
    assert clock.now() == 14.0
