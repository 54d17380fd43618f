"""A model of the noise says what Bayes says."""

import numpy as np
import torch

from sgoif.judging.noise import NoiseModel
from sgoif.judging.pool import Pool


def build(seed=0, count=50, classes=4, **settings):
    rng = np.random.default_rng(seed)
    p, transition = rng.dirichlet(np.ones(classes), count), rng.dirichlet(np.ones(classes), classes)
    transition = 0.6 * np.eye(classes) + 0.4 * transition
    given = rng.integers(0, classes, count)
    pool = Pool([torch.from_numpy(p).log().float()], torch.ones(1))
    return p, transition, given, NoiseModel(pool, transition, torch.from_numpy(given), is_recovered=True)


def test_posterior_and_likelihood_are_those_of_bayes():
    p, transition, given, model = build()
    joint = p * transition[:, given].T
    found = model.posterior(slice(None)).numpy()
    np.testing.assert_allclose(found, joint / joint.sum(1, keepdims=True), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(model.log_likelihood().numpy(), np.log(joint.sum(1)), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(model.class_sizes(), (joint / joint.sum(1, keepdims=True)).sum(0), rtol=1e-4)
    assert model.total() == float(model.log_likelihood().sum())
    some = torch.tensor([3, 7])
    torch.testing.assert_close(model.log_likelihood(some), model.log_likelihood()[some])


def test_predictions_of_the_given_class_are_recovered_first():
    p, transition, given, _ = build()
    seen = torch.from_numpy(p @ transition).log().float()
    found = NoiseModel(Pool([seen], torch.ones(1)), transition, torch.from_numpy(given))
    np.testing.assert_allclose(found.true(slice(None)).numpy() @ transition, p @ transition, atol=0.05)


def test_others_are_judged_by_the_same_model():
    _, _, given, model = build()
    (logs,) = model.pool.logs
    found = model.of_others([logs[10:20]], torch.from_numpy(given[10:20]))
    torch.testing.assert_close(found.posterior(slice(None)), model.posterior(slice(10, 20)))
    assert np.allclose(1 - np.diag(model.scaled(0.5).transition), 0.5 * (1 - np.diag(model.transition)), rtol=0.3)
