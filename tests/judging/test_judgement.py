"""From a fitted noise to probabilities with ranges."""

import numpy as np
import pytest
import torch

from sgoif.evidence import measure_competence
from sgoif.judging.fitting import fit_noise
from sgoif.judging.heads import PredictedHead
from sgoif.judging.judgement import _scales, judge_fitted, judge_others, why_no_probabilities
from tests.judging.made import make


def fit(made):
    return fit_noise([PredictedHead(torch.from_numpy(made.logs).float())], made.given, made.logs.shape[1])


@pytest.mark.parametrize("count", [1, 3, 10, 100, 2_000])
def test_ends_are_those_of_a_poisson_count(count):
    stats = pytest.importorskip("scipy.stats")
    exact = stats.chi2.ppf(0.05, 2 * count) / 2, stats.chi2.ppf(0.95, 2 * count + 2) / 2
    np.testing.assert_allclose(np.multiply(_scales(count), count), exact, rtol=0.02, atol=0.02)
    assert _scales(0)[0] == 0 < _scales(0)[1]


def test_ends_of_a_range_are_where_fewer_and_more_errors_are():
    made = make(600, rate=0.03)
    found = judge_fitted(fit(made))
    assert found.kind == "counted" and found.num_sure_wrong < 30
    unsure = (found.p > 0.2) & (found.p < 0.8)
    assert (
        unsure.any() and (found.p_low < found.p - 0.01)[unsure].all() and (found.p_high > found.p + 0.01)[unsure].all()
    )
    assert found.p_low.sum() < made.wrong.sum() < found.p_high.sum()


def test_others_are_judged_like_those_it_was_fitted_to():
    made = make(2000, rate=0.02)
    fitted = fit(made)
    assert not fitted.is_refitted  # then they were fitted to recovered predictions
    whole = judge_fitted(fitted)
    rows = np.arange(100, 160)
    some = judge_others(fitted, [torch.from_numpy(made.logs[rows]).float()], torch.from_numpy(made.given[rows]))
    for name, values in some._asdict().items():
        np.testing.assert_allclose(values, getattr(whole, name)[rows], atol=1e-6, err_msg=name)


def test_suggestions_are_the_likeliest_other_classes_in_order():
    made = make(600, classes=5)
    found = judge_fitted(fit(made))
    assert (found.suggested != made.given[:, None]).all() and (np.diff(found.p_suggested, axis=1) <= 1e-6).all()
    assert (found.p_suggested.sum(1) <= found.p + 1e-6).all()  # the given class and one more are not in it
    two = judge_fitted(fit(make(600, classes=2)))
    assert (two.suggested[:, 1:] == -1).all() and (two.p_suggested[:, 1:] == 0).all()
    np.testing.assert_allclose(two.p_suggested[:, 0], two.p, atol=1e-6)


def test_classes_that_are_some_of_all_keep_their_numbers():
    """Classes 1, 3 and 4 of five were judged, as 0, 1 and 2."""
    truth, classes = np.arange(300) % 3, np.array([1, 3, 4])
    log_p = (4 * torch.eye(3)[torch.from_numpy(truth)] + torch.rand(300, 3)).log_softmax(1)
    found = judge_fitted(fit_noise([PredictedHead(log_p)], truth, 3))
    moved = found.at_classes(classes, 5)
    np.testing.assert_array_equal(moved.suggested, np.where(found.suggested >= 0, classes[found.suggested], -1))
    assert set(moved.suggested[truth == 0, 0].tolist()) <= {3, 4} and (moved.suggested[:, 2] == -1).all()
    assert (moved.predicted == classes[truth]).mean() > 0.9
    assert moved.transition.shape == (5, 5) and moved.transition[3, 4] == found.transition[1, 2]


def test_why_there_is_no_number():
    good = measure_competence(np.arange(1000) < 900, np.arange(1000) % 2, 2)
    weak = measure_competence(np.arange(1000) < 510, np.arange(1000) % 2, 2)
    for kind in ("counted", "spread", "clean"):
        assert why_no_probabilities(kind, good) is None
        assert why_no_probabilities(kind, weak) == weak.why_not
    assert "between none and 11.7% of them may be wrong" in why_no_probabilities("unknown", good)
