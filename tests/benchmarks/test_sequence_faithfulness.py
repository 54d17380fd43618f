"""The linear datamodeling score of sequences, on a text of a few hundred characters."""

import numpy as np
import pytest
import torch

import tests.integrations.torchvision_operators  # noqa: F401

pytest.importorskip("transformers")

from benchmarks import records
from benchmarks.experiment import cells, measure
from benchmarks.sequences import attributors, retraining
from benchmarks.sequences import scores as scoring
from benchmarks.sequences.faithfulness import describe_bank, judge
from benchmarks.sequences.retraining import Half, Recipe

TINY = {"sequences": 12, "held": 6, "length": 12, "width": 32, "depth": 2, "batch": 3, "epochs": 2}


@pytest.fixture(autouse=True)
def folders(monkeypatch, tmp_path):
    """A text, results and a cache of their own."""
    text = tmp_path / "text" / "tinyshakespeare" / "input.txt"
    text.parent.mkdir(parents=True)
    text.write_text("".join("abcdefgh \n"[number] for number in np.random.default_rng(0).integers(10, size=600)))
    monkeypatch.setenv("SGOIF_DATA", str(tmp_path))
    monkeypatch.setenv("SGOIF_CACHE", str(tmp_path / "cache"))
    for module in (records, retraining):
        monkeypatch.setattr(module, "RESULTS", tmp_path)


@pytest.fixture
def halves():
    rng = np.random.default_rng(1)
    members = np.array([rng.permutation(40) < 20 for _ in range(60)])
    return members, rng.normal(size=(40, 8))


def test_an_oracle_reaches_one_and_its_opposite_minus_one(halves):
    members, effects = halves
    losses = np.stack([members @ effects] * 2)
    found = judge(members, losses, effects)
    assert found["lds"] == pytest.approx(1)
    assert found["low"] == pytest.approx(1)
    assert judge(members, losses, -effects)["lds"] == pytest.approx(-1)
    assert describe_bank(losses)["ceiling"] == pytest.approx(1)


def test_random_scores_are_near_zero_and_noise_lowers_the_ceiling(halves):
    members, effects = halves
    rng = np.random.default_rng(2)
    clean = members @ effects
    losses = clean + 3 * rng.normal(size=(2, *clean.shape))
    random = judge(members, losses, rng.normal(size=effects.shape))
    assert random["low"] < 0 < random["high"]
    assert abs(random["lds"]) < 0.15
    oracle, ceiling = judge(members, losses, effects), describe_bank(losses)["ceiling"]
    assert oracle["lds"] == pytest.approx(ceiling, abs=0.1)
    assert oracle["low"] < oracle["lds"] < oracle["high"] < 0.97
    assert describe_bank(losses[:1])["ceiling"] is None  # one seed cannot tell signal from noise


def test_queries_without_a_finite_score_count_as_zero(halves):
    members, effects = halves
    holed = effects.copy()
    holed[3, 0] = np.nan
    found = judge(members, (members @ effects)[None], holed)
    assert found["failed"] == 1
    assert found["lds"] == pytest.approx(7 / 8)


def test_a_retraining_sees_its_half_alone_in_the_order_of_all():
    recipe = Recipe(**TINY)
    members = retraining.members_of(recipe, 3)
    assert members.sum(1).tolist() == [6, 6, 6]
    np.testing.assert_array_equal(retraining.members_of(recipe, 2), members[:2])
    half, everyone = (
        torch.cat(list(retraining.batches(recipe, rows, seed=4))).tolist() for rows in (members[0], np.ones(12, bool))
    )
    assert half == [place for place in everyone if members[0][place]]
    assert sorted(half) == sorted(2 * np.flatnonzero(members[0]).tolist())


def test_the_texts_held_out_are_the_last_and_never_trained_on():
    texts = retraining.load_texts(Recipe(**TINY))
    assert texts.train.shape == (12, 12)
    assert texts.held.shape == (6, 12)
    whole = retraining.load_texts(Recipe(**{**TINY, "sequences": 44, "held": 6}))  # all that are left
    torch.testing.assert_close(whole.held, texts.held)
    assert len(torch.cat([whole.train, whole.held]).unique(dim=0)) == 50


def test_retrainings_are_stored_and_never_run_again(monkeypatch):
    experiment, grid = retraining.EXPERIMENT, {name: (value,) for name, value in TINY.items()}
    asked = cells(experiment, {**grid, "half": (0, 1), "seed": (0, 1)})
    rows = list(measure(experiment, asked[:3], save=retraining.FILE))
    assert [len(row["losses"]) for row in rows] == [6, 6, 6]
    assert rows[0]["losses"] != rows[1]["losses"]  # other halves
    assert rows[0]["losses"] != rows[2]["losses"]  # another seed
    again = retraining.run(Half(**TINY))
    np.testing.assert_allclose(again["losses"], rows[0]["losses"], atol=1e-6)
    trained = []
    monkeypatch.setattr(retraining, "train", lambda *_, **__: trained.append(1) or 0.0)
    bank = retraining.read_bank(Recipe(**TINY), 2, (0, 1))
    assert trained == [1]  # the fourth, which has no line of results
    np.testing.assert_allclose(bank[[0, 0, 1], [0, 1, 0]], [row["losses"] for row in rows])


def trained():
    recipe = Recipe(**TINY)
    texts = retraining.load_texts(recipe)
    model = retraining.make_model(recipe, texts, seed=0)
    layers = scoring.find_layers(model)
    return attributors.Trained(model, texts.train, texts.held.view(2, 3, 12), layers, moments={})


def test_gradient_products_are_slopes_of_the_loss():
    subject = trained()
    found = attributors.gradient_products(subject, {"plain": None})["plain, all parameters"]
    model, step = subject.model.double(), 1e-6
    model.zero_grad()
    row = subject.train[[5]]
    (model(input_ids=row, labels=row).loss * 11).backward()  # the mean over 11 tokens, so the sum
    before = retraining.held_losses(model, subject.passages.flatten(0, 1))
    with torch.no_grad():
        for value in model.parameters():
            value -= step * value.grad
    change = retraining.held_losses(model, subject.passages.flatten(0, 1)) - before
    np.testing.assert_allclose(change.reshape(2, 3).mean(1) / -step, found[5], rtol=0.02)


def test_retrainings_of_an_adapter_are_apart_from_those_of_all_weights():
    plain = retraining.EXPERIMENT.record(Half(**TINY))
    assert "adapter" not in plain  # as in the results of the time before there was one
    assert retraining.EXPERIMENT.record(Half(**TINY, adapter=2)) == {**plain, "adapter": 2}
