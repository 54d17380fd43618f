"""A head of verified held-out labels, and its last word on examples."""

import numpy as np
import torch

from sgoif.judging.probe import fit_probe, last_word


def features(count=400, seed=0):
    rng = np.random.default_rng(seed)
    truth = np.arange(count) % 3
    return torch.from_numpy(rng.normal(size=(count, 6)) + 2 * np.eye(3, 6)[truth]).float(), truth


def test_the_last_word_leaves_the_given_class_out_of_the_others():
    log_p = torch.randn(50, 4, generator=torch.Generator().manual_seed(0)).log_softmax(1)
    given = torch.arange(50) % 4
    p, margin, runner_up = last_word(log_p, given)
    for i in range(50):
        others = log_p[i].clone()
        others[given[i]] = -torch.inf
        assert runner_up[i] == others.argmax() != given[i]
        torch.testing.assert_close(margin[i], log_p[i, given[i]] - others.max())
        torch.testing.assert_close(p[i], log_p[i, given[i]].exp())


def test_a_probe_predicts_held_out_rows_by_weights_that_have_not_seen_them():
    rows, truth = features()
    probe = fit_probe(rows, truth, 3)
    assert (probe.held_logs.argmax(1).numpy() == truth).mean() > 0.8
    shuffled = np.random.default_rng(0).permutation(truth)
    blind = fit_probe(rows, shuffled, 3)
    assert abs((blind.held_logs.argmax(1).numpy() == shuffled).mean() - 1 / 3) < 0.1  # fitted to them it would be more
    others, wanted = features(seed=1)
    assert (probe.logs(others).argmax(1).numpy() == wanted).mean() > 0.8
    torch.testing.assert_close(probe.logs(others).exp().sum(1), torch.ones(400))


def test_a_probe_does_not_depend_on_the_scale_of_features():
    rows, truth = features()
    moved = rows * torch.tensor([1e3, 1e-3, 1.0, 1.0, 1.0, 1.0]) + 7
    found, expected = fit_probe(moved, truth, 3), fit_probe(rows, truth, 3)
    torch.testing.assert_close(found.logs(moved), expected.logs(rows), rtol=1e-2, atol=1e-2)


def test_of_one_class_there_is_none():
    assert fit_probe(features()[0], np.zeros(400, np.int64), 3) is None
