"""The faithfulness benchmark on a problem small enough to differentiate by retraining."""

import numpy as np
import pytest
import torch

from benchmarks import exactness, faithfulness
from benchmarks.agreement import ceiling, pearson, reliability, spearman
from benchmarks.attributors import subjects
from benchmarks.convex import SoftmaxProblem
from benchmarks.exactness import Truth


def synthetic(count, seed, l2=1e-2):
    """Three classes, six features: labels from a fixed linear rule and noise."""
    rule = torch.randn(6, 3, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(count, 6, generator=generator, dtype=torch.float64)
    noise = torch.randn(count, 3, generator=generator, dtype=torch.float64)
    labels = (features @ rule + noise).argmax(1)
    return SoftmaxProblem(torch.cat([features, features.new_ones(count, 1)], dim=1), labels, 3, l2)


@pytest.fixture(scope="module")
def truth():
    return Truth(synthetic(60, seed=0), synthetic(20, seed=1))


def test_the_hessian_is_that_of_autograd(truth):
    theta = truth.theta[:, 0]
    weights = truth.train.uniform()
    hessian = torch.autograd.functional.hessian(lambda t: truth.train.objective(t[:, None], weights)[0], theta)
    torch.testing.assert_close(truth.operator.to_dense(), hessian)
    torch.testing.assert_close(truth.operator.matmul(torch.eye(len(theta), dtype=torch.float64)), hessian)


def test_many_models_are_fitted_as_one_by_one(truth):
    weights = torch.rand(60, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64) / 30
    together = truth.train.fit(weights, truth.theta.expand(-1, 3), truth.inverse)
    for k in range(3):
        torch.testing.assert_close(together[:, [k]], truth.train.fit(weights[:, [k]]), atol=1e-7, rtol=0)


def test_exact_influence_is_the_derivative_of_retraining(truth):
    h = 1e-5  # central differences: an error of h² beside one of 1e-12/h from the fit
    n = truth.train.num_examples
    steps = h * torch.eye(n, dtype=torch.float64)
    up, down = (
        truth.test.losses(truth.train.fit(truth.train.uniform() + s, truth.theta.expand(-1, n), tolerance=1e-12))
        for s in (steps, -steps)
    )
    slopes = ((up - down) / (2 * h)).mT  # d loss_v / d w_i, [n, V]
    np.testing.assert_allclose(truth.scores, slopes.numpy(), atol=1e-5 * np.abs(truth.scores).max())


def test_every_solver_meets_its_bar(truth):
    rows = exactness.solver_rows(truth, columns=20, rank=10)
    assert len(rows) == 5
    for row in rows:
        assert row["residual"] < exactness.TOLERANCE, row
        assert row["lowest_pearson"] >= 0.999, row


def test_removal_changes_the_loss_as_predicted(truth):
    removed = exactness.remove(truth, 20)
    plain, newton = (exactness.removal_row(truth, removed, newton=each) for each in (False, True))
    assert plain["median_slope"] > 0.8  # the sign is right; sixty points are few, so that a removal is no small step
    assert plain["pearson"] > 0.95
    assert newton["pearson"] > plain["pearson"]
    little = exactness.removal_row(truth, exactness.remove(truth, 20, share=1e-3))
    assert little["lowest"] > 0.99999
    assert little["median_slope"] == pytest.approx(1, abs=0.01)


def test_the_newton_step_uses_the_hessian_that_is_left(truth):
    example = 7
    weights = truth.train.uniform()
    weights[example] = 0.0
    left = truth.train.hessian(truth.theta, weights).to_dense()
    gradient = truth.train.example_gradients(truth.theta)[:, [example]]
    expected = -(truth.gradients.mT @ torch.linalg.solve(left, gradient)).mT
    inverse = truth.inverse.inverse
    found = truth.train.newton_influence(truth.theta, inverse, truth.directions, torch.tensor([example]))
    torch.testing.assert_close(found, expected)


def test_subsets_rank_as_predicted(truth):
    row = exactness.subset_row(truth, exactness.retrain_subsets(truth, 30, 0.5))
    assert row["lds"] > 0.8
    assert row["share"] == 0.5


def test_backends_go_through_the_library_and_rank_like_the_truth(truth):
    rows = exactness.backend_rows(truth, exactness.remove(truth, 5), exactness.retrain_subsets(truth, 5, 0.5))
    assert {row["backend"] for row in rows} == {name for name, *_ in exactness.BACKENDS}
    assert all(row["pearson"] > 0.7 for row in rows)  # a wrong layout of the parameters gives about zero


def test_confidence_rises_as_the_error_falls(truth):
    rows = faithfulness.ladder(truth, points=5, rungs={"richardson": (1, 10, 100), "cg": (1, 5, 15)})
    summary = faithfulness.ladder_summary(rows)
    assert summary["bound_holds"] == 1.0
    assert summary["residual_vs_score_error"]["all"] > 0.9


def test_bars_say_what_was_missed():
    row = {"solver": "cg", "pearson": 1.0, "residual": 1e-3}
    bars = faithfulness.convex_bars({"solvers": [row], "removals": [{"pearson": 0.995}], "subsets": [{"lds": 0.5}]})
    assert [each["met"] for each in bars] == [False, True, False]


def test_correlations_agree_with_numpy_and_share_ranks():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 30, 4))
    expected = [np.corrcoef(a[:, k], b[:, k])[0, 1] for k in range(4)]
    np.testing.assert_allclose(pearson(a, b), expected)
    np.testing.assert_allclose(spearman(np.exp(a), a), 1.0)
    np.testing.assert_allclose(spearman([0, 1, 1, 2], [0, 1.5, 1.5, 5]), 1.0)
    assert pearson(np.ones(5), np.arange(5)) == 0


def test_reliability_averages_within_bins():
    bins = reliability([0, 0.1, 0.2, 1.0], {"error": np.array([4.0, 1.0, 3.0, 0.0])}, edges=(0, 0.5))
    assert [(b["count"], b["means"]["error"]) for b in bins] == [(1, 4.0), (2, 2.0), (1, 0.0)]


def random_digits(count, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 10, (count,), generator=generator)
    return subjects.Digits(torch.rand(count, 784, generator=generator), labels)


def test_the_ceiling_is_one_without_noise_and_low_with_nothing_else():
    rng = np.random.default_rng(0)
    same = rng.normal(size=(50, 20))
    assert ceiling(np.stack([same, same]), spearman) == pytest.approx(1)
    assert ceiling(rng.normal(size=(2, 50, 20)), spearman) < 0.5
    signal, noise = rng.normal(size=(400, 20)), rng.normal(size=(2, 400, 20))  # the mean of two has reliability 2/3
    assert ceiling(signal + noise, spearman) == pytest.approx((2 / 3) ** 0.5, abs=0.03)


def test_training_repeats_itself_and_retraining_is_read_from_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("SGOIF_CACHE", str(tmp_path))
    monkeypatch.setitem(subjects.RECIPE, "epochs", 2)
    training, test = random_digits(20, seed=0), random_digits(5, seed=1)
    members = np.arange(20)[None] < 10
    first = subjects.half_losses(training, test, members, repeats=2)
    assert not np.allclose(first[0], first[1])  # another repeat starts and shuffles differently
    monkeypatch.setattr(subjects, "train", None)
    np.testing.assert_array_equal(subjects.half_losses(training, test, members, repeats=2), first)
    monkeypatch.undo()
    once, again = (subjects.train(training, seed=3, checkpoints=2) for _ in range(2))
    assert len(once) == 2
    torch.testing.assert_close(once[1], again[1], rtol=0, atol=0)
