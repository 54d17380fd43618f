"""What is reckoned for a large run stands on code that runs; tests/distributed compares declared with real ranks."""

from dataclasses import fields

import pytest

from benchmarks.experiment import cells
from benchmarks.scale import ranks
from benchmarks.scale.loop import Loop, Shape
from benchmarks.scale.plan import CASES, PLAN, Assumptions, Case, estimate, vit_large
from benchmarks.scale.ranks import exchanges_of
from sgoif.training.schedule import Plan

TINY = ranks.TINY
RATES = {
    "bytes_per_row": 80.0,
    "writer_mb": 500.0,
    "query_rows_per_s": 1e7,
    "merge_rows_per_s": 1e5,
    "bytes_per_example": 264.0,
    "scoring_over_bare": 0.96,
}


def total(exchanges):
    return sum(exchanges.bytes.values())


@pytest.mark.parametrize("size", [2, 600])  # where rows of a draw are gathered, and where they are summed
def test_the_functions_that_exchange_count_what_a_whole_training_does(size):
    found = exchanges_of(Plan(), TINY.width + 1, TINY.classes, TINY.batch, size)
    told = ranks.measure("declared", size)
    assert total(found) == pytest.approx(told["bytes_per_step"])
    assert found.count == told["exchanges_per_step"]


def test_what_a_rank_exchanges_does_not_grow_with_the_ranks():
    # from 64 ranks on as many scores are sent as ever; beyond it there is one count per rank and step, 4 bytes
    few, many = (exchanges_of(Plan(), 1025, 1000, 64, size) for size in (64, 4096))
    assert total(many) <= 1.1 * total(few)


def test_only_the_steps_that_do_something_are_in_its_median():
    loop = Loop(Shape(width=16, trunk=16, batch=8, pixels=8), plan=Plan(refresh_every=4, observe_every=2))
    loop.run(9)
    own = loop.own_seconds()
    assert set(own) == {"scoring", "curvature", "refresh"} and min(own.values()) > 0
    refreshed = [step for step, parts in enumerate(loop.timer.steps) if "refresh" in parts]
    assert refreshed == [0, 4, 8]


def test_the_large_network_is_what_its_formula_says():
    parameters, forward = vit_large(1000)
    blocks = 24 * (24 * 196 * 1024**2 + 4 * 196**2 * 1024)  # projections and attention, two operations each
    assert forward.flops == pytest.approx(blocks, rel=0.01)
    assert 3.0e8 < parameters < 3.1e8  # "307M" in its paper, which has a token and a layer more


def test_a_plan_follows_its_assumptions():
    slow, fast = (estimate(CASES[0], Assumptions(model_tflops=rate), RATES) for rate in (100, 400))
    assert slow["bare_ms"] == pytest.approx(4 * fast["bare_ms"])
    assert slow["exchange_ms"] == fast["exchange_ms"] and slow["share"] < fast["share"]
    more = estimate(Case(1024, 64, 1000), Assumptions(), RATES)
    assert more["exchange_ms"] > fast["exchange_ms"]  # a ring is as slow as it is long


def test_every_assumption_is_an_option():
    assert cells(PLAN, {}) == [Assumptions()]
    assert cells(PLAN, {"gpu_hour_usd": (1.0,)}) == [Assumptions(gpu_hour_usd=1.0)]
    assert all(item.metadata["help"] for item in fields(Assumptions))
