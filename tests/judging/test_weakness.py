"""Weak predictions contradict labels as wrong labels do: what is believed of either, where the truth is known."""

import numpy as np
import pytest
import torch

from sgoif.judging.fitting import fit_noise
from sgoif.judging.heads import PredictedHead
from tests.judging.made import make


def settle(**settings):
    made = make(**settings)
    fitted = fit_noise([PredictedHead(torch.from_numpy(made.logs).float())], made.given, made.logs.shape[1])
    return made, fitted.belief


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("apart", [1.5, 2.5, 3.5])
def test_many_errors_are_counted_whether_predictions_are_strong_or_weak(apart, pairs):
    made, belief = settle(apart=apart, rate=0.1, pairs=pairs)
    assert belief.kind == "counted" and belief.evidence > 5
    assert 0.5 < belief.rate / made.wrong.mean() < 2
    assert belief.lowest is not None and belief.highest is None


@pytest.mark.parametrize("seed", range(3))
def test_of_a_weak_model_without_errors_nobody_can_tell(seed):
    """A sixth of the most sure labels seem wrong; the model's own doubt explains them as well."""
    _, belief = settle(apart=1.5, rate=0.0, seed=seed)
    assert belief.kind == "unknown" and belief.evidence < 5
    assert np.array_equal(belief.lowest.transition, np.eye(4))  # there may be none


@pytest.mark.parametrize("seed", range(3))
def test_a_strong_model_without_errors_shows_none(seed):
    _, belief = settle(apart=3.5, rate=0.0, seed=seed)
    assert belief.kind == "clean"


def test_errors_at_an_even_rate_are_spread_where_the_labels_rule_out_none():
    made, belief = settle(apart=1.5, rate=0.02, pairs=True)
    assert belief.kind == "spread" and belief.evidence < 5
    leaks = belief.likely.transition[~np.eye(4, dtype=bool)]
    assert leaks.max() == leaks.min() and 0.5 < belief.rate / made.wrong.mean() < 2
    rates = [1 - model.transition[0, 0] for model in (belief.lowest, belief.likely, belief.highest)]
    assert 0 < rates[0] <= rates[1] <= rates[2] and rates[0] < made.wrong.mean() < rates[2]


def test_what_is_believed_of_some_holds_for_others():
    made, belief = settle(rate=0.03)  # of few errors heads are not fitted again
    logs = torch.from_numpy(made.logs[:50]).float()
    found = belief.of_others([logs], torch.from_numpy(made.given[:50]))
    assert found.kind == belief.kind
    torch.testing.assert_close(found.likely.posterior(slice(None)), belief.likely.posterior(slice(0, 50)))
