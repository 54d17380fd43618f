"""The sentinel on real digits: what moves is found and named, what does not move is left in peace."""

import copy

import numpy as np
import pytest
import torch

from sgoif.errors import SgoifError
from sgoif.run import Run
from sgoif.shift import ShiftSentinel
from sgoif.tables import MemoryTables
from tests.ood.digits import shuffled_digits, train_network

NUM_TRAIN, NUM_CALIBRATED, BATCH = 500, 800, 20


@pytest.fixture(scope="module")
def digits():
    """Inputs and labels."""
    return shuffled_digits()


@pytest.fixture(scope="module")
def model(digits):
    return train_network(*(part[:NUM_TRAIN] for part in digits))


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


def test_usual_digits_raise_no_alarm_and_a_stream_goes_on_where_it_was_saved(kept, model, fresh, tmp_path):
    whole = list(ShiftSentinel.load(kept, model).watch(fresh))
    assert [reading.batch for reading in whole] == list(range(1, 26))
    assert all(reading.nearness < 1 <= reading.once_in and not reading.is_alarm for reading in whole)
    first = ShiftSentinel.load(kept, model)
    readings = list(first.watch(fresh[0][: 12 * BATCH]))
    first.save(tmp_path / "half.safetensors")
    second = ShiftSentinel.load(tmp_path / "half.safetensors", model)
    assert second.num_batches == 12
    assert readings + list(second.watch(fresh[0][12 * BATCH :])) == whole


def test_a_stream_can_be_forgotten(sentinel, fresh):
    before = sentinel.update(fresh[0][:BATCH])
    sentinel.reset()
    after = sentinel.update(fresh[0][:BATCH])
    assert after.batch == 2 and after.parts == before.parts


def test_a_broken_picture_is_borne_and_a_broken_stream_is_not(sentinel, fresh):
    images = fresh[0][:400].clone()
    images[10] = torch.nan
    assert not any(reading.is_alarm for reading in sentinel.watch(images))
    readings = [sentinel.update(torch.full((BATCH, 1, 8, 8), torch.nan)) for _ in range(3)]
    assert readings[-1].is_alarm and np.isfinite(readings[-1].nearness)


def test_a_file_of_other_weights_is_refused(kept, model):
    other = copy.deepcopy(model)
    with torch.no_grad():
        other[3].bias += 1
    with pytest.raises(SgoifError, match="weights are not those of the sentinel"):
        ShiftSentinel.load(kept, other)


def test_another_rate_needs_no_second_calibration(kept, model, fresh):
    stated, often = ShiftSentinel.load(kept, model), ShiftSentinel.load(kept, model, false_alarms=0.05)
    for one, other in zip(stated.watch(fresh), often.watch(fresh), strict=True):
        assert one.once_in == other.once_in and one.nearness <= other.nearness
        assert other.is_alarm == (other.once_in >= 20)


def test_more_images_than_count_do_not_upset_it_and_a_run_knows_the_head(digits, model, fresh, monkeypatch):
    monkeypatch.setattr("sgoif.shift.sentinel._MOST", 150)
    run, images = Run({"head": "3"}, MemoryTables({})), digits[0][NUM_TRAIN : NUM_TRAIN + 400]
    sentinel = run.shift_sentinel(model, (images, torch.zeros(400)), batch_size=BATCH)
    assert not any(reading.is_alarm for reading in sentinel.watch(fresh))
    assert any(reading.is_alarm for reading in sentinel.watch(1 - fresh[0]))
    with pytest.raises(SgoifError, match="compared with 150"):
        ShiftSentinel.fit(model, images, batch_size=200)


def test_mistakes_are_named(digits, model, sentinel):
    images = digits[0]
    with pytest.raises(SgoifError, match="100 images at least"):
        ShiftSentinel.fit(model, images[:50])
    with pytest.raises(SgoifError, match="false_alarms is a share"):
        ShiftSentinel.fit(model, images[:200], false_alarms=10_000)
    with pytest.raises(SgoifError, match="the batch is empty"):
        sentinel.update(images[:0])
