"""A watched language model: exact scores, honest tables, and a training that does not feel it."""

import gc
import inspect
import io

import numpy as np
import pytest
import torch

import sgoif
from sgoif.errors import SgoifError
from sgoif.sequences import SEQUENCE_PLAN
from sgoif.tasks.sequences import next_tokens, sequence_losses, token_losses
from sgoif.training.sequences import capture
from sgoif.training.sequences.monitor import SequenceMonitor
from tests.language_models import build, packed_batch, padded_batch

PLAN = sgoif.Plan(refresh_every=3, examples_per_refresh=6, observe_every=2, early_steps=0)
COUNT = 12


def sequences(count=COUNT, seed=3):
    """Items of several lengths, unpadded."""
    batch = padded_batch("gpt2", "right", count=count, seed=seed)
    sizes = batch["attention_mask"].sum(1).tolist()
    return [{k: batch[k][i, :n] for k in ("input_ids", "labels")} for i, n in enumerate(sizes)]


def groups():
    return {"math": sequences(7, seed=20), "code": sequences(5, seed=21)}


def collate(items):
    from sgoif.influence.sequence_sets import pad_items

    return pad_items(items)


def watch(model, optimizer=None, *, method=None, loss=None, out=None, anchors=None):
    return sgoif.watch(
        model, optimizer, anchors=groups() if anchors is None else anchors, train_size=COUNT, task="sequences",
        method=method, loss=loss, out=out, budget=sgoif.Budget(plan=PLAN),
    )  # fmt: skip


def train(model, optimizer, monitor=None, steps=7, seed=0):
    items, generator = sequences(), torch.Generator().manual_seed(seed)
    for _ in range(steps):
        chosen = torch.randperm(COUNT, generator=generator)[:4]
        batch = collate([items[i] for i in chosen.tolist()])
        if monitor is None:
            model(**batch).loss.backward()
        else:
            with monitor.step(chosen, batch["labels"]):
                model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def adam(model):
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)


def test_a_training_that_diverges_says_so():
    """Before, nine visits of ten could be without numbers and the run had no warning."""
    model = build("gpt2", lora=True)
    monitor = watch(model, adam(model))
    train(model, adam(model), monitor, steps=3)
    with torch.no_grad():
        next(p for p in model.parameters() if p.requires_grad).fill_(float("nan"))
    train(model, adam(model), monitor, steps=3)
    assert "12 of 24 visits had a loss or scores that are not finite" in monitor.close().info["warnings"]["not_finite"]


def test_later_steps_whose_factor_is_wrong_are_warned_of():
    """Before, the first step alone was compared."""
    model, items = build("gpt2", lora=True), sequences()
    optimizer, batch = adam(model), collate(items[:4])
    tokens = int((batch["labels"][:, 1:] != -100).sum())
    for wrong in (0, 3):
        monitor = watch(model, optimizer)
        for step in range(8):
            with monitor.step(range(4), batch["labels"], grad_factor=torch.tensor([tokens])):
                (model(**batch).loss * (0.5 if step >= 8 - wrong else 1)).backward()
            optimizer.step()
            optimizer.zero_grad()
        told = (monitor.close().info.get("warnings") or {}).get("loss_changed", "")
        assert ("in 3 of 7 (micro-)batches" in told and "0.5 times" in told) if wrong else not told


@pytest.mark.parametrize("broken", ["_CHECKED_LATER", "read_losses", "note_loss"])
def test_a_comparison_of_losses_that_fails_costs_no_visit(monkeypatch, broken):
    if broken[0] == "_":
        monkeypatch.setattr(capture, broken, "eight")
    else:
        monkeypatch.setattr(capture.SequenceCapture, broken, lambda _: 1 / 0)
    model = build("gpt2", lora=True)
    monitor = watch(model, adam(model))
    train(model, adam(model), monitor)
    run = monitor.close()
    assert run.info["counters"]["visits"] == 7 * 4 and run.info["faults"] == {} and monitor.compared.number == 0


def test_an_optimizer_that_never_steps_is_warned_of_where_its_moments_are_the_curvature():
    """Before, scores had no curvature, without a word."""
    for is_given in (True, False):
        model = build("gpt2", lora=True)
        optimizer = adam(model)
        monitor = watch(model, optimizer if is_given else adam(model), method=sgoif.Method(curvature="adam"))
        train(model, optimizer, monitor)
        assert ("no_moments" in (monitor.close().info.get("warnings") or {})) is not is_given


@pytest.mark.parametrize("low", [False, True])
def test_a_model_that_has_learnt_its_sequences_is_not_taken_for_another_loss(low):
    model, items = build("gpt2", lora=False), sequences(4)
    optimizer, batch = torch.optim.AdamW(model.parameters(), lr=1e-2), collate(items)
    monitor = watch(model, optimizer)
    for _ in range(60):
        with torch.autocast("cpu", torch.bfloat16, enabled=low), monitor.step(range(4), batch["labels"]):
            loss = model(**batch).loss
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    run = monitor.close()
    assert float(loss) < 0.2 and "loss_changed" not in (run.info.get("warnings") or {})
    assert monitor.compared.number > 10


def test_a_ranking_by_losses_seen_once_is_warned_of():
    for steps, is_warned in ((3, True), (6, False)):
        model = build("gpt2", lora=True)
        monitor, items = watch(model, adam(model)), sequences()
        for step in range(steps):
            chosen = torch.arange(4) + 4 * (step % 3)
            batch = collate([items[i] for i in chosen.tolist()])
            with monitor.step(chosen, batch["labels"]):
                model(**batch).loss.backward()
        assert ("seen_once" in monitor.close().info.get("warnings", {})) is is_warned


@pytest.mark.parametrize("curvature", ["identity", "kfac", "diagonal", "adam"])
@pytest.mark.parametrize("lora", [True, False], ids=["lora", "block"])
def test_weights_are_those_of_a_bare_training_to_the_bit(lora, curvature):
    ends = []
    for is_watched in (False, True):
        model = build("gpt2", lora=lora, resid_pdrop=0.1)  # dropout draws random numbers
        optimizer = adam(model)
        monitor = watch(model, optimizer, method=sgoif.Method(curvature=curvature)) if is_watched else None
        torch.manual_seed(9)
        train(model, optimizer, monitor)
        ends.append((model.state_dict(), torch.get_rng_state()))
    (bare, bare_rng), (watched, watched_rng) = ends
    assert all(torch.equal(bare[name], watched[name]) for name in bare) and torch.equal(bare_rng, watched_rng)
    assert monitor.faults == {} and monitor.refreshes == 3
    assert not any(module._forward_hooks for module in model.modules())
    assert monitor.close().info["num_not_judged"] < COUNT


def _gradient(model, layers, batch, wanted):
    """Of the summed token losses of some sequences, as one vector."""
    targets = next_tokens(batch["labels"], is_causal=True)
    loss = sequence_losses(
        token_losses(model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits, targets)
    )
    parameters = [p for layer in layers for p in layer.parameters.values()]
    found = torch.autograd.grad(loss[wanted].sum(), parameters)
    return torch.cat([part.flatten() for part in found]), int((targets != -100).sum())


def test_no_graph_outlives_its_step():
    """The check of the first step once held the logits, and they held it: gigabytes of a real vocabulary, for ever."""
    model = build("gpt2", lora=True)
    optimizer = adam(model)
    monitor = watch(model, optimizer)
    before = {id(item) for item in in_a_graph()}
    train(model, optimizer, monitor, steps=2)
    gc.collect()
    kept = [tuple(item.shape) for item in in_a_graph() if id(item) not in before]
    assert not kept, kept
    monitor.close()


def in_a_graph():
    return [item for item in gc.get_objects() if isinstance(item, torch.Tensor) and item.grad_fn is not None]


def test_harm_without_curvature_is_the_product_of_gradients():
    model = build("gpt2", lora=True)
    monitor = watch(model, method=sgoif.Method(curvature="identity"), anchors={"math": sequences(3, seed=20)})
    items = sequences()
    still = torch.optim.SGD(model.parameters(), lr=0.0)
    train(model, still, monitor, steps=1)  # the first look at the group; nothing moves
    batch = collate(items[:4])
    with monitor.step(torch.arange(100, 104), batch["labels"]):
        model(**batch).loss.backward()
    rows = {row["id"]: row for row in monitor.close().examples().to_pylist()}
    layers = monitor.engine.layers
    held, tokens = _gradient(model, layers, collate(sequences(3, seed=20)), slice(None))
    for place in range(4):
        own, _ = _gradient(model, layers, batch, slice(place, place + 1))
        expected = -float(held @ own) / tokens
        assert rows[100 + place]["harm"] == pytest.approx(expected, rel=1e-4, abs=1e-6)
        assert rows[100 + place]["cosine"] == pytest.approx(-float(held @ own / held.norm() / own.norm()), rel=1e-4)
        assert rows[100 + place]["num_tokens"] == int((batch["labels"][place, 1:] != -100).sum())


def test_adam_divides_by_the_root_of_its_second_moments():
    model = build("gpt2", lora=True)
    optimizer = adam(model)
    settings = {"damping": 1e-3}
    monitor = watch(model, optimizer, method=sgoif.Method(curvature="adam", curvature_settings=settings))
    train(model, optimizer, monitor, steps=4)  # the last step refreshes, before the optimiser's own step
    layer = monitor.engine.layers[0]
    ((name, parameter),) = layer.parameters.items()
    plain = monitor.engine._gradients.means[layer.name]
    moment = monitor.engine._second_moments()[layer.name]
    state = optimizer.state[parameter]
    assert torch.allclose(layer.tensors(moment)[name], state["exp_avg_sq"] / (1 - 0.999 ** float(state["step"])))
    monitor.engine.curvatures[0].read({layer.name: moment})
    solved = monitor.engine.curvatures[0].solve({layer.name: plain})[layer.name]
    assert torch.allclose(solved, plain / (moment.sqrt() + 1e-3), rtol=1e-4)
    with pytest.raises(SgoifError, match="pass it to watch"):
        watch(model, method=sgoif.Method(curvature="adam"))


def test_a_resumed_run_ends_as_the_unbroken_one():
    def fresh():
        model = build("gpt2", lora=True)
        optimizer = adam(model)
        return model, optimizer, watch(model, optimizer)

    model, optimizer, monitor = fresh()
    train(model, optimizer, monitor, steps=5)
    file = io.BytesIO()
    torch.save(
        {"monitor": monitor.state_dict(), "model": model.state_dict(), "optimizer": optimizer.state_dict()}, file
    )
    train(model, optimizer, monitor, steps=6, seed=1)
    whole = monitor.close()
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    model, optimizer, monitor = fresh()
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    monitor.load_state_dict(saved["monitor"])
    train(model, optimizer, monitor, steps=6, seed=1)
    resumed = monitor.close()
    for table in ("examples", "group_effects"):
        one, two = (run.sql(f"select * from {table} order by all").to_pydict() for run in (whole, resumed))
        assert one == two


def test_findings_are_ranked_and_say_why_there_are_no_probabilities(tmp_path):
    model = build("gpt2", lora=True)
    optimizer = adam(model)
    monitor = watch(model, optimizer, out=str(tmp_path / "run"))
    train(model, optimizer, monitor, steps=12)
    run = monitor.close()
    assert run.info["counters"]["visits_not_judged"] == 4 < run.info["counters"]["visits"]  # those of the first step
    reopened = sgoif.load(str(tmp_path / "run"))
    for found in (run, reopened):
        issues = found.sequence_issues(top=5)
        harm, loss = found.table["harm"], found.table["loss_last"]
        score = harm / np.sqrt(loss + 0.01)
        x = score / (16 * np.median(np.abs(score)))  # all of them are judged
        expected = loss * (x + np.sqrt(1 + x * x))
        assert issues["suspicion"].to_pylist() == pytest.approx(sorted(expected, reverse=True)[:5])
        by_loss = found.sequence_issues(by="loss_last", top=5)["loss_last"].to_pylist()
        assert by_loss == sorted(loss, reverse=True)[:5]
        assert found.sequence_issues(by="harm", top=1)["harm"][0].as_py() == found.table["harm"].max()
        assert found.sequence_issues(by="loss", top=1)["loss"][0].as_py() == found.table["loss"].max()
        with pytest.raises(SgoifError, match=r"ranked by one of suspicion, loss_last, .*, got 'score'"):
            found.sequence_issues(by="score")
        assert set(issues["p_mislabeled"].to_pylist()) == {None}
        assert "nobody has checked" in issues["no_p_reason"][0].as_py()
        assert set(issues["worst_group"].to_pylist()) <= {"math", "code"}
        helpful = found.most_helpful("math", 3)
        effects = found.sql("select id, harm from group_effects where group_name = 'math' order by harm limit 3")
        assert helpful["id"].to_pylist() == effects["id"].to_pylist()
        assert helpful["help"].to_pylist() == [-harm for harm in effects["harm"].to_pylist()]
        assert "Experimental" in repr(found) and "Group math: 7 evaluation sequences" in repr(found)
        with pytest.raises(SgoifError, match="no group 'art'; it has math, code"):
            found.most_helpful("art")
        with pytest.raises(SgoifError, match="has no classes"):
            found.label_issues()
    counters = run.info["counters"]
    assert counters["visits_offered"] == counters["visits"] == 48 and counters["faults"] == 0


def test_a_plan_that_scores_few_steps_says_that_losses_are_old(tmp_path, caplog):
    model = build("gpt2", lora=True)
    optimizer = adam(model)
    budget = sgoif.Budget(plan=sgoif.Plan(refresh_every=4, examples_per_refresh=6, observe_every=2, stride=2))
    monitor = sgoif.watch(
        model, optimizer, anchors=groups(), train_size=COUNT, task="sequences", budget=budget, out=str(tmp_path / "run")
    )
    train(model, optimizer, monitor, steps=12)
    run = monitor.close()
    assert "24 of 48 visits were in steps that the plan does not score" in run.info["warnings"]["passed_over"]
    assert "last losses are old" in caplog.text and "last losses are old" in repr(sgoif.load(str(tmp_path / "run")))


def test_sequences_that_were_never_judged_come_last(tmp_path):
    """On disk their scores were NaN, which DuckDB ranks above every number."""
    model = build("gpt2", lora=True)
    optimizer = adam(model)
    monitor = watch(model, optimizer, out=str(tmp_path / "run"))
    train(model, optimizer, monitor, steps=5)
    for run in (monitor.close(), sgoif.load(str(tmp_path / "run"))):
        rows = run.sequence_issues(by="harm").to_pylist()
        is_judged = [row["n_judged"] > 0 for row in rows]
        assert any(is_judged) and not all(is_judged) and is_judged == sorted(is_judged, reverse=True)
        assert all((row["harm"] is not None) == (row["n_judged"] > 0) for row in rows)


def test_packed_sequences_are_scored_one_by_one():
    model = build("llama", lora=True)
    still = torch.optim.SGD(model.parameters(), lr=0.0)
    batch = packed_batch()
    runs = []
    for is_packed in (True, False):
        monitor = watch(model)
        train(model, still, monitor, steps=1)
        if is_packed:
            with monitor.step([101, 102, 103], batch["labels"], position_ids=batch["position_ids"]):
                model(**batch).loss.backward()
        else:
            parts = batch["input_ids"][0].split([5, 3, 4])
            rows = collate([{"input_ids": part, "labels": part} for part in parts])
            with monitor.step([101, 102, 103], rows["labels"]):
                model(**rows).loss.backward()
        assert monitor.faults == {}
        runs.append(monitor)
    packed, padded = (monitor.recorder._waiting[-1].packed for monitor in runs)
    assert torch.allclose(packed, padded, rtol=1e-3, atol=1e-5)


def test_a_loss_that_is_not_the_declared_one_is_refused_at_the_first_step():
    model = build("gpt2", lora=True)
    batch = collate(sequences()[:4])
    monitor = watch(model)
    expected = pytest.raises(SgoifError, match="times what the declared settings say")
    with expected, monitor.step(torch.arange(4), batch["labels"]):
        (2 * model(**batch).loss).backward()
    tokens = int((batch["labels"][:, 1:] != -100).sum())
    monitor = watch(model, loss=sgoif.Loss(reduction="sum"))
    with monitor.step(torch.arange(4), batch["labels"]):
        (tokens * model(**batch).loss).backward()
    monitor = watch(model)
    with monitor.step(torch.arange(4), batch["labels"], grad_factor=99.0):
        model(**batch, num_items_in_batch=99).loss.backward()
    assert monitor.faults == {}
    monitor, told = watch(model), pytest.raises(SgoifError, match=r"You passed grad_factor=3; 99(\.0*\d*)? would fit")
    with told, monitor.step(torch.arange(4), batch["labels"], grad_factor=3):
        model(**batch, num_items_in_batch=99).loss.backward()


def test_what_cannot_be_done_is_said():
    model = build("gpt2", lora=True)
    with pytest.raises(SgoifError, match="one dataset of evaluation sequences per group"):
        watch(model, anchors=sequences())
    with pytest.raises(SgoifError, match=r"has no Method\.probe"):
        watch(model, method=sgoif.Method(probe=False))
    with pytest.raises(SgoifError, match="sequences' only"):
        sgoif.watch(model, anchors=(), train_size=1, method=sgoif.Method(curvature="adam"))
    by_adam, others = sgoif.Method(curvature="adam"), build("gpt2", lora=True)
    with pytest.raises(SgoifError, match=r"second moments .* and SGD has none"):
        watch(model, torch.optim.SGD(model.parameters(), lr=0.1), method=by_adam)
    with pytest.raises(SgoifError, match="does not train the scored layer"):
        watch(model, adam(others), method=by_adam)
    monitor = watch(model)
    with pytest.raises(SgoifError, match=r"whole numbers \[B, T\]"):
        monitor.step(torch.arange(4), torch.zeros(4)).__enter__()
    ones = torch.ones(3, dtype=torch.long)
    with pytest.raises(SgoifError, match="token to predict"):
        watch(model, anchors={"none": [{"input_ids": ones, "labels": -100 * ones}]})
    with pytest.raises(SgoifError, match="have no labels"):
        watch(model, anchors={"none": [{"input_ids": ones}]})


def test_rows_without_tokens_are_counted(caplog):
    model = build("gpt2", lora=True)
    optimizer = adam(model)
    monitor = watch(model, optimizer)
    train(model, optimizer, monitor, steps=2)
    batch = collate(sequences()[:4])
    batch["labels"][1] = -100
    with monitor.step(torch.arange(100, 104), batch["labels"]):
        model(**batch).loss.backward()
    run = monitor.close()
    assert run.info["counters"]["visits_without_tokens"] == 1
    row = run.examples().to_pylist()[list(run.table["id"]).index(101)]
    assert row["loss"] is None and row["harm"] is None and row["n_visits"] == 0


def test_switched_off_and_the_own_plan(monkeypatch):
    monkeypatch.setenv("SGOIF_DISABLE", "1")
    disabled = watch(build("gpt2", lora=True))
    with disabled.step([1], torch.ones(1, 3, dtype=torch.long), position_ids=torch.arange(3)[None]):
        pass
    assert disabled.explain_tokens(sequences()[0], "math")["harm"].size == 0
    run = disabled.close()
    assert run.sequence_issues().num_rows == 0
    for name in ("step", "explain_tokens", "close", "state_dict", "load_state_dict"):
        ours, theirs = (inspect.signature(getattr(kind, name)) for kind in (SequenceMonitor, type(disabled)))
        assert ours.parameters == theirs.parameters, name
    monkeypatch.delenv("SGOIF_DISABLE")
    monitor = sgoif.watch(build("gpt2", lora=True), anchors=groups(), train_size=COUNT, task="sequences")
    assert monitor.governor.plan == SEQUENCE_PLAN


def test_large_batches_look_at_more_evaluation_sequences_up_to_what_is_averaged(monkeypatch):
    model = build("gpt2", lora=True)
    monitor = watch(model)
    asked = []
    refresh = monitor.engine.refresh
    monkeypatch.setattr(monitor.engine, "refresh", lambda *args: asked.append(args[-1]) or refresh(*args))
    train(model, adam(model), monitor)  # batches of 4; refreshes after steps 0, 3 and 6
    assert asked == [8, 8, 8] and monitor.counters["faults"] == 0  # two steps' worth, and never less than the plan's 6
    assert monitor._count_draws(1) == 6
    assert monitor._count_draws(10**6) == 200  # 100 of each of two groups


def test_a_training_without_a_token_to_predict_is_said_to_judge_nothing():
    model = build("gpt2", lora=True)
    monitor = watch(model, adam(model))
    for _ in range(3):
        batch = collate(sequences()[:4])
        labels = torch.full_like(batch["labels"], -100)
        with monitor.step(torch.arange(4), labels):
            (model(input_ids=batch["input_ids"]).logits.sum() * 0).backward()
    run = monitor.close()
    assert "no training sequence so far has a token to predict" in run.info["warnings"]["no_tokens"]


def test_what_was_cut_away_is_counted_when_the_training_ends(caplog):
    """The first steps had nothing to predict, which is no longer what the run says of itself."""
    empty = [{**one, "labels": torch.full_like(one["labels"], -100)} for one in sequences(3, seed=30)]
    model = build("gpt2", lora=True)
    monitor = watch(model, adam(model), anchors={"math": [*groups()["math"], *empty], "code": groups()["code"]})
    batch = collate(sequences()[:4])
    with monitor.step(torch.arange(4), torch.full_like(batch["labels"], -100)):
        (model(input_ids=batch["input_ids"]).logits.sum() * 0).backward()
    monitor.flush()
    assert "so far has a token" in caplog.text
    for start in (4, 8):
        batch = collate(sequences()[start : start + 4])
        with monitor.step(torch.arange(start, start + 4), batch["labels"]):
            model(**batch).loss.backward()
    run = monitor.close()
    assert run.info["warnings"]["no_tokens"].startswith("4 of 12 training sequences have no token to predict")
    assert "3 of 15 evaluation sequences have no token" in run.info["warnings"]["empty_evaluation"]
    assert [group["num_sequences"] for group in run.info["groups"].values()] == [7, 5]
