"""Losses after the evaluation sequences have been learnt: what they contradict stands out, and nothing else changes."""

import copy

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score
from typer.testing import CliRunner

import sgoif
from sgoif.cli.main import app
from sgoif.errors import SgoifError
from sgoif.training.sequences import audit, tuned
from tests.language_models import build, padded_batch
from tests.sequence_runs import suspicions

TOPICS, FILLERS = 6, 12  # tokens: an answer to each topic, then topics, then fillers


def item(topic, answer, filler):
    ids = torch.tensor([1 + TOPICS + topic, 1 + 2 * TOPICS % 6 + filler % 6, 1 + answer])
    return {"input_ids": ids, "labels": torch.tensor([-100, -100, 1 + answer])}


def questions(count, seed, *, rate=0.0, topics=range(TOPICS)):
    """Of random topics, in words that vary; the answer is the topic's, at a rate that of the next one."""
    rng = np.random.default_rng(seed)
    asked = rng.choice(list(topics), count)
    is_wrong = rng.random(count) < rate
    answers = (asked + is_wrong) % TOPICS
    return [item(*map(int, one)) for one in zip(asked, answers, rng.integers(0, FILLERS, count))], is_wrong


def learn(model, items, steps=120):
    """Train on all of them at once."""
    batch = {name: torch.stack([one[name] for one in items]) for name in items[0]}
    optimizer = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr=1e-2)
    for _ in range(steps):
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def state_of(model):
    return [(value.detach().clone(), value.requires_grad, value.grad) for value in model.parameters()]


def assert_same(model, before):
    for value, (own, flag, gradient) in zip(model.parameters(), before, strict=True):
        assert torch.equal(value, own) and value.requires_grad == flag and value.grad is gradient is None


def loss_of(model, items):
    batch = {name: torch.stack([one[name] for one in items]) for name in items[0]}
    with torch.no_grad():
        return float(model.eval()(**batch).loss)


def column(run, name):
    rows = run.sequence_issues()
    return np.array(rows[name].to_pylist(), float)[np.argsort(rows["id"].to_pylist())]


def test_what_evaluation_sequences_contradict_is_hard_to_predict_once_they_are_learnt():
    trained, is_wrong = questions(150, 0, rate=0.3)
    held, _ = questions(60, 1)
    model = learn(build("gpt2", lora=False, n_embd=16), trained)
    before = state_of(model)
    run = sgoif.audit(model, trained, anchors={"all": held}, task="sequences")
    tuning = run.info["tuning"]
    assert tuning["loss_after"] < tuning["loss_before"] and tuning["num_sequences"] == 60 and tuning["is_whole"]
    assert "not_tuned" not in run.info.get("warnings", {})
    as_it_was, once_tuned = (average_precision_score(is_wrong, column(run, n)) for n in ("loss_last", "loss_tuned"))
    assert once_tuned > max(as_it_was + 0.05, 0.95)
    assert_same(model, before)


def test_suspicion_is_the_tuned_loss_weighed_by_the_conflict_as_far_as_it_is_covered():
    trained, _ = questions(40, 0, rate=0.3)
    held, _ = questions(20, 1)
    run = sgoif.audit(build("gpt2", lora=True), trained, anchors={"all": held}, task="sequences")
    rows = run.sequence_issues()
    np.testing.assert_allclose(rows["suspicion"].to_numpy(), suspicions(rows), rtol=1e-9)
    assert (np.diff(rows["suspicion"].to_numpy()) <= 0).all() and rows["loss_tuned"].null_count == 0
    assert run.sequence_issues(by="loss_tuned", top=3)["loss_tuned"].to_pylist() == pytest.approx(
        sorted(column(run, "loss_tuned"))[::-1][:3]
    )


def test_what_evaluation_sequences_do_not_ask_for_is_kept(monkeypatch):
    """By completions of training sequences that the model drew; without them it forgets other topics."""
    trained, _ = questions(200, 0)
    model = learn(build("gpt2", lora=False, n_embd=16), trained, steps=40)
    other, _ = questions(40, 2, topics=(4, 5))
    held = [item(topic, (topic + 1) % 4, filler) for topic in range(4) for filler in range(FILLERS)]  # all of them new
    rises = []
    for weight in (0.0, 3.0):
        monkeypatch.setattr(tuned, "_KEEP", weight)
        run = sgoif.audit(model, other, anchors={"all": held}, task="sequences")
        rises.append((column(run, "loss_tuned") - column(run, "loss_last")).mean())
    assert rises[1] < 0.5 * rises[0]


@pytest.mark.parametrize("family", ["gpt2", "llama", "t5", "bert"])
@pytest.mark.parametrize("lora", [True, False], ids=["lora", "whole"])
def test_every_family_is_tuned_and_left_as_it_was(family, lora):
    def rows(count, seed):
        batch = padded_batch(family, "right", count=count, seed=seed)
        if family in ("gpt2", "llama"):
            batch["input_ids"] = torch.where(batch["labels"] == -100, batch["input_ids"], 5)
        batch["labels"] = torch.where(batch["labels"] == -100, -100, 5)  # what can be learnt
        sizes = batch["attention_mask"].sum(1).tolist()
        cut = {"input_ids", "labels"} if family != "t5" else {"input_ids"}
        return [{k: v[i, :n] if k in cut else v[i] for k, v in batch.items() if k != "attention_mask"}
                for i, n in enumerate(sizes)]  # fmt: skip

    model = build(family, lora=lora)
    before, random = state_of(model), torch.get_rng_state()
    run = sgoif.audit(model, rows(12, 3), anchors={"one": rows(30, 20), "two": rows(9, 21)}, task="sequences")
    assert run.info["tuning"]["loss_after"] < run.info["tuning"]["loss_before"]
    assert np.isfinite(column(run, "loss_tuned")).all() and model.training
    assert_same(model, before)
    assert torch.equal(torch.get_rng_state(), random)


def test_the_same_seed_gives_the_same_losses():
    trained, held = questions(20, 0)[0], questions(20, 1)[0]
    model = build("gpt2", lora=True)
    one, two, other = (
        column(sgoif.audit(model, trained, anchors={"all": held}, task="sequences", seed=seed), "loss_tuned")
        for seed in (0, 0, 1)
    )
    assert np.array_equal(one, two) and not np.array_equal(one, other)


def test_batches_of_any_size_give_the_same_losses():
    """Up to rounding, of models in float64."""
    trained, held = questions(20, 0)[0], questions(40, 1)[0]
    model = build("gpt2", lora=True).double()
    small, large = (
        column(sgoif.audit(model, trained, anchors={"all": held}, task="sequences", batch_size=size), "loss_tuned")
        for size in (3, 64)
    )
    np.testing.assert_allclose(small, large, rtol=1e-6)


def test_learning_rates_that_end_in_infinity_are_passed_over(monkeypatch):
    monkeypatch.setattr(tuned, "_FIRST_RATE", 1e3)
    monkeypatch.setattr(tuned, "_RATES", (1e-6, 1e9))
    trained, held = questions(20, 0)[0], questions(40, 1)[0]
    model = build("gpt2", lora=False)
    before, groups = state_of(model), {"all": held}
    sizes = []

    def forward(batch):
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        sizes.append(float(logits.detach().abs().max()))
        return logits.sinh()  # which overflows early

    run = sgoif.audit(model, trained, anchors=groups, task="sequences", forward=forward)
    assert max(sizes) > 100 and run.info["tuning"]["loss_after"] < run.info["tuning"]["loss_before"]
    assert_same(model, before)


def test_a_model_in_half_precision_keeps_its_weights():
    trained, held = questions(30, 0)[0], questions(30, 1)[0]
    model = build("gpt2", lora=False).to(torch.bfloat16)
    before = state_of(model)
    run = sgoif.audit(model, trained, anchors={"all": held}, task="sequences")
    assert run.info["tuning"]["loss_after"] < run.info["tuning"]["loss_before"]
    assert_same(model, before)


def test_scored_layers_alone_are_tuned_where_the_model_is_large(monkeypatch):
    trained, held = questions(30, 0)[0], questions(30, 1)[0]
    model = build("gpt2", lora=False)
    before, taken = state_of(model), []
    monkeypatch.setattr(tuned, "_NUMBERS", 10)
    monkeypatch.setattr(tuned._Weights, "take", lambda self, *_: taken.extend(map(id, self.tuned)))
    run = sgoif.audit(model, trained, anchors={"all": held}, task="sequences")
    scored = [p for name, p in model.named_parameters() if ".h.1." in name and name.rsplit(".", 2)[1][:2] == "c_"]
    assert set(taken) == set(map(id, scored)) and "why_not" in run.info["tuning"]
    monkeypatch.undo()
    monkeypatch.setattr(tuned, "_NUMBERS", 10)
    run = sgoif.audit(model, trained, anchors={"all": held}, task="sequences")
    assert not run.info["tuning"]["is_whole"] and np.isfinite(column(run, "loss_tuned")).all()
    assert_same(model, before)


def test_evaluation_sequences_that_teach_nothing_change_nothing():
    """All answers come alike, and the model knows; what one half has more often, the other has less often."""
    trained, every = questions(40, 0)[0], [item(t, a, 0) for t in range(TOPICS) for a in range(TOPICS)]
    held, model = every * 4, learn(build("gpt2", lora=False), every, steps=300)
    run = sgoif.audit(model, trained, anchors={"all": held}, task="sequences")
    assert "do not help the model to predict the other half" in run.info["tuning"]["why_not"]
    assert "do not help the model" in run.info["warnings"]["not_tuned"]
    assert run.sequence_issues()["loss_tuned"].null_count == 40
    rows = run.sequence_issues()
    np.testing.assert_allclose(rows["suspicion"].to_numpy(), suspicions(rows))
    with pytest.raises(SgoifError, match="no loss_tuned: half of the evaluation sequences do not help"):
        run.sequence_issues(by="loss_tuned")


def test_too_few_evaluation_sequences_are_not_halved(caplog):
    run = sgoif.audit(build("gpt2", lora=True), questions(9, 0)[0], anchors={"a": questions(7, 1)[0]}, task="sequences")
    assert "fewer than 8 evaluation sequences" in run.info["warnings"]["not_tuned"] and "fewer than 8" in caplog.text
    with pytest.raises(SgoifError, match="no loss_tuned: fewer than 8 evaluation sequences"):
        run.sequence_issues(by="loss_tuned")


def test_many_small_groups_are_halved_together():
    groups = {f"g{place}": [one] for place, one in enumerate(questions(20, 1)[0])}
    run = sgoif.audit(build("gpt2", lora=True), questions(30, 0)[0], anchors=groups, task="sequences")
    assert run.info["tuning"]["num_sequences"] == 20 and run.info["tuning"]["loss_after"] > 0
    assert run.sequence_issues()["loss_tuned"].null_count == 0


def test_what_goes_wrong_while_tuning_costs_neither_scores_nor_weights(monkeypatch):
    trained, held = questions(30, 0)[0], questions(30, 1)[0]
    model = build("gpt2", lora=True)
    before, usual, calls = state_of(model), audit.sequence_means, []

    def stop(*args, **settings):
        calls.append(1)
        if len(calls) == 2:
            raise torch.OutOfMemoryError("no memory is left\nand more")
        return usual(*args, **settings)

    monkeypatch.setattr(audit, "sequence_means", stop)
    run = sgoif.audit(model, trained, anchors={"all": held}, task="sequences", batch_size=10)
    assert run.info["warnings"]["not_tuned"].endswith("stopped with OutOfMemoryError: no memory is left")
    assert run.sequence_issues()["loss_tuned"].null_count == 30 and run.info["num_not_judged"] == 0
    assert_same(model, before)


def test_sequences_of_one_id_and_without_a_token_have_a_row():
    trained = [{**one, "id": place % 9} for place, one in enumerate(questions(12, 0)[0])]
    trained[8] = {**trained[8], "labels": torch.full((3,), -100)}
    model, held = build("gpt2", lora=True), questions(20, 1)[0]
    run = sgoif.audit(model, trained, anchors={"all": held}, task="sequences", batch_size=4)
    rows = {row["id"]: row["loss_tuned"] for row in run.sequence_issues().to_pylist()}
    assert len(rows) == 9 and rows[8] is None and all(rows[id] is not None for id in range(8))


def test_the_command_shows_tuned_losses(tmp_path):
    folder = str(tmp_path / "run")
    model, held = build("gpt2", lora=True), questions(20, 1)[0]
    sgoif.audit(copy.deepcopy(model), questions(12, 0)[0], anchors={"all": held}, task="sequences", out=folder)
    done = CliRunner().invoke(app, ["issues", folder, "--rank-by", "loss_tuned"])
    assert done.exit_code == 0 and "tuned loss" in done.stdout and "last loss" not in done.stdout, done.stdout
    assert "Tuned losses: once half of the evaluation sequences were learnt" in done.output
    sgoif.load(folder).report(tmp_path / "page.html")
    assert "tuned loss" in (tmp_path / "page.html").read_text()
