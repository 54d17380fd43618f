"""Instruction tuning made of intents: what is planted is wrong, and only completions have labels."""

import numpy as np
import pytest

from benchmarks.data import data_root
from benchmarks.instructions import ERRORS, load_instructions, plant_wrong_completions

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
