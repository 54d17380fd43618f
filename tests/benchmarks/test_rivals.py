"""The rivals: each does what its paper says, and one short training serves them all."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from benchmarks import loops
from benchmarks.rivals import attribution, compare, methods
from benchmarks.rivals.case import Case, fresh_model, make_case, train_bare
from benchmarks.trainings import Setup, train

SMALL = Setup(setting="sym-40", examples=400, epochs=2)


def small_case(count=400, num_trusted=40, seed=0) -> Case:
    """Pictures of four plain colours under noise, a fifth of them with a wrong label."""
    rng = torch.Generator().manual_seed(seed)

    def pictures(labels):
        colours = F.one_hot(labels, 4).float()[:, :3, None, None] * 2
        images = colours + 0.3 * torch.randn(len(labels), 3, 16, 16, generator=rng)
        return images.contiguous(memory_format=torch.channels_last)

    clean, trusted = torch.arange(count) % 4, torch.arange(num_trusted) % 4
    given = clean.clone()
    given[::5] = (clean[::5] + 1) % 4
    recipe = loops.Recipe(num_epochs=4, batch_size=20, bf16=False, lr=0.05)
    return Case(pictures(clean), given, clean.numpy(), pictures(trusted), trusted, 4, recipe, seed)


@pytest.fixture(scope="module")
def case():
    return small_case()


@pytest.fixture(scope="module")
def bare(case):
    torch.set_num_threads(1)
    return train_bare(case)


def visits(*rows):
    names = ("id", "epoch", "margin", "p_given", "loss", "el2n")
    filled = [(*row, 0.0, 0.0) for row in rows]
    return {name: np.array(column) for name, column in zip(names, zip(*filled))}


def test_forgetting_counts_falls_from_right_to_wrong():
    found = visits(
        *((0, epoch, margin, 0.5) for epoch, margin in enumerate([1.0, -1.0, 1.0, -1.0])),  # forgotten twice
        *((1, epoch, margin, 0.5) for epoch, margin in enumerate([-1.0, 1.0, 1.0, 1.0])),  # learnt late, kept
        *((2, epoch, -1.0, 0.5) for epoch in range(4)),  # never right
    )
    order = np.random.default_rng(0).permutation(12)
    shuffled = {name: column[order] for name, column in found.items()}
    assert methods.forgetting_events(shuffled, 3).tolist() == [2, 0, 4]


def test_data_iq_is_confidence_and_aleatoric_uncertainty():
    scores = methods.score_visits(visits((0, 0, 1.0, 0.2), (0, 1, 1.0, 0.6), (1, 0, -1.0, 0.9), (1, 1, 3.0, 0.7)), 2)
    np.testing.assert_allclose(scores["Data-IQ, confidence"], [0.6, 0.2])
    np.testing.assert_allclose(scores["Data-IQ, aleatoric"], [0.2, 0.15])
    np.testing.assert_allclose(
        scores["Data-IQ, hard"], scores["Data-IQ, confidence"] - scores["Data-IQ, aleatoric"], atol=1e-12
    )
    np.testing.assert_allclose(scores["AUM"], [-1, -1])


def test_the_transition_is_the_mean_prediction_of_each_true_class():
    probabilities = torch.tensor([[0.8, 0.2, 0.0], [0.6, 0.4, 0.0], [0.1, 0.9, 0.0]])
    matrix = methods.transition(probabilities, torch.tensor([0, 0, 1]))
    torch.testing.assert_close(matrix, torch.tensor([[0.7, 0.3, 0.0], [0.1, 0.9, 0.0], [0.0, 0.0, 1.0]]))


def test_the_posterior_of_the_given_label_is_bayes():
    matrix = torch.tensor([[0.7, 0.3], [0.1, 0.9]])
    posterior = methods.given_posterior(torch.tensor([[0.5, 0.5], [0.5, 0.5]]), torch.tensor([0, 1]), matrix)
    torch.testing.assert_close(posterior, torch.tensor([0.7 / 0.8, 0.9 / 1.2]))


def test_tracin_sums_the_squared_gradients_of_the_head(case, bare):
    pytest.importorskip("captum")
    found = attribution.find_tracin(case, bare)["TracIn, last layer"]
    expected = np.zeros(len(case.given))
    model = fresh_model(case).eval()
    for checkpoint in bare.checkpoints:
        model.load_state_dict(checkpoint.state)
        with torch.no_grad():
            features = methods.penultimate(model, case.images, case.recipe)
            residual = model.head(features).softmax(1) - F.one_hot(case.given, 4)
        # of the weight alone: captum leaves the bias out
        expected += checkpoint.learning_rate * (residual.square().sum(1) * features.square().sum(1)).numpy()
    np.testing.assert_allclose(found.scores, expected, rtol=1e-3)


def test_ekfac_of_the_head_ranks_as_the_exact_fisher_does(case, bare):
    pytest.importorskip("kronfluence")
    found = attribution.find_ekfac(case, bare)["EK-FAC self-influence, head"].scores
    with torch.no_grad():
        features = methods.penultimate(bare.model, case.images, case.recipe)
        p = bare.model.head(features).softmax(1).double()
    inputs = torch.cat([features, torch.ones(len(features), 1)], 1).double()
    residual = p - F.one_hot(case.given, 4)
    gradients = (residual[:, :, None] * inputs[:, None, :]).flatten(1)
    per_class = p.diag_embed() - p[:, :, None] * p[:, None, :]
    fisher = sum(torch.kron(h, x[:, None] * x[None, :]) for h, x in zip(per_class, inputs)) / len(inputs)
    damped = fisher + 0.1 * fisher.diagonal().mean() * torch.eye(len(fisher))
    exact = (gradients * torch.linalg.solve(damped, gradients.mT).mT).sum(1).numpy()
    # 0.996 was seen; the squared length of the gradient, which is what no curvature gives, reaches 0.58
    assert np.corrcoef(np.argsort(np.argsort(found)), np.argsort(np.argsort(exact)))[0, 1] > 0.98


@pytest.mark.data
@pytest.mark.usefixtures("narrow_networks")
def test_the_bare_training_is_the_monitored_one():
    monitored, bare = train(SMALL, cached=False), train_bare(make_case(SMALL))
    order = [np.lexsort((visits["id"], visits["epoch"])) for visits in (monitored.visits, bare.visits)]
    for name in ("id", "epoch", "loss", "margin", "p_given", "el2n"):
        ours, theirs = (visits[name][rows] for visits, rows in zip((monitored.visits, bare.visits), order))
        np.testing.assert_allclose(theirs, ours, rtol=1e-3, atol=1e-3, err_msg=name)


def test_f1_at_the_noise_rate_equals_precision_and_recall():
    wrong = np.array([True, True, False, False, True, False])
    assert compare.report_on(np.array([5.0, 4, 3, 2, 1, 0]), wrong)["f1"] == pytest.approx(100 * 2 / 3)
    flags = compare.flag_report(np.array([True, False, True, False, False, False]), wrong)
    assert (flags["precision"], flags["flagged"]) == (50, 2)
    assert flags["recall"] == pytest.approx(100 / 3)
    assert flags["f1"] == pytest.approx(40)


def test_the_loss_average_forgets_by_epoch():
    found = {**visits((0, 0, 1.0, 0.5), (0, 1, 1.0, 0.5)), "loss": np.array([2.0, 1.0])}
    expected = (0.9 * 2 + 1) / 1.9
    np.testing.assert_allclose(methods.score_visits(found, 1)["loss EMA"], [expected])


def test_a_probe_sees_what_the_hold_out_knows():
    rng = np.random.default_rng(0)
    truth = np.arange(200) % 2
    features = torch.from_numpy(np.stack([truth * 4 - 2, np.zeros(200)], 1) + rng.normal(size=(200, 2)))
    given = torch.from_numpy(np.where(np.arange(200) < 20, 1 - truth, truth))
    margin = methods.probe_margin(features[100:], torch.from_numpy(truth[100:]), features, given, 3)
    assert (margin[:20] < 0).mean() > 0.8 and (margin[20:] > 0).mean() > 0.8


def test_confident_learning_predicts_what_it_has_not_seen():
    pytest.importorskip("cleanlab")
    case = small_case(160)
    bare = train_bare(case)
    found = methods.find_confident(case, bare)
    assert list(found) == list(methods.CONFIDENT)
    first = next(iter(found.values()))
    assert first.flags is not None and first.flags.dtype == bool
    assert first.scores[case.wrong].mean() > first.scores[~case.wrong].mean()
    assert first.seconds > bare.seconds  # four trainings on three quarters
