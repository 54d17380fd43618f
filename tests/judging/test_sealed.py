"""A fitted judge as arrays and JSON: what comes back judges to the bit as it did."""

import json

import numpy as np
import pytest

from sgoif.judging.judge import fit_judge
from sgoif.judging.sealed import judge_from_plain, judge_to_plain
from tests.judging.made import make

HELD = make(800, seed=5)
WEAK = {"apart": 1.5, "rate": 0.02, "pairs": True}
CASES = {
    "counted": lambda made: made.observations(),
    "spread": lambda made: made.observations(),
    "clean": lambda made: made.observations(),
    "learnt by heart": lambda made: made.trained(HELD.heldout(), raised=9.0, blur=1.0),
    "surer": lambda made: made.trained(HELD.heldout(), raised=2.0),
    "trusted": lambda made: made.trained(HELD.heldout(trusted=True), raised=0.0),
}


@pytest.mark.parametrize("case", CASES)
def test_a_judge_comes_back_to_the_bit(case):
    made = make(**({"spread": WEAK, "clean": {"rate": 0.0}}.get(case, {})))
    seen = CASES[case](made)
    judge = fit_judge(seen)
    arrays, document = judge_to_plain(judge)
    again = judge_from_plain(arrays, json.loads(json.dumps(document)))
    assert all(isinstance(values, np.ndarray) for values in arrays.values())
    assert sum(values.nbytes for values in arrays.values()) < 10_000  # none of its 3,000 examples
    for mine, expected in zip(again.judge(seen), judge.judge(seen), strict=True):
        np.testing.assert_array_equal(mine, expected)
    for mine, expected in zip(again.judge_unseen(HELD.heldout()), judge.judge_unseen(HELD.heldout()), strict=True):
        np.testing.assert_array_equal(mine, expected)
    assert again.facts() == judge.facts() and again.competence == judge.competence
    assert (again.kind, again.no_p_reason, again.is_by_order) == (judge.kind, judge.no_p_reason, judge.is_by_order)
    np.testing.assert_array_equal(again.transition, judge.transition)
    once, twice = judge_to_plain(judge), judge_to_plain(again)
    assert once[1] == twice[1] and once[0].keys() == twice[0].keys()
    assert {"counted": "counted", "spread": "spread", "clean": "clean"}.get(case, judge.kind) == judge.kind
