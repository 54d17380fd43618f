"""A watched language model: exact scores, honest tables, and a training that does not feel it."""

import gc
import inspect
import io
from contextlib import nullcontext
from functools import cache

import numpy as np
import pytest
import torch

import sgoif
from sgoif.errors import SgoifError
from sgoif.influence.sequence_sets import pad_items
from sgoif.sequences import SEQUENCE_PLAN
from sgoif.training.sequences import capture
from sgoif.training.sequences.monitor import SequenceMonitor
from tests.language_models import build, packed_batch, sequences, without_tokens
from tests.training.sequences.loops import COUNT, GROUPS, ITEMS, adam, batch_of, start, take_step, train, watch


def warnings_of(monitor):
    return monitor.close().info.get("warnings") or {}


def test_a_training_that_diverges_says_so():
    """Before, nine visits of ten could be without numbers and the run had no warning."""
    model, optimizer, monitor = start()
    train(model, optimizer, monitor, steps=3)
    with torch.no_grad():
        next(p for p in model.parameters() if p.requires_grad).fill_(float("nan"))
    train(model, optimizer, monitor, steps=3)
    assert "12 of 24 visits had a loss or scores that are not finite" in warnings_of(monitor)["not_finite"]


def test_later_steps_whose_factor_is_wrong_are_warned_of():
    """Before, the first step alone was compared."""
    batch = batch_of(range(4))
    tokens = int((batch["labels"][:, 1:] != -100).sum())
    for wrong in (0, 3):
        model, optimizer, monitor = start()
        for step in range(8):
            times = 0.5 if step >= 8 - wrong else 1
            take_step(model, monitor, range(4), batch, times=times, grad_factor=torch.tensor([tokens]))
            optimizer.step()
            optimizer.zero_grad()
        told = warnings_of(monitor).get("loss_changed", "")
        assert ("in 3 of 7 (micro-)batches" in told and "0.5 times" in told) if wrong else not told


@pytest.mark.parametrize("broken", ["_CHECKED_LATER", "read_losses", "note_loss"])
def test_a_comparison_of_losses_that_fails_costs_no_visit(monkeypatch, broken):
    if broken[0] == "_":
        monkeypatch.setattr(capture, broken, "eight")
    else:
        monkeypatch.setattr(capture.SequenceCapture, broken, lambda _: 1 / 0)
    model, optimizer, monitor = start()
    train(model, optimizer, monitor)
    run = monitor.close()
    assert run.info["counters"]["visits"] == 7 * 4 and run.info["faults"] == {} and monitor.compared.number == 0


@pytest.mark.parametrize("low", [False, True])
def test_a_model_that_has_learnt_its_sequences_is_not_taken_for_another_loss(low):
    model, batch = build("gpt2", lora=False), batch_of(range(4))
    optimizer = adam(model)
    monitor = watch(model, optimizer)
    for _ in range(60):
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            loss = take_step(model, monitor, range(4), batch)
        optimizer.step()
        optimizer.zero_grad()
    assert float(loss) < 0.2 and "loss_changed" not in warnings_of(monitor)
    assert monitor.compared.number > 10


def test_an_optimizer_that_never_steps_is_warned_of_where_its_moments_are_the_curvature():
    """Before, scores had no curvature, without a word."""
    for is_given in (True, False):
        model = build("gpt2", lora=True)
        optimizer = adam(model)
        monitor = watch(model, optimizer if is_given else adam(model), method=sgoif.Method(curvature="adam"))
        train(model, optimizer, monitor)
        assert ("no_moments" in warnings_of(monitor)) is not is_given


def test_a_ranking_by_losses_seen_once_is_warned_of():
    for steps, is_warned in ((3, True), (6, False)):
        model, _, monitor = start()
        for step in range(steps):
            chosen = range(4 * (step % 3), 4 * (step % 3) + 4)
            take_step(model, monitor, chosen, batch_of(chosen))
        assert ("seen_once" in warnings_of(monitor)) is is_warned


def trained(lora, curvature):
    """Weights and random numbers after a training with dropout, which draws some; and what watched it."""
    model = build("gpt2", lora=lora, resid_pdrop=0.1)
    optimizer = adam(model)
    monitor = watch(model, optimizer, method=sgoif.Method(curvature=curvature)) if curvature else None
    torch.manual_seed(9)
    train(model, optimizer, monitor)
    return model, torch.get_rng_state(), monitor


@cache
def bare(lora):
    model, random, _ = trained(lora, None)
    return model.state_dict(), random


@pytest.mark.parametrize(
    ("lora", "curvature"), [(True, "kfac"), (True, "adam"), (False, "identity"), (False, "diagonal")]
)
def test_weights_are_those_of_a_bare_training_to_the_bit(lora, curvature):
    model, random, monitor = trained(lora, curvature)
    assert torch.equal(random, bare(lora)[1])
    assert all(torch.equal(bare(lora)[0][name], value) for name, value in model.state_dict().items())
    assert monitor.faults == {} and monitor.refreshes == 3
    assert not any(module._forward_hooks for module in model.modules())
    assert monitor.close().info["num_not_judged"] < COUNT


def test_no_graph_outlives_its_step():
    """The check of the first step once held the logits, and they held it: gigabytes of a real vocabulary, for ever."""
    model, optimizer, monitor = start()
    before = {id(item) for item in in_a_graph()}
    train(model, optimizer, monitor, steps=2)
    gc.collect()
    kept = [tuple(item.shape) for item in in_a_graph() if id(item) not in before]
    assert not kept, kept
    monitor.close()


def in_a_graph():
    things = gc.get_objects()  # among them may be proxies of what is gone, whose type alone can be asked
    return [item for item in things if issubclass(type(item), torch.Tensor) and item.grad_fn is not None]


def test_a_resumed_run_ends_as_the_unbroken_one():
    parts = ("model", "optimizer", "monitor")
    whole = dict(zip(parts, start()))
    train(**whole, steps=5)
    file = io.BytesIO()
    torch.save({name: part.state_dict() for name, part in whole.items()}, file)
    file.seek(0)
    saved, resumed = torch.load(file, weights_only=True), dict(zip(parts, start()))
    for name, part in resumed.items():
        part.load_state_dict(saved[name])
    runs = []
    for attempt in (whole, resumed):
        train(**attempt, steps=6, seed=1)
        runs.append(attempt["monitor"].close())
    for table in ("examples", "group_effects"):
        one, two = (run.sql(f"select * from {table} order by all").to_pydict() for run in runs)
        assert one == two


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Give a run of five steps, in which some sequences were never judged: as it was closed, and read from the disk."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    model, optimizer, monitor = start(out=folder)
    train(model, optimizer, monitor, steps=5)
    return monitor.close(), sgoif.load(folder)


@pytest.mark.parametrize("place", ["memory", "disk"])
def test_findings_are_ranked_and_say_why_there_are_no_probabilities(finished, place):
    """On disk scores of sequences that were never judged were NaN, which DuckDB ranks above every number."""
    found = finished[place == "disk"]
    issues = found.sequence_issues(top=5)
    harm, loss = found.table["harm"].astype(float), found.table["loss_last"]
    score = harm / np.sqrt(loss + 0.01)
    x = np.nan_to_num(score / (16 * np.nanmedian(np.abs(score))))
    expected = loss * (x + np.sqrt(1 + x * x))
    assert issues["suspicion"].to_pylist() == pytest.approx(sorted(expected, reverse=True)[:5])
    for by, column in (("loss_last", loss), ("loss", found.table["loss"]), ("harm", harm[np.isfinite(harm)])):
        assert found.sequence_issues(by=by, top=3)[by].to_pylist() == sorted(column, reverse=True)[:3]
    rows = found.sequence_issues(by="harm").to_pylist()
    is_judged = [row["n_judged"] > 0 for row in rows]
    assert any(is_judged) and not all(is_judged) and is_judged == sorted(is_judged, reverse=True)
    assert all((row["harm"] is not None) == (row["n_judged"] > 0) for row in rows)
    with pytest.raises(SgoifError, match=r"ranked by one of suspicion, loss_last, .*, got 'score'"):
        found.sequence_issues(by="score")
    assert set(issues["p_mislabeled"].to_pylist()) == {None}
    assert "nobody has checked" in issues["no_p_reason"][0].as_py()
    assert {"math", "code", None} >= set(issues["worst_group"].to_pylist()) > {None}
    helpful = found.most_helpful("math", 3)
    effects = found.sql("select id, harm from group_effects where group_name = 'math' order by harm limit 3")
    assert helpful["id"].to_pylist() == effects["id"].to_pylist()
    assert helpful["help"].to_pylist() == [-harm for harm in effects["harm"].to_pylist()]
    assert "Experimental" in repr(found) and "Group math: 7 evaluation sequences" in repr(found)
    with pytest.raises(SgoifError, match="no group 'art'; it has math, code"):
        found.most_helpful("art")
    with pytest.raises(SgoifError, match="has no classes"):
        found.label_issues()


def test_the_losses_of_a_sequence_over_its_visits_can_be_read(finished):
    run, _ = finished
    counters = run.info["counters"]
    assert counters["visits_offered"] == counters["visits"] == 5 * 4 and counters["faults"] == 0
    visits = run.sql("select * from sequence_visits order by step")
    assert len(visits) == 5 * 4 and visits["harm"].null_count == counters["visits_not_judged"] == 4  # of the first step
    last = dict(zip(visits["id"].to_pylist(), visits["loss"].to_pylist()))
    table = run.sql("select id, loss_last from examples")
    assert last == pytest.approx(dict(zip(table["id"].to_pylist(), table["loss_last"].to_pylist())), rel=1e-6)


def test_a_plan_that_scores_few_steps_says_that_losses_are_old(tmp_path, caplog):
    plan = sgoif.Plan(refresh_every=4, examples_per_refresh=6, observe_every=2, stride=2)
    model, optimizer, monitor = start(budget={"plan": plan}, out=tmp_path / "run")
    train(model, optimizer, monitor, steps=12)
    assert "24 of 48 visits were in steps that the plan does not score" in warnings_of(monitor)["passed_over"]
    assert "last losses are old" in caplog.text and "last losses are old" in repr(sgoif.load(tmp_path / "run"))


def test_packed_sequences_are_scored_one_by_one():
    model, batch, ids = build("llama", lora=True), packed_batch(), [101, 102, 103]
    parts = [{"input_ids": part, "labels": part} for part in batch["input_ids"][0].split([5, 3, 4])]
    found = []
    for rows, settings in ((batch, {"position_ids": batch["position_ids"]}), (pad_items(parts), {})):
        monitor = watch(model)
        train(model, torch.optim.SGD(model.parameters(), lr=0.0), monitor, steps=1)
        take_step(model, monitor, ids, rows, **settings)
        assert monitor.faults == {}
        columns = "id, loss, num_tokens, harm, cosine"
        found.append(monitor.close().sql(f"select {columns} from examples where id > 100 order by id").to_pydict())
    packed, padded = found
    assert packed["id"] == ids and packed["num_tokens"] == [4, 2, 3]
    for name, column in packed.items():
        assert column == pytest.approx(padded[name], rel=1e-3, abs=1e-5)


def test_a_loss_that_is_not_the_declared_one_is_refused_at_the_first_step():
    model, batch = build("gpt2", lora=True), batch_of(range(4))
    tokens = int((batch["labels"][:, 1:] != -100).sum())
    for times, declared, given, said in (
        (2, None, {}, "times what the declared settings say"),
        (tokens, sgoif.Loss(reduction="sum"), {}, None),
        (tokens / 99, None, {"grad_factor": 99.0}, None),
        (tokens / 99, None, {"grad_factor": 3}, r"You passed grad_factor=3; 99(\.0*\d*)? would fit"),
    ):
        monitor = watch(model, loss=declared)
        with nullcontext() if said is None else pytest.raises(SgoifError, match=said):
            take_step(model, monitor, range(4), batch, times=times, **given)
        assert said or monitor.faults == {}


def test_what_cannot_be_done_is_said(tmp_path):
    model, ones = build("gpt2", lora=True), torch.ones(3, dtype=torch.long)
    by_adam, sgd = sgoif.Method(curvature="adam"), torch.optim.SGD(model.parameters(), lr=0.1)
    cases = [
        ("one dataset of evaluation sequences per group", lambda: watch(model, anchors=ITEMS)),
        ("token to predict", lambda: watch(model, anchors={"a": without_tokens(ITEMS)})),
        ("have no labels", lambda: watch(model, anchors={"a": [{"input_ids": ones}]})),
        (r"has no Method\.probe", lambda: watch(model, method=sgoif.Method(probe=False))),
        ("sequences' only", lambda: sgoif.watch(model, anchors=(), train_size=1, method=by_adam)),
        ("pass it to watch", lambda: watch(model, method=by_adam)),
        (r"second moments .* and SGD has none", lambda: watch(model, sgd, method=by_adam)),
        ("not train the scored layer", lambda: watch(model, adam(build("gpt2", lora=True)), method=by_adam)),
        (r"whole numbers \[B, T\]", lambda: watch(model).step(range(4), torch.zeros(4)).__enter__()),
        ("all visits or none", lambda: watch(model, out=tmp_path, budget={"keep_visits": "last"})),
        ("must be one of all, last, none", lambda: watch(model, out=tmp_path, budget={"keep_visits": "non"})),
    ]
    for said, ask in cases:
        with pytest.raises(SgoifError, match=said):
            ask()


def test_switched_off_and_the_own_plan(monkeypatch):
    monkeypatch.setenv("SGOIF_DISABLE", "1")
    disabled = watch(build("gpt2", lora=True))
    with disabled.step([1], torch.ones(1, 3, dtype=torch.long), position_ids=torch.arange(3)[None]):
        pass
    assert disabled.explain_tokens(ITEMS[0], "math")["harm"].size == 0
    assert disabled.close().sequence_issues().num_rows == 0
    for name in ("step", "explain_tokens", "close", "state_dict", "load_state_dict"):
        ours, theirs = (inspect.signature(getattr(kind, name)) for kind in (SequenceMonitor, type(disabled)))
        assert ours.parameters == theirs.parameters, name
    monkeypatch.delenv("SGOIF_DISABLE")
    monitor = sgoif.watch(build("gpt2", lora=True), anchors=GROUPS, train_size=COUNT, task="sequences")
    assert monitor.governor.plan == SEQUENCE_PLAN


def test_large_batches_look_at_more_evaluation_sequences_up_to_what_is_averaged(monkeypatch):
    model, optimizer, monitor = start()
    asked, refresh = [], monitor.engine.refresh
    monkeypatch.setattr(monitor.engine, "refresh", lambda *args: asked.append(args[-1]) or refresh(*args))
    train(model, optimizer, monitor)  # batches of 4; refreshes after steps 0, 3 and 6
    assert asked == [8, 8, 8] and monitor.counters["faults"] == 0  # two steps' worth, and never less than the plan's 6
    assert monitor._count_draws(1) == 6
    assert monitor._count_draws(10**6) == 200  # 100 of each of two groups


@pytest.mark.parametrize("goes_on", [False, True])
def test_what_was_cut_away_is_counted_when_the_training_ends(goes_on, caplog):
    """The first steps had nothing to predict, which is no longer what the run says of itself if others had."""
    groups = {"math": [*GROUPS["math"], *without_tokens(sequences(3, 30))], "code": GROUPS["code"]}
    model, _, monitor = start(anchors=groups)
    with monitor.step(range(4), torch.full_like(batch_of(range(4))["labels"], -100)):
        (model(input_ids=batch_of(range(4))["input_ids"]).logits.sum() * 0).backward()
    monitor.flush()
    assert "so far has a token" in caplog.text
    for first in (4, 8) if goes_on else ():
        batch = batch_of(range(first, first + 4))
        batch["labels"][0, :] = -100
        take_step(model, monitor, range(first, first + 4), batch)
    run = monitor.close()
    told, rows = run.info["warnings"], {row["id"]: row for row in run.examples().to_pylist()}
    if not goes_on:
        assert "no training sequence so far has a token to predict" in told["no_tokens"]
        return
    assert told["no_tokens"].startswith("6 of 12 training sequences have no token to predict")
    assert run.info["counters"]["visits_without_tokens"] == 6
    assert rows[8]["loss"] is rows[8]["harm"] is None and rows[8]["n_visits"] == 0 and rows[9]["harm"] is not None
    assert "3 of 15 evaluation sequences have no token" in told["empty_evaluation"]
    assert [group["num_sequences"] for group in run.info["groups"].values()] == [7, 5]
