"""Instruction tuning made of intents: what is planted is wrong, and only completions have labels."""

import numpy as np
import pytest

from benchmarks.data import data_root
from benchmarks.sequences.ekfac import with_linear_layers
from benchmarks.sequences.instructions import ERRORS, load_instructions, plant_wrong_completions
from benchmarks.sequences.rivals import disagree_with_neighbours, find_outliers

pytestmark = [
    pytest.mark.data,
    pytest.mark.skipif(not (data_root() / "text/banking77").is_dir(), reason="Banking77 is not in SGOIF_DATA"),
]


@pytest.mark.parametrize("kind", ERRORS)
def test_planted_completions_are_wrong_and_the_others_right(kind):
    data = load_instructions("banking77", 5, 2, intents=6)
    items, is_wrong = plant_wrong_completions(data, kind, 0.2, seed=3)
    assert len(items) == 30 and is_wrong.sum() == 6
    for item, intent, wrong in zip(items, data.intents, is_wrong):
        answer = item["labels"][item["labels"] != -100].tolist()
        assert (answer[:-1] != data.completion(int(intent))) == wrong
        assert item["input_ids"].tolist()[-len(answer) :] == answer
    groups = data.groups(2)
    assert sum(map(len, groups.values())) == 12 and np.unique(data.held_intents).size == 6


def test_half_of_the_evaluation_queries_are_anchors_and_the_other_half_are_judged():
    data = load_instructions("banking77", 5, 4, intents=6)
    halves = data.split_held()
    assert [np.bincount(half.held_intents).tolist() for half in halves] == [[2] * 6] * 2
    assert sorted(halves[0].held_queries + halves[1].held_queries) == sorted(data.held_queries)


def test_a_completion_unlike_those_of_the_nearest_prompts_stands_out():
    data = load_instructions("banking77", 15, 2, intents=4)
    items, is_wrong = plant_wrong_completions(data, "random", 0.05, seed=0)
    rows = np.eye(4)[data.intents] + 0.01 * np.random.default_rng(0).normal(size=(60, 4))
    rows[7] = [1, 1, 1, 1]  # in no cluster
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    found = disagree_with_neighbours(np.delete(rows, 7, 0), items[:7] + items[8:])
    assert set(np.argsort(-found)[: is_wrong.sum()]) == set(np.flatnonzero(np.delete(is_wrong, 7)))
    assert find_outliers(rows).argmax() == 7


def test_linear_layers_in_place_of_transposed_ones_compute_the_same():
    pytest.importorskip("transformers", reason="transformers is not installed")
    import torch

    from benchmarks.sequences.training import build

    torch.manual_seed(0)
    model, tokens = build(32, 1, 20, 16).eval(), torch.randint(20, (2, 8))
    before = model(tokens).logits
    torch.testing.assert_close(with_linear_layers(model)(tokens).logits, before)
    assert "h.0.attn.c_attn" in " ".join(n for n, m in model.named_modules() if type(m) is torch.nn.Linear)
