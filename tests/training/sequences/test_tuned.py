"""Losses after the evaluation sequences have been learnt: what they contradict stands out, and nothing else changes."""

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score

import sgoif
from sgoif.errors import SgoifError
from sgoif.training.sequences import audit as audit_module
from sgoif.training.sequences import tuned
from tests.cli.runs import invoke
from tests.language_models import build, sequences, without_tokens
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


def audit(trained, held, *, model=None, **settings):
    groups = held if isinstance(held, dict) else {"all": held}
    model = build("gpt2", lora=True) if model is None else model
    return sgoif.audit(model, trained, anchors=groups, task="sequences", **settings)


def column(run, name):
    rows = run.sequence_issues()
    return np.array(rows[name].to_pylist(), float)[np.argsort(rows["id"].to_pylist())]


def test_what_evaluation_sequences_contradict_is_hard_to_predict_once_they_are_learnt():
    trained, is_wrong = questions(150, 0, rate=0.3)
    held, _ = questions(60, 1)
    model = learn(build("gpt2", lora=False, n_embd=16), trained)
    before = state_of(model)
    run = audit(trained, held, model=model)
    tuning = run.info["tuning"]
    assert tuning["loss_after"] < tuning["loss_before"] and tuning["num_sequences"] == 60 and tuning["is_whole"]
    assert "not_tuned" not in run.info.get("warnings", {})
    as_it_was, once_tuned = (average_precision_score(is_wrong, column(run, n)) for n in ("loss_last", "loss_tuned"))
    assert once_tuned > max(as_it_was + 0.05, 0.95)
    assert_same(model, before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a run with tuned losses."""
    out = tmp_path_factory.mktemp("tuned") / "run"
    audit(questions(40, 0, rate=0.3)[0], questions(20, 1)[0], out=str(out))
    return out


def test_suspicion_is_the_tuned_loss_weighed_by_the_conflict_as_far_as_it_is_covered(folder):
    run = sgoif.load(folder)
    rows = run.sequence_issues()
    np.testing.assert_allclose(rows["suspicion"].to_numpy(), suspicions(rows), rtol=1e-9)
    assert (np.diff(rows["suspicion"].to_numpy()) <= 0).all() and rows["loss_tuned"].null_count == 0
    assert run.sequence_issues(by="loss_tuned", top=3)["loss_tuned"].to_pylist() == pytest.approx(
        sorted(column(run, "loss_tuned"))[::-1][:3]
    )


def test_sequences_of_one_id_and_without_a_token_have_a_row():
    trained = [{**one, "id": place % 9} for place, one in enumerate(questions(12, 0)[0])]
    trained[8:9] = without_tokens(trained[8:9])
    run = audit(trained, questions(20, 1)[0], batch_size=4)
    assert np.isnan(column(run, "loss_tuned")).tolist() == 8 * [False] + [True]
    assert "3 of 12 training sequences have an id that another one has" in run.info["warnings"]["repeated_ids"]


def test_the_command_and_the_page_show_tuned_losses(folder, tmp_path):
    done = invoke("issues", folder, "--rank-by", "loss_tuned")
    assert done.exit_code == 0 and "tuned loss" in done.stdout and "last loss" not in done.stdout, done.stdout
    assert "Tuned losses: once half of the evaluation sequences were learnt" in done.stdout + done.stderr
    sgoif.load(folder).report(tmp_path / "page.html")
    assert "tuned loss" in (tmp_path / "page.html").read_text()


def test_what_evaluation_sequences_do_not_ask_for_is_kept(monkeypatch):
    """By completions of training sequences that the model drew; without them it forgets other topics."""
    trained, _ = questions(200, 0)
    model = learn(build("gpt2", lora=False, n_embd=16), trained, steps=40)
    other, _ = questions(40, 2, topics=(4, 5))
    held = [item(topic, (topic + 1) % 4, filler) for topic in range(4) for filler in range(FILLERS)]  # all of them new
    rises = []
    for weight in (0.0, 3.0):
        monkeypatch.setattr(tuned, "_KEEP", weight)
        run = audit(other, held, model=model)
        rises.append((column(run, "loss_tuned") - column(run, "loss_last")).mean())
    assert rises[1] < 0.5 * rises[0]


@pytest.mark.parametrize(
    ("family", "lora", "dtype"),
    [
        ("gpt2", True, torch.float32),
        ("gpt2", False, torch.bfloat16),
        ("llama", False, torch.float32),
        ("t5", True, torch.float32),
        ("bert", False, torch.float32),
    ],
)
def test_every_family_is_tuned_and_left_as_it_was(family, lora, dtype):
    def rows(count, seed):
        items = sequences(count, seed, family)
        for one in items:
            if family in ("gpt2", "llama"):
                one["input_ids"] = torch.where(one["labels"] == -100, one["input_ids"], 5)
            one["labels"] = torch.where(one["labels"] == -100, -100, 5)  # what can be learnt
        return items

    model = build(family, lora=lora).to(dtype)
    before, random = state_of(model), torch.get_rng_state()
    run = audit(rows(12, 3), {"one": rows(15, 20), "two": rows(5, 21)}, model=model)
    assert run.info["tuning"]["loss_after"] < run.info["tuning"]["loss_before"]
    assert run.info["num_not_judged"] == 0 and model.training
    assert np.isfinite([column(run, name) for name in ("loss_tuned", "conflict")]).all()
    assert_same(model, before)
    assert torch.equal(torch.get_rng_state(), random)


def test_losses_depend_on_the_seed_and_not_on_the_size_of_batches():
    """Up to rounding, of models in float64."""
    trained, held = questions(20, 0)[0], questions(20, 1)[0]
    model = build("gpt2", lora=True).double()
    one, two, other, small = (
        column(audit(trained, held, model=model, seed=seed, batch_size=size), "loss_tuned")
        for seed, size in ((0, 64), (0, 64), (1, 64), (0, 3))
    )
    assert np.array_equal(one, two) and not np.array_equal(one, other)
    np.testing.assert_allclose(small, one, rtol=1e-6)


def test_learning_rates_that_end_in_infinity_are_passed_over(monkeypatch):
    monkeypatch.setattr(tuned, "_FIRST_RATE", 1e3)
    monkeypatch.setattr(tuned, "_RATES", (1e-6, 1e9))
    model, sizes = build("gpt2", lora=False), []
    before = state_of(model)

    def forward(batch):
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        sizes.append(float(logits.detach().abs().max()))
        return logits.sinh()  # which overflows early

    run = audit(questions(20, 0)[0], questions(40, 1)[0], model=model, forward=forward)
    assert max(sizes) > 100 and run.info["tuning"]["loss_after"] < run.info["tuning"]["loss_before"]
    assert_same(model, before)


def test_scored_layers_alone_are_tuned_where_the_model_is_large(monkeypatch):
    trained, held, model = questions(30, 0)[0], questions(30, 1)[0], build("gpt2", lora=False)
    before, moved, usual = state_of(model), set(), tuned.sequence_means
    own = {name: value.detach().clone() for name, value in model.named_parameters()}

    def look(*args, **settings):
        moved.update(name for name, value in model.named_parameters() if not torch.equal(value, own[name]))
        return usual(*args, **settings)

    monkeypatch.setattr(tuned, "_NUMBERS", 10)
    monkeypatch.setattr(audit_module, "sequence_means", look)
    run = audit(trained, held, model=model)
    scored = {name for name in own if ".h.1." in name and name.rsplit(".", 2)[1][:2] == "c_"}
    assert moved and moved <= scored and {name for name in scored if "weight" in name} <= moved
    assert not run.info["tuning"]["is_whole"] and np.isfinite(column(run, "loss_tuned")).all()
    assert_same(model, before)


def test_evaluation_sequences_that_teach_nothing_change_nothing():
    """All answers come alike, and the model knows; what one half has more often, the other has less often."""
    trained, every = questions(40, 0)[0], [item(t, a, 0) for t in range(TOPICS) for a in range(TOPICS)]
    run = audit(trained, every * 4, model=learn(build("gpt2", lora=False), every, steps=300))
    assert "do not help the model to predict the other half" in run.info["tuning"]["why_not"]
    assert "do not help the model" in run.info["warnings"]["not_tuned"]
    rows = run.sequence_issues()
    assert rows["loss_tuned"].null_count == 40
    np.testing.assert_allclose(rows["suspicion"].to_numpy(), suspicions(rows))
    with pytest.raises(SgoifError, match="no loss_tuned: half of the evaluation sequences do not help"):
        run.sequence_issues(by="loss_tuned")


def test_too_few_evaluation_sequences_are_not_halved(caplog):
    run = audit(questions(9, 0)[0], questions(7, 1)[0])
    assert "fewer than 8 evaluation sequences" in run.info["warnings"]["not_tuned"] and "fewer than 8" in caplog.text
    with pytest.raises(SgoifError, match="no loss_tuned: fewer than 8 evaluation sequences"):
        run.sequence_issues(by="loss_tuned")


def test_many_small_groups_are_halved_together():
    run = audit(questions(30, 0)[0], {f"g{place}": [one] for place, one in enumerate(questions(20, 1)[0])})
    assert run.info["tuning"]["num_sequences"] == 20 and run.info["tuning"]["loss_after"] > 0
    assert run.sequence_issues()["loss_tuned"].null_count == 0


def test_what_goes_wrong_while_tuning_costs_neither_scores_nor_weights(monkeypatch):
    model = build("gpt2", lora=True)
    before, usual, calls = state_of(model), tuned.sequence_means, []

    def stop(*args, **settings):
        calls.append(1)
        if len(calls) == 2:
            raise torch.OutOfMemoryError("no memory is left\nand more")
        return usual(*args, **settings)

    monkeypatch.setattr(audit_module, "sequence_means", stop)
    run = audit(questions(30, 0)[0], questions(30, 1)[0], model=model, batch_size=10)
    assert run.info["warnings"]["not_tuned"].endswith("stopped with OutOfMemoryError: no memory is left")
    assert run.sequence_issues()["loss_tuned"].null_count == 30 and run.info["num_not_judged"] == 0
    assert_same(model, before)
