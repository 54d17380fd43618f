"""DDP: scores are those of one process with the global batch, and the training is that without a monitor."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from sgoif.influence import GateSettings
from tests.cases import ResidualNet
from tests.distributed.loops import Recipe, is_refused_weights, joined, trained

SCORES = ("harm", "worst", "own", "harm_identity", "worst_solved", "probe_margin", "confidence", "loss")
STANDARDISED = (*SCORES, "harm_std", "worst_std", "epoch")
STILL = [  # five steps without an optimiser, with the largest gap that rounding may make
    (Recipe(steps=5, lr=0.0, accumulate=accumulate, dtype=torch.float32, autocast=autocast), gap)
    for accumulate in (1, 4)
    for autocast, gap in ((None, 1e-5), (torch.bfloat16, 3e-2))
]


def assert_as_alone(worlds, size, recipe, gap=1e-8, names=SCORES, wrap="ddp", **settings):
    """Ask for the scores of one process within a gap, in units of the largest of its kind."""
    (one,) = worlds.share(1, trained, recipe, settings)
    parts = worlds.run(size, trained, replace(recipe, wrap=wrap), settings)
    assert all(part["faults"] == {} and part["is_on"] for part in parts)
    one, many = joined([one["visits"]]), joined([part["visits"] for part in parts])
    assert (one["id"] == many["id"]).all() and (one["step"] == many["step"]).all()
    for name in names:
        unknown = np.isnan(one[name])  # a standardised score before there is a scale
        np.testing.assert_array_equal(unknown, np.isnan(many[name]), err_msg=name)
        largest = np.abs(one[name][~unknown]).max()
        assert largest > 0 and np.abs(one[name] - many[name])[~unknown].max() < gap * largest, name


def assert_same(expected, found):
    """Ask for the same weights to the bit."""
    assert expected.keys() == found.keys()
    for key, value in expected.items():
        np.testing.assert_array_equal(value, found[key], err_msg=key)


def assert_trained_as_bare(worlds, recipe, parts, train=trained):
    """Ask for the weights of the same ranks without a monitor."""
    for bare, part in zip(worlds.share(len(parts), train, replace(recipe, is_watched=False)), parts, strict=True):
        assert_same(bare["weights"], part["weights"])


@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("size", [2, 4])
def test_twenty_real_steps_score_as_in_one_process(worlds, size, accumulate):
    assert_as_alone(worlds, size, Recipe(steps=20, accumulate=accumulate), names=STANDARDISED)


@pytest.mark.parametrize("size", [2, 4])
def test_steps_without_an_optimiser_score_as_in_one_process_in_every_precision(worlds, size):
    for recipe, gap in STILL:
        assert_as_alone(worlds, size, recipe, gap)


def test_batches_of_unequal_size_score_as_in_one_process(worlds):
    recipe = Recipe(steps=9, lr=0.0, batch=15, accumulate=2)  # 8 and 7 examples, 2 or 1 of them on a rank
    assert_as_alone(worlds, 4, recipe, names=STANDARDISED)


@pytest.mark.parametrize("curvature", ["diagonal", "fisher", "lowrank"])
def test_every_curvature_is_that_of_the_global_batch(worlds, curvature):
    assert_as_alone(worlds, 2, Recipe(steps=5, batch=12), curvature=curvature, layers=["conv"])


def test_a_gate_that_looks_at_the_gradient_looks_at_that_of_the_global_batch(worlds):
    assert_as_alone(worlds, 2, Recipe(steps=6), gate=GateSettings(beta_power=1.0))


PARTS = {"subspace": 4, "replace_every": 2, "gram_below": 0.5, "refine_below": 0.9, "weighting": "paper"}


def test_all_parts_of_the_paper_score_as_in_one_process(worlds):
    assert_as_alone(worlds, 2, Recipe(steps=16), **PARTS, refine_if="uncertain")


def test_ranks_agree_on_what_is_large(worlds):
    """What is large is judged by each rank's own scores; the directions that follow are those of all."""
    parts = worlds.run(2, trained, Recipe(steps=16), {**PARTS, "refine_if": "large"})
    assert all(part["faults"] == {} and part["is_on"] for part in parts)
    for step in range(16):
        gates = {value for part in parts for value in part["visits"]["confidence"][part["visits"]["step"] == step]}
        assert len(gates) == 1, step  # one gate for all examples of a step


def test_weights_under_batchnorm_are_those_without_a_monitor_to_the_bit(worlds):
    recipe = Recipe(steps=6, make=ResidualNet)
    parts = worlds.run(2, trained, recipe)
    assert all(part["faults"] == {} and len(part["visits"]["id"]) for part in parts)
    assert_trained_as_bare(worlds, recipe, parts)


def test_weights_of_examples_are_refused_and_the_training_goes_on(worlds):
    for part in worlds.run(2, trained, Recipe(steps=3), {"planned_steps": 3}, is_refused_weights):
        assert part["faults"] == {} and len(part["visits"]["id"])
