"""FSDP2: parameters lie in pieces, and scores and training are those of a model that is whole."""

from dataclasses import replace
from functools import partial

import numpy as np
import torch

from tests.cases import CheckpointedNet, ResidualNet
from tests.distributed.loops import Recipe, Trouble, refusals, several, trained
from tests.distributed.test_ddp import SCORES, STILL, assert_close, assert_same


def sharded(recipes):
    return [replace(recipe, wrap="fsdp") for recipe in recipes]


def test_twenty_real_steps_score_as_in_one_process(worlds):
    recipes = [Recipe(steps=20, accumulate=accumulate) for accumulate in (1, 4)]
    for one, *parts in zip(several(recipes), *worlds.run(2, several, sharded(recipes))):
        assert_close(one, parts, 1e-8, (*SCORES, "harm_std", "worst_std"))


def test_steps_without_an_optimiser_score_as_in_one_process_in_every_precision(worlds):
    recipes, gaps = zip(*STILL)
    for gap, one, *parts in zip(gaps, several(recipes), *worlds.run(2, several, sharded(recipes))):
        assert_close(one, parts, gap)


def test_weights_are_those_without_a_monitor_to_the_bit_checkpointed_and_in_mixed_precision(worlds):
    kinds = [
        Recipe(steps=10, make=ResidualNet),
        Recipe(steps=10, make=partial(CheckpointedNet, use_reentrant=False)),
        Recipe(steps=10, dtype=torch.float32, mixed=torch.bfloat16),
    ]
    recipes = [replace(recipe, is_watched=is_watched) for recipe in kinds for is_watched in (False, True)]
    for ends in worlds.run(2, several, sharded(recipes)):
        for expected, found in zip(ends[::2], ends[1::2]):
            assert found["faults"] == {} and np.abs(found["visits"]["harm"]).max() > 0
            assert_same(expected["weights"], found["weights"])


def test_further_layers_in_pieces_are_scored_too(worlds):
    recipe, settings = Recipe(steps=5), {"layers": ["conv"]}
    assert_close(trained(recipe, settings), worlds.run(2, trained, replace(recipe, wrap="fsdp"), settings), 1e-8)


def test_trouble_on_one_rank_ends_scoring_on_all_and_the_training_goes_on(worlds):
    recipe = Recipe(steps=10, wrap="fsdp")
    parts = worlds.run(2, trained, recipe, {"peer_timeout_s": 30}, Trouble("raises"))
    for part, (bare,) in zip(parts, worlds.run(2, several, [replace(recipe, is_watched=False)])):
        assert not part["is_on"]
        assert_same(bare["weights"], part["weights"])


def test_what_is_not_whole_in_any_forward_pass_is_refused(worlds):
    for told in worlds.run(2, refusals):
        assert "tensor parallel" in told[0] and "shape (1, 2)" in told[1]
