"""The sentinel's math: coordinates, evidence, memory, and the rate that is learnt by playing usual streams."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sgoif.errors import SgoifError
from sgoif.shift.null_streams import fit_tail, learn_tails, window_evidence
from sgoif.shift.sequential import Memory, Tail, find_shift, longest_window, windows_up_to
from sgoif.shift.statistics import Coordinates

PARTS = {"first": 2, "second": 3}


@pytest.mark.parametrize("shape", [(40, 7), (7, 40)])
def test_coordinates_are_principal_and_of_variance_one(shape):
    rows = torch.randn(*shape, generator=torch.Generator().manual_seed(0)) * torch.arange(1, shape[1] + 1)
    found = Coordinates.fit(rows, 3).of(rows)
    about = (rows - rows.mean(0)).double().numpy()
    expected = np.linalg.svd(about, full_matrices=False)[0][:, :3] * shape[0] ** 0.5
    np.testing.assert_allclose(found.abs().numpy(), np.abs(expected), atol=1e-6)


def test_no_row_lies_beyond_the_farthest_and_one_that_is_not_finite_lies_there():
    rows = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    fitted = Coordinates.fit(rows, 4)
    far = torch.stack([1e9 * torch.ones(4), -1e9 * torch.ones(4), torch.full((4,), torch.nan)])
    found, seen = fitted.of(far), fitted.of(rows)
    assert (found <= seen.amax(0)).all() and (found >= seen.amin(0)).all()
    torch.testing.assert_close(found[2], seen.amax(0))
    # rows that are all the same have no coordinates
    assert Coordinates.fit(torch.ones(20, 3), 3).of(torch.zeros(2, 3)).shape == (2, 0)


def brute_force(coordinates, parts, calibrated, longest):
    """The evidence after each batch by the definition, and the best window of all lengths for the last."""
    found, every = [], []
    for t in range(1, len(coordinates) + 1):
        rows = []
        for width in range(1, min(t, longest) + 1):
            images = np.concatenate(coordinates[t - width : t])
            row, start = [], 0
            for k in parts.values():
                mean = images[:, start : start + k].mean(0)
                ratio = (mean @ mean) / (1 / len(images) + 1 / calibrated) / k
                z = (ratio ** (1 / 3) - (1 - 2 / (9 * k))) / (2 / (9 * k)) ** 0.5
                row.append(max(z, 0) ** 2 / 2)
                start += k
            rows.append(row)
        every = np.array(rows)
        found.append(every[[w - 1 for w in windows_up_to(len(rows))]].max(0))
    return np.array(found), every


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31), sizes=st.lists(st.integers(1, 6), min_size=1, max_size=12))
def test_batch_after_batch_is_what_the_definition_says(seed, sizes):
    rng, longest, calibrated = np.random.default_rng(seed), 8, 30
    coordinates = [rng.normal(0.3, 1.0, (size, 5)) for size in sizes]
    tails = {"first": Tail(1.0, 2.0, 0.01), "second": Tail(2.0, 1.0, 0.02)}
    expected, every = brute_force(coordinates, PARTS, calibrated, longest)
    memory = Memory.empty(PARTS)
    for batch, evidence in zip(coordinates, expected, strict=True):
        memory = memory.after(batch, longest)
        finding = find_shift(memory, PARTS, tails, calibrated)
        said = [tails[name].log_once_in(e) - math.log(2) for name, e in zip(PARTS, evidence, strict=True)]
        np.testing.assert_allclose(list(finding.log_once_in.values()), said)
    assert finding.part == list(PARTS)[int(np.argmax(said))]
    best = every[:, int(np.argmax(said))]
    np.testing.assert_allclose(best[finding.window - 1], best.max())


def test_streams_side_by_side_are_read_as_one_by_one():
    rng, batch_size, calibrated = np.random.default_rng(0), 4, 9
    coordinates = rng.normal(size=(3, 20, batch_size, 5))
    found = window_evidence(coordinates.sum(2), batch_size, PARTS, calibrated)
    longest = longest_window(calibrated, batch_size)
    assert longest == 4
    for stream, read in zip(coordinates, found, strict=True):
        np.testing.assert_allclose(read, brute_force(list(stream), PARTS, calibrated, longest)[0])


def test_the_tail_of_an_exponential_is_found():
    peaks = np.random.default_rng(0).exponential(2.0, 200_000) + 5.0
    tail = fit_tail(peaks, num_batches=50)
    # one stretch of 50 in 1,000 goes beyond 5 + 2 log 1000
    assert math.exp(tail.log_once_in(5 + 2 * math.log(1000))) == pytest.approx(50_000, rel=0.1)


def test_the_stated_rate_holds_on_fresh_rows():
    """Fresh streams of skewed rows are compared with calibrations of their own."""
    generator, parts, rate, size = torch.Generator().manual_seed(0), {"all": 4}, 1 / 500, 16
    longest, alarms, batches = longest_window(300, size), 0, 0

    def draw(count):
        return -torch.rand((count, 4), generator=generator, dtype=torch.float64).log()

    for i in range(12):
        calibration = draw(300)
        fitted = Coordinates.fit(calibration, 4)
        tail = learn_tails(fitted.of(calibration), parts, size, seed=i)["all"]
        sums = fitted.of(draw(40 * 3 * longest * size)).view(40, 3 * longest, size, 4).sum(2).numpy()
        evidence = window_evidence(sums, size, parts, 300)[:, longest:, 0]
        level = tail.start + tail.scale * math.log(tail.rate / rate)
        alarms += (evidence.reshape(80, longest) > level).any(1).sum()
        batches += evidence.size
    # 30,720 batches in 12 calibrations: 61 alarms are expected, of which those of one calibration come together;
    # without the calibration's own error there would be 300 and more
    assert 0.3 * rate < alarms / batches < 2.5 * rate


def test_learning_is_repeatable_and_touches_no_global_randomness():
    rows = torch.randn(200, 5, generator=torch.Generator().manual_seed(0))
    state = torch.get_rng_state()
    assert learn_tails(rows, PARTS, 50, seed=3) == learn_tails(rows, PARTS, 50, seed=3)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_memory_is_bounded_and_batches_larger_than_the_calibration_are_refused():
    assert longest_window(10**9, 1) == 256 and longest_window(2_000, 64) == 64 and longest_window(10, 10) == 2
    memory = Memory.empty(PARTS)
    for _ in range(5):
        memory = memory.after(np.ones((2, 5)), longest=3)
    assert memory.sums.shape == (3, 5) and memory.counts.tolist() == [2, 2, 2]
    with pytest.raises(SgoifError, match="batches of 11"):
        longest_window(10, 11)
