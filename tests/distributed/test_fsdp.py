"""FSDP2: parameters lie in pieces, and scores and training are those of a model that is whole."""

from functools import partial

import numpy as np
import pytest
import torch

from tests.cases import CheckpointedNet, ResidualNet
from tests.distributed.loops import Recipe, refusals, trained
from tests.distributed.test_ddp import STANDARDISED, STILL, assert_as_alone, assert_trained_as_bare


@pytest.mark.parametrize("accumulate", [1, 4])
def test_twenty_real_steps_score_as_in_one_process(worlds, accumulate):
    assert_as_alone(worlds, 2, Recipe(steps=20, accumulate=accumulate), names=STANDARDISED, wrap="fsdp")


def test_steps_without_an_optimiser_score_as_in_one_process_in_every_precision(worlds):
    for recipe, gap in STILL:
        assert_as_alone(worlds, 2, recipe, gap, wrap="fsdp")


def test_further_layers_in_pieces_are_scored_too(worlds):
    assert_as_alone(worlds, 2, Recipe(steps=5), wrap="fsdp", layers=["conv"])


@pytest.mark.parametrize(
    "kind",
    [
        {"make": ResidualNet},
        {"make": partial(CheckpointedNet, use_reentrant=False)},
        {"dtype": torch.float32, "mixed": torch.bfloat16},
    ],
    ids=["batchnorm", "checkpointed", "mixed"],
)
def test_weights_are_those_without_a_monitor_to_the_bit(worlds, kind):
    recipe = Recipe(steps=10, wrap="fsdp", **kind)
    parts = worlds.run(2, trained, recipe)
    assert all(part["faults"] == {} and np.abs(part["visits"]["harm"]).max() > 0 for part in parts)
    assert_trained_as_bare(worlds, recipe, parts)


def test_what_is_not_whole_in_any_forward_pass_is_refused(worlds):
    for told in worlds.run(2, refusals):
        assert "tensor parallel" in told[0] and "shape (1, 2)" in told[1]
