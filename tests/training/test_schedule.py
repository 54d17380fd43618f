"""The plan and the governor that keeps its price under a promise."""

import sgoif
from tests.training.loops import PLAN


def test_the_governor_backs_off_and_says_so():
    from sgoif.training.schedule import Governor

    governor = Governor(PLAN, max_overhead=0.1, window=10)
    for step in range(40):
        governor.note({"scoring": 0.5}, 1.0)
        governor.decide(step)
    assert governor.plan.refresh_every > PLAN.refresh_every
    assert governor.changes[0]["overhead"] == 1.0
    fixed = Governor(PLAN, fixed=True, window=10)
    for step in range(40):
        fixed.note({"scoring": 0.5}, 1.0)
        fixed.decide(step)
    assert fixed.plan == PLAN
    assert Governor(sgoif.Plan()).overhead == 0.0
