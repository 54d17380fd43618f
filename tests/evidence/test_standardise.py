import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgoif.errors import SgoifError
from sgoif.evidence import Standardiser


def steps_of_scores(seed, num_steps=6, size=32):
    rng = np.random.default_rng(seed)
    return [rng.standard_t(3, size) * (1 + step) + step for step in range(num_steps)]


def resumed(signal):
    other = Standardiser()
    other.load_state_dict(signal.state_dict())
    return other


def test_running_values_are_an_average_over_steps_with_decay_0_9():
    steps = steps_of_scores(1)
    signal = Standardiser()
    centre = scale = None
    for scores in steps:
        signal = resumed(signal)
        median = np.median(scores)
        mad = np.median(abs(scores - median))
        centre = median if centre is None else 0.9 * centre + 0.1 * median
        scale = mad if scale is None else 0.9 * scale + 0.1 * mad
        found = signal.apply(scores)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, np.clip((scores - centre) / scale, -6, 6), rtol=1e-5, atol=1e-6)


@given(
    seed=st.integers(0, 2**31),
    power=st.integers(-12, 12),
    mantissa=st.floats(1, 9.99),
    shift=st.floats(-1e3, 1e3),
    temperature=st.sampled_from([None, 2.0]),
)
def test_units_and_offset_of_the_scores_do_not_matter(seed, power, mantissa, shift, temperature):
    one, other = Standardiser(temperature=temperature), Standardiser(temperature=temperature)
    factor = mantissa * 10.0**power
    for scores in steps_of_scores(seed):
        # float32 results; the shift is in units of the scores, so float64 keeps 12 digits of them
        np.testing.assert_allclose(one.apply(scores), other.apply(factor * (scores + shift)), rtol=1e-5, atol=1e-6)


@given(seed=st.integers(0, 2**31))
def test_winsorised_always_and_bent_by_a_temperature(seed):
    scores = np.concatenate([steps_of_scores(seed)[0], [1e9, -1e9]])
    plain = Standardiser().apply(scores)
    assert abs(plain).max() == 6
    np.testing.assert_allclose(Standardiser(temperature=3.0).apply(scores), np.tanh(plain / 3), rtol=1e-5)


def test_what_is_not_finite_is_flagged_and_moves_nothing():
    scores = steps_of_scores(2)[0]
    clean, dirty = Standardiser(), Standardiser()
    expected = clean.apply(scores)
    found = dirty.apply(np.concatenate([scores, [np.nan, np.inf, -np.inf]]))
    np.testing.assert_array_equal(found[:-3], expected)
    assert np.isnan(found[-3:]).all()
    assert (dirty.centre, dirty.scale) == (clean.centre, clean.scale)


def test_small_steps_use_running_values_and_pool_until_eight():
    signal = Standardiser()
    assert np.isnan(signal.apply([1.0, 2.0, 3.0, 4.0])).all()  # nothing to measure by yet
    signal = resumed(signal)
    found = signal.apply([5.0, 6.0, 7.0, 8.0])
    assert signal.num_steps == 1 and np.isfinite(found).all()
    whole = Standardiser()
    whole.apply(np.arange(1.0, 9.0))
    assert (signal.centre, signal.scale) == (whole.centre, whole.scale)


@pytest.mark.parametrize("constant", [0.0, 0.1, -3e7])
def test_a_step_without_spread_moves_nothing(constant):
    signal = Standardiser()
    signal.apply(np.arange(9.0))
    before = signal.centre, signal.scale
    found = signal.apply(np.full(20, constant))
    assert (signal.centre, signal.scale) == before
    np.testing.assert_allclose(found, np.clip((constant - before[0]) / before[1], -6, 6), rtol=1e-6)


@pytest.mark.parametrize("settings", [{"decay": 1.0}, {"temperature": 0.0}])
def test_settings_are_checked(settings):
    with pytest.raises(SgoifError):
        Standardiser(**settings)


def test_inputs_are_checked():
    with pytest.raises(SgoifError, match="vector"):
        Standardiser().apply(np.zeros((2, 2)))
    with pytest.raises(SgoifError, match="lacks"):
        Standardiser().load_state_dict({"centre": 0.0})
