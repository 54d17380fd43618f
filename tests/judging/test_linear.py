"""The regression behind a linear head, beside converged ones."""

import numpy as np
import torch

from sgoif.judging.linear import fit_softmax
from tests.judging.made import clusters


def test_the_whitened_regression_is_that_of_a_converged_reference():
    from sklearn.linear_model import LogisticRegression

    rows, truth, _ = clusters(400, width=24)
    found = fit_softmax(rows, torch.from_numpy(truth), 4, penalty=10.0)
    reference = LogisticRegression(C=1 / 10.0, tol=1e-10, max_iter=5_000).fit(rows.double().numpy(), truth)
    mine = torch.addmm(found[-1], rows, found[:-1]).softmax(1).numpy()
    np.testing.assert_allclose(mine, reference.predict_proba(rows.double().numpy()), atol=2e-3)


def test_a_regression_through_noise_predicts_the_true_class():
    rows, truth, rng = clusters(2000, spread=2.0)
    given = np.where((truth == 0) & (rng.random(2000) < 0.4), 1, truth)
    noise = np.eye(4)
    noise[0] = [0.6, 0.4, 0, 0]
    transition = torch.from_numpy(noise).float()
    plain = fit_softmax(rows, torch.from_numpy(given), 4, 10.0)
    aware = fit_softmax(rows, torch.from_numpy(given), 4, 10.0, transition)
    share = [(torch.addmm(w[-1], rows, w[:-1]).argmax(1).numpy() == truth)[truth == 0].mean() for w in (plain, aware)]
    assert share[1] > share[0] + 0.1 and share[1] > 0.85


def test_a_regression_in_blocks_is_the_same(monkeypatch):
    rows, truth, _ = clusters(400, width=24)
    noise = 0.9 * torch.eye(4) + 0.025
    found = [fit_softmax(rows, torch.from_numpy(truth), 4, 10.0, noise)]
    monkeypatch.setattr("sgoif.judging.linear._IN_CACHE", 4 * 150)  # blocks of 150, 150 and 100 examples
    found.append(fit_softmax(rows, torch.from_numpy(truth), 4, 10.0, noise))
    torch.testing.assert_close(*found, atol=1e-4, rtol=1e-3)
