"""DDP: scores are those of one process with the global batch, and the training is that without a monitor."""

import numpy as np
import pytest
import torch

from sgoif.influence import GateSettings
from tests.cases import ResidualNet
from tests.distributed.loops import Recipe, is_refused_weights, joined, several, trained

SCORES = ("harm", "worst", "own", "harm_identity", "worst_solved", "probe_margin", "confidence", "loss")
STILL = [  # five steps without an optimiser, with the largest gap that rounding may make
    (Recipe(steps=5, lr=0.0, accumulate=accumulate, dtype=torch.float32, autocast=autocast), gap)
    for accumulate in (1, 4)
    for autocast, gap in ((None, 1e-5), (torch.bfloat16, 3e-2))
]


def assert_close(one, parts, gap, names=SCORES):
    """Ask for every score within a gap, in units of the largest of its kind."""
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


@pytest.mark.parametrize("size", [2, 4])
def test_twenty_real_steps_score_as_in_one_process(worlds, size):
    recipes = [Recipe(steps=20, accumulate=accumulate) for accumulate in (1, 4)]
    for one, *parts in zip(several(recipes), *worlds.run(size, several, recipes)):
        assert_close(one, parts, 1e-8, (*SCORES, "harm_std", "worst_std", "epoch"))


@pytest.mark.parametrize("size", [2, 4])
def test_steps_without_an_optimiser_score_as_in_one_process_in_every_precision(worlds, size):
    recipes, gaps = zip(*STILL)
    for gap, one, *parts in zip(gaps, several(recipes), *worlds.run(size, several, recipes)):
        assert_close(one, parts, gap)


def test_batches_of_unequal_size_score_as_in_one_process(worlds):
    recipe = Recipe(steps=9, lr=0.0, batch=15, accumulate=2)  # 8 and 7 examples, 2 or 1 of them on a rank
    assert_close(trained(recipe), worlds.run(4, trained, recipe), 1e-8, (*SCORES, "harm_std", "epoch"))


@pytest.mark.parametrize("curvature", ["diagonal", "fisher", "lowrank"])
def test_every_curvature_is_that_of_the_global_batch(worlds, curvature):
    recipe, settings = Recipe(steps=5, batch=12), {"curvature": curvature, "layers": ["conv"]}
    assert_close(trained(recipe, settings), worlds.run(2, trained, recipe, settings), 1e-8)


def test_a_gate_that_looks_at_the_gradient_looks_at_that_of_the_global_batch(worlds):
    recipe, settings = Recipe(steps=6), {"gate": GateSettings(beta_power=1.0)}
    assert_close(trained(recipe, settings), worlds.run(2, trained, recipe, settings), 1e-8)


PARTS = {"subspace": 4, "replace_every": 2, "gram_below": 0.5, "refine_below": 0.9, "weighting": "paper"}


def test_all_parts_of_the_paper_score_as_in_one_process(worlds):
    recipe, settings = Recipe(steps=16), {**PARTS, "refine_if": "uncertain"}
    assert_close(trained(recipe, settings), worlds.run(2, trained, recipe, settings), 1e-8)


def test_ranks_agree_on_what_is_large(worlds):
    """What is large is judged by each rank's own scores; the directions that follow are those of all."""
    recipe, settings = Recipe(steps=16), {**PARTS, "refine_if": "large"}
    parts = worlds.run(2, trained, recipe, settings)
    assert all(part["faults"] == {} and part["is_on"] for part in parts)
    for step in range(16):
        gates = {value for part in parts for value in part["visits"]["confidence"][part["visits"]["step"] == step]}
        assert len(gates) == 1, step  # one gate for all examples of a step


def test_weights_under_batchnorm_are_those_without_a_monitor_to_the_bit(worlds):
    recipes = [Recipe(steps=6, make=ResidualNet, is_watched=is_watched) for is_watched in (False, True)]
    for bare, watched in worlds.run(2, several, recipes):
        assert watched["faults"] == {} and len(watched["visits"]["id"])
        assert_same(bare["weights"], watched["weights"])


def test_weights_of_examples_are_refused_and_the_training_goes_on(worlds):
    for part in worlds.run(2, trained, Recipe(steps=3), {"planned_steps": 3}, is_refused_weights):
        assert part["faults"] == {} and len(part["visits"]["id"])
