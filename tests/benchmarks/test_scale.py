"""What is reckoned for a large run stands on code that runs; tests/distributed compares declared with real ranks."""

import pytest

from benchmarks.scale import ranks
from benchmarks.scale.plan import CASES, Assumptions, Case, estimate
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


def test_a_plan_follows_its_assumptions():
    slow, fast = (estimate(CASES[0], Assumptions(model_tflops=rate), RATES) for rate in (100, 400))
    assert slow["bare_ms"] == pytest.approx(4 * fast["bare_ms"])
    assert slow["exchange_ms"] == fast["exchange_ms"] and slow["share"] < fast["share"]
    more = estimate(Case(1024, 64, 1000), Assumptions(), RATES)
    assert more["exchange_ms"] > fast["exchange_ms"]  # a ring is as slow as it is long
