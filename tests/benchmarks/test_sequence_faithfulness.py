"""The linear datamodeling score of sequences, on a text of a few hundred characters."""

import numpy as np
import pytest
import torch

import tests.integrations.torchvision_operators  # noqa: F401

pytest.importorskip("transformers")

from benchmarks import records
from benchmarks.experiment import cells, measure
from benchmarks.sequences import attributors, parts, retraining
from benchmarks.sequences import scores as scoring
from benchmarks.sequences.faithfulness import describe_bank, judge
from benchmarks.sequences.retraining import Half, Recipe
from benchmarks.sequences.scores import Settings

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


@pytest.mark.parametrize("by", ["watch", "end", "checkpoints"])
def test_scores_have_a_row_per_sequence_and_are_kept(by, monkeypatch):
    settings = Settings(**TINY, by=by, layers="all", queries=2, group=3, refresh=2)
    scores, facts = scoring.keep_scores(settings)
    assert len(scores) >= 4
    assert {values.shape for values in scores.values()} == {(12, 2)}
    assert all(np.isfinite(values).all() for values in scores.values())
    assert 0 < facts["held_loss"] < 4
    monkeypatch.setattr(scoring, "score", None)
    kept, _ = scoring.keep_scores(settings)
    assert all(np.array_equal(kept[name], values) for name, values in scores.items())


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


def test_kronfluence_without_curvature_agrees_with_gradient_products():
    pytest.importorskip("kronfluence")
    subject = trained()
    modules = subject.layers["all linear layers"]
    found = attributors.fit_kronfluence(subject, modules, strategy="identity")["default damping"]
    products = attributors.gradient_products(subject, {"plain": None})["plain, all linear layers"]
    np.testing.assert_allclose(found, -11 * products, rtol=1e-3, atol=1e-4)  # of sums, not means over 11 tokens


def test_layers_are_those_of_the_whole_model_the_last_block_and_the_output():
    layers = trained().layers
    assert {name: len(found) for name, found in layers.items()} == {
        "last block": 4, "all linear layers": 9, "output layer": 1,
    }  # fmt: skip
    assert all(".h.1." in name for name in layers["last block"])


def test_parts_are_changed_one_at_a_time():
    settings = Settings(**TINY, queries=2, group=3, refresh=2, halves=5, seeds=(0,))
    found = {row["method"]: row for row in parts.run(settings)}
    assert list(found) == list(parts.PARTS)
    assert all(row["failed"] == 0 for row in found.values())
    watched = scoring.score(settings)["harm, kfac, last block"]
    bank = retraining.read_bank(settings.recipe, 5, (0,))[:, :, scoring.query_places(settings)].mean(3)
    members = retraining.members_of(settings.recipe, 5)
    assert judge(members, bank, watched)["lds"] == pytest.approx(found["default"]["lds"])


@pytest.fixture
def base(monkeypatch):
    """Weights of an untrained model, in place of those of a model that has learnt other texts."""
    pytest.importorskip("peft")
    made = []

    def make(recipe, characters):
        made.append(1)
        return retraining.build(recipe.width, recipe.depth, len(characters), recipe.length, tied=False).state_dict()

    monkeypatch.setattr(retraining, "train_base", make)
    return made


def test_an_adapter_is_trained_in_a_base_that_stays_and_is_made_once(base):
    recipe = Recipe(**TINY, adapter=2)
    texts = retraining.load_texts(recipe)
    models = [retraining.make_model(recipe, texts, seed) for seed in (0, 1)]
    before = {name: value.clone() for name, value in models[0].state_dict().items()}
    members = np.ones(12, dtype=bool)
    retraining.train(recipe, texts.train, members, 0, model=models[0])
    changed = {name for name, value in models[0].state_dict().items() if not torch.equal(value, before[name])}
    assert base == [1] and changed and all(".lora_" in name for name in changed)
    apart = {name for name, value in models[1].state_dict().items() if not torch.equal(value, before[name])}
    assert apart and all(".lora_A" in name for name in apart)  # another seed starts elsewhere, from the same base


def test_retrainings_of_an_adapter_are_apart_from_those_of_all_weights(base):
    plain = retraining.EXPERIMENT.record(Half(**TINY))
    assert "adapter" not in plain  # as in the results of the time before there was one
    assert retraining.EXPERIMENT.record(Half(**TINY, adapter=2)) == {**plain, "adapter": 2}
    settings = Settings(**TINY, adapter=2, by="watch", queries=2, group=3, refresh=2)
    scores, _ = scoring.keep_scores(settings)
    assert {f"harm, {curvature}, LoRA matrices" for curvature in scoring.CURVATURES} <= scores.keys()
    assert all(np.isfinite(values).all() for values in scores.values())
    audited, _ = scoring.keep_scores(Settings(**TINY, adapter=2, by="audit", queries=2, group=3))
    assert list(audited) == ["harm, audit, LoRA matrices"]
