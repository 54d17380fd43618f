"""Curvature that waits for the next refresh: what is absorbed then is what the batches showed one by one."""

import pytest
import torch

from sgoif.curvature import create, reduce_statistics
from sgoif.records import BlockShape, GradientRows
from sgoif.training.observed_rows import ObservedRows

SHAPES = {"fc": BlockShape(1, 3, 5, True)}
F64 = {"dtype": torch.float64}
KINDS = ("kfac", "diagonal", "fisher", "lowrank")


def batch(seed, count=7, positions=1):
    generator = torch.Generator().manual_seed(seed)
    shape = SHAPES["fc"]
    return GradientRows(
        "fc",
        torch.randn(count, 1, shape.inputs, positions, generator=generator, **F64),
        torch.randn(count, 1, shape.outputs, positions, generator=generator, **F64),
    )


def observe(batches, steps=None):
    kept = ObservedRows()
    for rows in batches:
        kept.add([rows])
        if steps is None:
            kept.end_step()
    return kept


@pytest.mark.parametrize("name", KINDS)
def test_several_batches_are_measured_as_their_union(name):
    curvature = create(name, SHAPES, **F64)
    batches = [batch(0), batch(1, count=4), batch(2, positions=3)]
    found = observe(batches).measure(curvature)
    expected = reduce_statistics([curvature.measure([rows]) for rows in batches])
    once, apart = (create(name, SHAPES, **F64) for _ in range(2))
    once.absorb(found)
    apart.absorb(expected)
    torch.testing.assert_close(once.operator().to_dense(), apart.operator().to_dense())


def test_observations_taken_together_push_out_as_much_as_one_by_one():
    """Of what was known before, the same share is left; the new ones then count alike."""
    together, apart = (create("kfac", SHAPES, decay=0.8, **F64) for _ in range(2))
    for curvature in (together, apart):
        curvature.observe([batch(0)])
    for _ in range(3):
        apart.observe([batch(1)])
    kept = observe([batch(1)] * 3)
    assert kept.num_steps == 3
    together.absorb(kept.measure(together), kept.num_steps)
    torch.testing.assert_close(together.operator().to_dense(), apart.operator().to_dense())
    assert together.counters.observations == apart.counters.observations == 4


def test_micro_batches_of_a_step_are_one_observation():
    kept = observe([batch(0), batch(1)], steps="one")
    assert kept.num_steps == 1
    kept.end_step()
    kept.add([batch(2)])
    assert kept.num_steps == 2


def test_measuring_early_changes_nothing_but_the_memory():
    curvature = create("kfac", SHAPES, **F64)
    early, late = observe([batch(0), batch(1)]), observe([batch(0), batch(1)])
    assert early.nbytes == 2 * 7 * (5 + 3) * 8
    early.measure(curvature)
    assert early.nbytes == 0
    for kept in (early, late):
        kept.add([batch(2)])
    pairs = zip(early.measure(curvature).values(), late.measure(curvature).values())
    for mine, theirs in pairs:
        torch.testing.assert_close(mine.tensor, theirs.tensor)
        assert mine.count == theirs.count


def test_what_waits_is_taken_over_from_several_processes():
    curvature = create("kfac", SHAPES, **F64)
    whole = observe([batch(0), batch(1)])
    parts = [observe([batch(0)]), observe([batch(1)])]
    parts[0].measure(curvature)  # as statistics, the other as rows
    found = ObservedRows(num_steps=2)
    for part in parts:
        found.load_state_dict(part.state_dict())
    assert found.num_steps == 2
    for name, statistic in found.measure(curvature).items():
        torch.testing.assert_close(statistic.tensor, whole.measure(curvature)[name].tensor)


def test_a_process_that_saw_none_of_the_steps_brings_nothing():
    curvature = create("kfac", SHAPES, **F64)
    empty = ObservedRows(num_steps=2).measure(curvature)
    assert {name: statistic.count for name, statistic in empty.items()} == {"fc/inputs": 0, "fc/outputs": 0}
    joined = reduce_statistics([empty, curvature.measure([batch(0)])])
    for name, statistic in curvature.measure([batch(0)]).items():
        torch.testing.assert_close(joined[name].tensor, statistic.tensor)


@pytest.mark.parametrize("name", KINDS)
def test_examples_that_are_not_finite_cost_nothing_but_themselves(name):
    broken, nothing = batch(1), batch(1)
    broken.inputs[2, 0, 1, 0] = float("nan")
    broken.output_grads[5] = float("inf")
    nothing.inputs[:] = float("nan")
    sound = [i for i in range(7) if i not in (2, 5)]
    left = GradientRows("fc", broken.inputs[sound], broken.output_grads[sound])
    found, expected = (create(name, SHAPES, **F64) for _ in range(2))
    for curvature, batches in ((found, [batch(0), broken]), (expected, [batch(0), left])):
        curvature.absorb(observe(batches).measure(curvature), 2)
    torch.testing.assert_close(found.operator().to_dense(), expected.operator().to_dense())
    assert int(found.state_dict()["tensors"]["fc/skipped"]) == 0
    before = found.operator().to_dense()
    found.absorb(observe([nothing]).measure(found))  # a window without a finite example is skipped and counted
    assert torch.equal(found.operator().to_dense(), before)
    assert int(found.state_dict()["tensors"]["fc/skipped"]) == 1
