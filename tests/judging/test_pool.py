"""Several classifiers as one."""

from itertools import pairwise

import numpy as np
import torch

from sgoif.judging.folds import make_folds
from sgoif.judging.linear import LinearHead
from sgoif.judging.pool import Doubt, Pool, blocks, fit_pool, recover_logs
from tests.judging.made import clusters


def test_a_pool_is_the_product_of_powers():
    rng = np.random.default_rng(0)
    parts = [rng.dirichlet(np.ones(4), 20) for _ in range(2)]
    pool = Pool([torch.from_numpy(p).log() for p in parts], torch.tensor([0.5, 2.0]))
    expected = parts[0] ** 0.5 * parts[1] ** 2
    np.testing.assert_allclose(pool.predict(slice(None)), expected / expected.sum(1, keepdims=True), rtol=1e-5)
    assert len(pool) == 20 and pool.num_classes == 4
    torch.testing.assert_close(
        pool.with_logs([log_p[3:5] for log_p in pool.logs]).predict(slice(None)), pool.predict(slice(3, 5))
    )


def test_doubt_goes_to_the_classes_that_are_confused():
    p = torch.tensor([[0.7, 0.2, 0.1], [1.0, 0.0, 0.0]])
    near = torch.tensor([[-1.0, 1.0, 0.0], [1.0, -1.0, 0.0], [0.5, 0.5, -1.0]])
    found = Doubt(0.5, near).spread(p)
    expected = p + 0.5 * torch.tensor([[0.3], [0.0]]) * (p @ near)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(found[1], p[1])  # who has no doubt is not weak


def test_exponents_kept_in_their_ratio():
    rng = np.random.default_rng(0)
    truth = torch.arange(600) % 3
    logs = [torch.from_numpy(rng.normal(size=(600, 3)) + 2 * np.eye(3)[truth]).float().log_softmax(1) for _ in range(2)]
    pool = fit_pool(logs, truth, np.eye(3), torch.tensor([0.4, 0.1]), is_tied=True)
    np.testing.assert_allclose(pool.exponents[0] / pool.exponents[1], 4, rtol=1e-5)


def test_blocks_cover_all_once():
    found = list(blocks(10_000_000, 50))
    assert len(found) > 1 and found[0].start == 0 and found[-1].stop == 10_000_000
    assert all(one.stop == other.start for one, other in pairwise(found))


def test_recovered_logs_are_seen_through_the_noise_as_they_were():
    rng = np.random.default_rng(0)
    noise = 0.8 * np.eye(4) + 0.05
    seen = torch.from_numpy(rng.dirichlet(np.full(4, 0.4), 50) @ noise)
    found = recover_logs(seen.log().half(), torch.from_numpy(noise)).double().exp()
    np.testing.assert_allclose(found.numpy() @ noise, seen, atol=0.03)


def test_exponents_do_not_run_away_on_a_few_labels_that_a_transition_explains():
    rng = np.random.default_rng(0)
    truth = torch.arange(300) % 2
    given = torch.where(torch.from_numpy(rng.random(300) < 0.05), 1 - truth, truth)
    sure = torch.from_numpy(rng.uniform(0.6, 0.99, 300)).float()
    p = torch.where(truth[:, None] == torch.arange(2), sure[:, None], 1 - sure[:, None])
    noise = np.array([[0.95, 0.05], [0.05, 0.95]])
    pool = fit_pool([p.log()], given, noise, torch.tensor([1.0]))
    assert pool.exponents[0] < 5  # likelihood alone has no end


def test_a_pool_is_as_likely_as_its_best_head_and_ignores_a_useless_one():
    rows, truth, rng = clusters(1000)
    folds, labels = make_folds(np.arange(1000), truth), torch.from_numpy(truth)
    good = LinearHead(rows, 4, folds).fit(labels)
    noise = torch.from_numpy(rng.normal(size=(1000, 4))).float().log_softmax(1)
    timid = (good.exp() * 0.5 + 0.125).log()
    pool = fit_pool([good, noise, timid], labels)

    def likelihood(p):
        return float(p.gather(1, labels[:, None]).log().mean())

    best = max(likelihood(x.exp()) for x in (good, noise, timid))
    assert likelihood(pool.predict(slice(None))) >= best - 1e-4
    assert pool.exponents[1] < 0.1
