"""Means over the visits of sequences, whichever process saw them."""

import pytest
import torch

from sgoif.training.sequences.recorder import SequenceRecorder

VISITS = [(0, 0.9, 5.0), (3, 0.5, 1.0), (9, 0.1, -2.0)]  # step, loss, harm


def record(visits, recorder=None):
    recorder = SequenceRecorder({"all": 1.0}) if recorder is None else recorder
    for step, loss, harm in visits:
        recorder.add(step, [7], torch.tensor([loss]), torch.tensor([1]), torch.tensor([[harm, harm / 10]]))
        recorder.flush()
    return recorder


def expected(visits):
    weights = [(step + 1) ** 2 for step, _, _ in visits]
    return sum(weight * harm for weight, (_, _, harm) in zip(weights, visits)) / sum(weights)


def test_scores_weigh_visits_by_the_square_of_the_step_and_losses_do_not():
    recorder = record(VISITS)
    found = recorder.examples()
    assert found["harm"][0] == pytest.approx(expected(VISITS), rel=1e-6)
    assert found["loss"][0] == pytest.approx(0.5) and found["loss_last"][0] == pytest.approx(0.1)
    assert recorder.effects()["harm"][0] == found["harm"][0]


def test_processes_and_attempts_add_up_to_one():
    whole = record(VISITS).examples()
    first, second = record(VISITS[:1] + VISITS[2:]), record(VISITS[1:2])
    first.merge(second.state_dict())
    resumed = SequenceRecorder({"all": 1.0})
    resumed.load_state_dict(record(VISITS[:2]).state_dict())
    for found in (first.examples(), record(VISITS[2:], resumed).examples()):
        assert found["harm"][0] == pytest.approx(whole["harm"][0]) and found["n_judged"][0] == 3


def test_a_group_counts_in_harm_as_much_as_it_has_sequences():
    recorder = SequenceRecorder({"large": 0.75, "small": 0.25})
    recorder.add(0, [7], torch.ones(1), torch.ones(1), torch.tensor([[1.0, 9.0, 0.1, -0.3]]))
    recorder.flush()
    found = recorder.examples()
    assert found["harm"][0] == pytest.approx(3.0) and found["cosine"][0] == pytest.approx(0.0, abs=1e-7)
    assert found["worst"][0] == pytest.approx(9.0) and found["worst_group"][0] == "small"
