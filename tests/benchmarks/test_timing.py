from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from benchmarks import records, timing


class Machine:
    """A clock that the variants move, and that runs ever slower."""

    def __init__(self, drift):
        self.now, self.drift, self.calls = 0.0, drift, []

    def variant(self, name, cost):
        def step():
            self.calls.append(name)
            self.now += cost * (1 + self.drift * len(self.calls))

        return step


@pytest.mark.parametrize(("turn", "calls"), [(None, "aaaabbbbbbbbaaaa"), (2, "aabbbbaa" * 2)])
def test_blocks_go_forward_and_back_and_may_be_cut_into_turns(turn, calls):
    machine = Machine(0.0)
    variants = {name: machine.variant(name, cost) for name, cost in (("a", 1.0), ("b", 2.0))}
    timings = timing.alternate(variants, blocks=2, steps_per_block=4, warmup=0, clock=lambda: machine.now, turn=turn)
    assert "".join(machine.calls) == calls
    assert timings.seconds.tolist() == [[1.0, 2.0]]


def test_a_linear_drift_cancels():
    # Two variants of equal cost: one block each, always in the same order, would put the second 10% and more behind.
    machine = Machine(0.1)
    variants = {"bare": machine.variant("bare", 1.0), "same": machine.variant("same", 1.0)}
    timings = timing.alternate(variants, blocks=4, steps_per_block=5, warmup=2, clock=lambda: machine.now)
    ratio = timings.ratio("same")
    assert (ratio.low, ratio.value, ratio.high) == pytest.approx((1, 1, 1))


def test_ratios_pair_within_rounds():
    seconds = np.array([[1.0, 1.1], [5.0, 5.5], [2.0, 2.2], [3.0, 9.0]])  # the machine's speed varies; one outlier
    timings = timing.Timings(("bare", "watched"), seconds)
    assert timings.ratio("watched").value == pytest.approx(1.1)
    assert timings.median_s("bare") == 2.5
    assert timings.summary()["bare"]["ratio"] == 1.0
    assert str(timings.ratio("bare")) == "1.000x [1.000, 1.000]"


@pytest.mark.parametrize(
    "arguments", [{"blocks": 3}, {"blocks": 0}, {"steps_per_block": 0}, {"steps_per_block": 4, "turn": 3}]
)
def test_what_cannot_be_timed_is_refused(arguments):
    with pytest.raises(ValueError):
        timing.alternate({"a": lambda: None}, **arguments)


def allocate(mb):
    return np.ones(mb * 2**17).sum()


def test_peak_memory_is_that_of_the_probe_and_not_of_this_process(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    ballast = np.ones(64 * 2**20 // 8 * 4)  # 256 MiB here: with plain ru_maxrss the probe would read 0
    assert ballast.sum() > 0
    assert timing.raised_peak_mb(allocate, 40) == pytest.approx(40, abs=8)


def test_results_are_lines_with_their_circumstances(tmp_path):
    path = tmp_path / "some" / "results.jsonl"
    for seed in (1, 2):
        records.append_result(path, {"settings": {"noise": "pair-20"}, "seed": seed, "ap": np.float32(0.5)})
    lines = records.read_results(path)
    assert [line["seed"] for line in lines] == [1, 2]
    assert {"commit", "host", "time", "settings", "ap"} <= lines[0].keys()
    assert lines[0]["host"]["threads"] == 1
    assert lines[0]["host"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert "/" not in json.dumps({k: v for k, v in lines[0]["host"].items() if k != "cpu"})


def test_bad_results_are_refused(tmp_path):
    known = {"settings": {}, "seed": 0}
    for record, message in (
        ({"settings": {}}, "needs seed"),
        ({**known, "host": "mine"}, "host is filled in"),
        ({**known, "ap": float("nan")}, "JSON"),
    ):
        with pytest.raises(ValueError, match=message):
            records.append_result(tmp_path / "results.jsonl", record)
    assert not (tmp_path / "results.jsonl").exists()
