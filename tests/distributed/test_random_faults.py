"""Random trouble inside the monitor of one rank of two: the training is that of bare ranks, and the run opens."""

import os
import tempfile

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sgoif
from tests.distributed.loops import Recipe, Trouble, trained
from tests.distributed.test_ddp import assert_trained_as_bare

TRACES = max(int(os.environ.get("SGOIF_TRACES", "100")) // 16, 2)


@settings(
    max_examples=min(TRACES, 200),
    deadline=None,
    database=None,
    derandomize="SGOIF_TRACE_SEED" not in os.environ,
    suppress_health_check=list(HealthCheck),
)
@given(
    kind=st.sampled_from(["raises", "forgets", "cannot_write"]),
    rank=st.integers(0, 1),
    step=st.integers(1, 9),
    accumulate=st.sampled_from([1, 2]),
)
def test_trouble_of_any_kind_at_any_step_of_one_rank(worlds, kind, rank, step, accumulate):
    recipe = Recipe(steps=9, accumulate=accumulate)
    with tempfile.TemporaryDirectory() as folder:
        settings = {"out": f"{folder}/run", "peer_timeout_s": 3}
        parts = worlds.run(2, trained, recipe, settings, Trouble(kind, rank=rank, step=step))
        assert_trained_as_bare(worlds, recipe, parts)
        run = sgoif.load(settings["out"])
        assert len(run.table["id"]) == len(run.label_issues())
        found = run.info["counters"]
        assert found["visits_offered"] == found["visits"] + found["visits_lost"] + found["visits_refused"], found
        whole = 9 * recipe.batch
        assert found["visits_offered"] in (whole, whole // 2)  # where the other could not be asked
        assert len(run.visits["id"]) + run.info["dropped_rows"] >= found["visits"]
