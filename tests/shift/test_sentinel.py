"""The sentinel on real digits: what moves is found and named, what does not move is left in peace."""

import copy
import random

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from sgoif.errors import SgoifError
from sgoif.run import Run
from sgoif.shift import ShiftSentinel
from sgoif.tables import MemoryTables

NUM_TRAIN, NUM_CALIBRATED, BATCH = 500, 800, 20


@pytest.fixture(scope="module")
def digits():
    """Shuffled, for they come writer by writer: inputs and labels."""
    found = load_digits()
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(0))
    return torch.tensor(found.images).float()[order, None] / 16, torch.tensor(found.target)[order]


@pytest.fixture(scope="module")
def model(digits):
    torch.manual_seed(0)
    made = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
    optimizer = torch.optim.Adam(made.parameters(), 0.01)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(made(digits[0][:NUM_TRAIN]), digits[1][:NUM_TRAIN]).backward()
        optimizer.step()
    return made


@pytest.fixture(scope="module")
def kept(digits, model, tmp_path_factory):
    path = tmp_path_factory.mktemp("sentinel") / "sentinel.safetensors"
    images = digits[0][NUM_TRAIN : NUM_TRAIN + NUM_CALIBRATED]
    ShiftSentinel.fit(model, images, batch_size=BATCH, false_alarms=1 / 1000).save(path)
    return path


@pytest.fixture
def sentinel(kept, model):
    return ShiftSentinel.load(kept, model)


@pytest.fixture
def fresh(digits):
    images, labels = digits
    return images[NUM_TRAIN + NUM_CALIBRATED :], labels[NUM_TRAIN + NUM_CALIBRATED :]


def test_usual_digits_raise_no_alarm(sentinel, fresh):
    readings = list(sentinel.watch(fresh))
    assert [reading.batch for reading in readings] == list(range(1, 26))
    assert not any(reading.is_alarm for reading in readings)
    assert all(reading.nearness < 1 <= reading.once_in for reading in readings)


def test_noise_is_found_and_dated(sentinel, fresh):
    usual, noise = fresh[0][:200], torch.randn(300, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert not any(reading.is_alarm for reading in sentinel.watch(usual))
    readings = list(sentinel.watch(fresh[0][200:] + 0.15 * noise[: len(fresh[0]) - 200]))
    alarm = next(reading for reading in readings if reading.is_alarm)
    assert alarm.batch <= 14 and abs(alarm.changed_at - 11) <= 2 and alarm.part in ("features", "unlike")
    assert alarm.once_in >= 1000 and alarm.parts[alarm.part] == alarm.once_in


def test_classes_that_stay_away_are_found_by_the_mix_of_classes(sentinel, fresh):
    images, labels = fresh
    readings = list(sentinel.watch(images[labels < 5]))
    alarm = next(reading for reading in readings if reading.is_alarm)
    assert alarm.batch <= 5 and alarm.parts["classes"] > 1000


def test_a_stream_goes_on_where_it_was_saved(kept, model, fresh, tmp_path):
    whole = list(ShiftSentinel.load(kept, model).watch(fresh))
    first = ShiftSentinel.load(kept, model)
    readings = list(first.watch(fresh[0][: 12 * BATCH]))
    first.save(tmp_path / "half.safetensors")
    second = ShiftSentinel.load(tmp_path / "half.safetensors", model)
    assert second.num_batches == 12
    assert readings + list(second.watch(fresh[0][12 * BATCH :])) == whole


def test_a_stream_can_be_forgotten(sentinel, fresh):
    before = sentinel.update(fresh[0][:BATCH])
    sentinel.update(1 - fresh[0][:BATCH])
    sentinel.reset()
    after = sentinel.update(fresh[0][:BATCH])
    assert after.batch == 3 and after.parts == before.parts


def test_the_model_is_left_as_found(fresh):
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(288, 10)).train()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = copy.deepcopy(model.state_dict()), [p.grad.clone() for p in model.parameters()]
    modes = [module.training for module in model.modules()]
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    loader = DataLoader(TensorDataset(*fresh), batch_size=BATCH, shuffle=True)
    sentinel = ShiftSentinel.fit(model, loader, batch_size=BATCH)
    sentinel.update(fresh)
    list(sentinel.watch(fresh))
    assert all(torch.equal(value, before[0][name]) for name, value in model.state_dict().items())
    assert all(torch.equal(p.grad, kept) for p, kept in zip(model.parameters(), before[1], strict=True))
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), states[0]) and random.getstate() == states[2]
    assert (np.random.get_state()[1] == states[1]).all()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_broken_picture_is_borne_and_a_broken_stream_is_not(sentinel, fresh):
    images = fresh[0][:400].clone()
    images[10] = torch.nan
    assert not any(reading.is_alarm for reading in sentinel.watch(images))
    readings = [sentinel.update(torch.full((BATCH, 1, 8, 8), torch.nan)) for _ in range(3)]
    assert readings[-1].is_alarm and np.isfinite(readings[-1].nearness)


def test_a_file_of_other_weights_or_none_is_refused(kept, model, tmp_path):
    other = copy.deepcopy(model)
    with torch.no_grad():
        other[3].bias += 1
    with pytest.raises(SgoifError, match="weights are not those of the sentinel"):
        ShiftSentinel.load(kept, other)
    with pytest.raises(SgoifError, match="there is no sentinel"):
        ShiftSentinel.load(tmp_path / "none", model)
    (tmp_path / "cut").write_bytes(kept.read_bytes()[:500])
    with pytest.raises(SgoifError, match="cannot be read"):
        ShiftSentinel.load(tmp_path / "cut", model)


def test_another_rate_needs_no_second_calibration(kept, model, fresh):
    stated, often = ShiftSentinel.load(kept, model), ShiftSentinel.load(kept, model, false_alarms=0.05)
    for one, other in zip(stated.watch(fresh), often.watch(fresh), strict=True):
        assert one.once_in == other.once_in and one.nearness <= other.nearness
        assert other.is_alarm == (other.once_in >= 20)


def test_a_run_knows_the_head(digits, model):
    run = Run({"head": "3"}, MemoryTables({}))
    images = digits[0][NUM_TRAIN : NUM_TRAIN + 200]
    assert run.shift_sentinel(model, (images, torch.zeros(200)), batch_size=50).update(images[:50]).batch == 1


def test_more_images_than_count_do_not_upset_it(digits, model, fresh, monkeypatch):
    monkeypatch.setattr("sgoif.shift.sentinel._MOST", 150)
    sentinel = ShiftSentinel.fit(model, digits[0][NUM_TRAIN : NUM_TRAIN + 400], batch_size=BATCH)
    assert not any(reading.is_alarm for reading in sentinel.watch(fresh))
    assert any(reading.is_alarm for reading in sentinel.watch(1 - fresh[0]))
    with pytest.raises(SgoifError, match="compared with 150"):
        ShiftSentinel.fit(model, digits[0][:400], batch_size=200)


def test_mistakes_are_named(digits, model, sentinel):
    images = digits[0]
    with pytest.raises(SgoifError, match="100 images at least"):
        ShiftSentinel.fit(model, images[:50])
    with pytest.raises(SgoifError, match="batches of 300 cannot"):
        ShiftSentinel.fit(model, images[:200], batch_size=300)
    with pytest.raises(SgoifError, match="false_alarms is a share"):
        ShiftSentinel.fit(model, images[:200], false_alarms=10_000)
    with pytest.raises(SgoifError, match="the batch is empty"):
        sentinel.update(images[:0])
