"""The streams and rivals of the sentinel's benchmark: against scipy and exact kernels, without any network."""

import numpy as np
import pytest
import torch
from scipy import stats

from benchmarks.shift.detectors import DETECTORS, Listeners
from benchmarks.shift.streams import CORRUPTIONS, corrupt, draw_passes, draw_streams, sum_batches, switch
from sgoif.features.extraction import HeadFeatures

BATCH, CALIBRATED = 50, 400


def seen(count, seed=0, moved=0.0):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(count, 6, generator=generator) + moved
    logits = features @ torch.randn(6, 4, generator=torch.Generator().manual_seed(99))
    return HeadFeatures(features, logits, {"layer": torch.randn(count, 5, generator=generator)})


@pytest.fixture(scope="module")
def listeners():
    return Listeners.fit(seen(CALIBRATED), BATCH, seed=0)


def streams(listeners, moved=0.0, length=8):
    rows = listeners.rows(seen(BATCH * length, 1, moved))
    return sum_batches(rows, np.arange(BATCH * length).reshape(1, length, BATCH))


def test_ks_is_scipys_up_to_its_grid(listeners):
    readings = listeners.readings(streams(listeners))
    top = [s.logits.double().softmax(1).amax(1).numpy() for s in (seen(CALIBRATED), seen(BATCH * 8, 1))]
    for t, width, name in ((0, 1, "KS"), (7, 8, "KS, windows")):
        exact = stats.ks_2samp(top[1][BATCH * (t + 1 - width) : BATCH * (t + 1)], top[0]).statistic
        scaled = exact / (1 / (BATCH * width) + 1 / CALIBRATED) ** 0.5
        if width == 1:
            # between two of 64 quantiles it may be larger by a 65th
            assert readings[name][0, t] <= scaled + 1e-9 and scaled - readings[name][0, t] < 1 / 65 * 45**0.5
        else:
            assert readings[name][0, t] > scaled - 1 / 65 * 200**0.5


def test_mmd_is_that_of_the_kernel(listeners):
    reading = listeners.readings(streams(listeners, moved=1.0))["MMD"][0, 0]
    usual, new = seen(CALIBRATED).features.double(), seen(BATCH * 8, 1, 1.0).features[:BATCH].double()
    width = torch.pdist(usual[:500]).median()

    def kernel(a, b):
        return (-0.5 * torch.cdist(a, b).square() / width**2).exp().mean()

    exact = float(kernel(usual, usual) - 2 * kernel(usual, new) + kernel(new, new)) / (1 / BATCH + 1 / CALIBRATED)
    assert reading == pytest.approx(exact, rel=0.25)  # 128 frequencies


def test_every_detector_hears_a_large_shift(listeners):
    usual, moved = (listeners.readings(streams(listeners, moved=m)) for m in (0.0, 3.0))
    assert set(usual) == set(DETECTORS)
    assert all(moved[name][0, -1] > usual[name].max() for name in DETECTORS)


def test_a_pass_has_each_image_once_and_longer_streams_go_on():
    rng, pool = np.random.default_rng(0), np.arange(100, 164)
    found = draw_passes(pool, 3, 10, rng)
    assert found.shape == (3, 6, 10)
    assert all(len(np.unique(one)) == 60 and np.isin(one, pool).all() for one in found)
    long = draw_streams(pool, 2, 15, 10, rng)
    assert long.shape == (2, 15, 10) and all(len(np.unique(part)) == 60 for part in (long[0, :6], long[0, 6:12]))


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_corruptions_grow_with_their_strength(kind):
    coarse = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3)).astype(np.uint8)
    pixels = coarse.repeat(4, 1).repeat(4, 2)
    made = [corrupt(pixels, kind, strength) for strength in CORRUPTIONS[kind]]
    errors = [np.abs(found.astype(float) - pixels).mean() for found in made]
    assert all(found.shape == pixels.shape and found.dtype == np.uint8 for found in made)
    assert errors == sorted(errors) and errors[-1] > errors[0] > 0


def test_a_switch_takes_the_share_that_it_was_told():
    rng = np.random.default_rng(0)
    found = switch(np.zeros((50, 3, 100)), np.ones((50, 3, 100)), np.array([0.0, 0.3, 1.0]), rng)
    np.testing.assert_allclose(found.mean((0, 2)), [0, 0.3, 1], atol=0.02)  # 5,000 draws: ± 0.0065
