"""The monitor inside real training loops: it changes nothing, scores what it says, resumes exactly, and fails open."""

import logging
import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sgoif
from sgoif.errors import HeadError, SgoifError
from sgoif.training.signals import VisitFlag
from tests.cases import ResidualNet
from tests.training.loops import PLAN, GroupNormNet, data, train, watch


def fresh(make=GroupNormNet, seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    return make().to(dtype)


@pytest.mark.parametrize("make", [GroupNormNet, ResidualNet])
def test_weights_are_bit_identical_with_and_without_the_monitor(make):
    train_set, holdout = data()
    torch.manual_seed(7)
    bare = train(fresh(make), train_set)
    rng_after_bare = torch.get_rng_state()
    torch.manual_seed(7)
    model = fresh(make)
    monitor = watch(model, holdout)
    watched = train(model, train_set, monitor)
    assert torch.equal(rng_after_bare, torch.get_rng_state())
    for (key, one), two in zip(bare.state_dict().items(), watched.state_dict().values(), strict=True):
        assert torch.equal(one, two), key
    assert monitor.counters["faults"] == 0
    assert monitor.counters["visits"] == 3 * 48
    assert all(not module._forward_hooks for module in model.modules())


def test_harm_is_minus_the_tracked_direction_times_the_gradient():
    train_set, holdout = data()
    model = fresh()
    monitor = watch(model, holdout, gate="none")
    train(model, train_set, monitor, epochs=2)
    pixels, labels = train_set
    directions = {name: value.double() for name, value in monitor.engine.tracker.directions.items()}
    monitor.flush()
    before = len(monitor.recorder.sink.table()["id"])
    with monitor.step(torch.arange(6), labels[:6]):
        F.cross_entropy(model(pixels[:6]), labels[:6]).backward()
    monitor.flush()
    visits = {name: column[before:] for name, column in monitor.recorder.sink.table().items()}
    for i in range(6):
        model.zero_grad()
        F.cross_entropy(model(pixels[i : i + 1]), labels[i : i + 1]).backward()
        gradient = torch.cat([model.fc.weight.grad, model.fc.bias.grad[:, None]], 1)
        influence = -torch.einsum("kgoi,oi->k", directions["fc"], gradient)
        np.testing.assert_allclose(visits["harm"][i], influence.mean().item(), rtol=1e-4)
        np.testing.assert_allclose(visits["own"][i], influence[labels[i]].item(), rtol=1e-4, atol=1e-7)
        others = [v for v in range(4) if v != labels[i]]
        assert visits["worst_anchor"][i] == max(others, key=lambda v: influence[v].item())


def test_four_micro_batches_score_like_one_batch():
    train_set, holdout = data()
    tables = []
    for accumulate in (1, 4):
        model = fresh()
        monitor = watch(model, holdout, accumulate=accumulate)
        # float64 throughout, so that the two orders of summation agree to rounding
        monitor.engine.curvature.__init__(monitor.engine.curvature.shapes, dtype=torch.float64)
        train(model, train_set, monitor, accumulate=accumulate)
        assert monitor.counters["faults"] == 0
        tables.append(monitor.close().visits)
    one, four = ({name: t[name][np.lexsort((t["id"], t["step"]))] for name in ("id", "harm", "worst")} for t in tables)
    assert (one["id"] == four["id"]).all()
    for name in ("harm", "worst"):
        np.testing.assert_allclose(one[name], four[name], rtol=2e-4, atol=1e-6)  # signals travel as float32


def test_a_resumed_run_gives_the_scores_of_an_unbroken_one():
    train_set, holdout = data()
    unbroken = fresh()
    monitor = watch(unbroken, holdout)
    train(unbroken, train_set, monitor)
    whole = monitor.close().visits
    saved = {}
    model = fresh()
    first = watch(model, holdout)

    class Stop(Exception):
        pass

    def stop_after(step):
        if step == 6:
            saved["monitor"] = pickle.loads(pickle.dumps(first.state_dict()))
            raise Stop

    with pytest.raises(Stop):
        train(model, train_set, first, after=stop_after)
    # replay the loop: the first six steps bring the model and its optimiser to where they stood, unwatched
    pixels, labels = train_set
    replay = fresh()
    optimizer = torch.optim.SGD(replay.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(0)
    second = watch(replay, holdout)
    second.load_state_dict(saved["monitor"])
    step = 0
    for _ in range(3):
        for indices in torch.randperm(48, generator=generator).split(12):
            if step < 6:
                F.cross_entropy(replay(pixels[indices]), labels[indices]).backward()
            else:
                with second.step(indices, labels[indices]):
                    F.cross_entropy(replay(pixels[indices]), labels[indices]).backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
    later = second.close().visits
    assert second.counters["faults"] == 0
    wanted = whole["step"] >= 6
    for name in ("id", "step", "harm", "worst", "confidence", "probe_margin", "harm_std"):
        np.testing.assert_array_equal(whole[name][wanted], later[name])
    assert set(later["attempt"]) == {1}


@pytest.mark.parametrize("ids", ["int list", "strings", "numpy"])
def test_ids_of_any_kind_come_back_as_given(ids):
    train_set, holdout = data(num=12)
    pixels, labels = train_set
    names = {
        "int list": [10**12 + i for i in range(12)],
        "strings": [f"shard/{i:03d}.jpg" for i in range(12)],
        "numpy": np.arange(100, 112),
    }[ids]
    model = fresh()
    monitor = watch(model, holdout, train_size=12)
    for _ in range(6):
        with monitor.step(names, labels):
            F.cross_entropy(model(pixels), labels).backward()
    run = monitor.close()
    assert sorted(run.examples()["id"].tolist()) == sorted(np.asarray(names).tolist())
    assert (run.examples()["n_visits"] == 6).all()


def test_repeated_ids_in_one_step_are_one_visit():
    train_set, holdout = data(num=12)
    pixels, labels = train_set
    labels = torch.zeros_like(labels)
    model = fresh()
    monitor = watch(model, holdout, train_size=12)
    for _ in range(5):
        with monitor.step([0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10], labels):
            F.cross_entropy(model(pixels), labels).backward()
    run = monitor.close()
    assert len(run.examples()["id"]) == 11
    flags = run.visits["flags"].astype(int)
    assert ((flags & VisitFlag.REPEATED) > 0).sum() == 5


def test_a_wrong_reduction_is_refused_on_the_first_step_with_the_value_found():
    train_set, holdout = data()
    model = fresh()
    monitor = watch(model, holdout, loss_reduction="sum")
    with pytest.raises(HeadError, match=r"times what the declared settings say"):
        train(model, train_set, monitor)


def test_class_weights_need_their_factor_and_then_score():
    train_set, holdout = data()
    pixels, labels = train_set
    weights = torch.tensor([1.0, 3.0, 0.5, 2.0], dtype=torch.float64)

    def per_example(outputs, targets):
        return F.cross_entropy(outputs, targets, weight=weights.to(outputs.dtype), reduction="none")

    model = fresh()
    monitor = watch(model, holdout, loss=per_example)
    with pytest.raises(HeadError, match="times what the declared"), monitor.step(torch.arange(48), labels):
        F.cross_entropy(model(pixels), labels, weight=weights).backward()
    monitor = watch(model, holdout, loss=per_example)
    for _ in range(6):
        with monitor.step(torch.arange(48), labels, grad_factor=weights[labels].sum()):
            F.cross_entropy(model(pixels), labels, weight=weights).backward()
    assert monitor.counters["faults"] == 0
    assert monitor.counters["visits"] >= 48


def focal(outputs, targets):
    log_p = outputs.log_softmax(1).gather(1, targets[:, None])[:, 0]
    return -((1 - log_p.exp()) ** 2) * log_p


def one_versus_all(outputs, targets):
    return F.binary_cross_entropy_with_logits(
        outputs, F.one_hot(targets, outputs.shape[1]).to(outputs.dtype), reduction="none"
    ).sum(1)


@pytest.mark.parametrize("per_example", [focal, one_versus_all])
def test_other_losses_are_scored_when_declared_and_refused_when_not(per_example):
    train_set, holdout = data()
    model = fresh()
    monitor = watch(model, holdout, loss=per_example)
    train(model, train_set, monitor, loss=lambda z, y: per_example(z, y).mean())
    assert monitor.counters["faults"] == 0
    monitor = watch(fresh(), holdout)
    with pytest.raises(HeadError, match=r"do not look like cross-entropy|times what the declared"):
        train(monitor.model, train_set, monitor, loss=lambda z, y: per_example(z, y).mean())


def test_a_mixup_recipe_with_smoothing_scores_the_steps_that_are_not_mixed():
    """Batch-level Mixup with probability one half and label smoothing, the common recipe for vision transformers."""
    train_set, holdout = data()
    pixels, labels = train_set
    model = fresh()
    hot = F.one_hot(labels, 4).double() * 0.9 + 0.1 / 4

    def smoothed(outputs, targets):  # training targets are smoothed already, the hold-out's are classes
        given = targets.dim() == 1
        return F.cross_entropy(outputs, targets, label_smoothing=0.1 if given else 0.0, reduction="none")

    monitor = watch(model, holdout, label_smoothing=0.1, loss=smoothed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(3)
    mixed_rows = 0
    for step in range(30):
        indices = torch.randperm(48, generator=generator)[:12]
        x, t = pixels[indices], hot[indices]
        if step % 2:
            x, t = 0.6 * x + 0.4 * x.flip(0), 0.6 * t + 0.4 * t.flip(0)
            mixed_rows += int((labels[indices] != labels[indices].flip(0)).sum())
        with monitor.step(indices, t):
            F.cross_entropy(model(x), t).backward()
        optimizer.step()
        optimizer.zero_grad()
    run = monitor.close()
    assert monitor.counters["faults"] == 0
    assert monitor.counters["visits_mixed"] == mixed_rows
    assert (run.examples()["n_visits"] > 0).all()


@pytest.mark.parametrize("scaled", [False, True])
def test_bf16_autocast_clipping_and_a_loss_scale(scaled):
    train_set, holdout = data(dtype=torch.float32)
    pixels, labels = train_set
    model = fresh(dtype=torch.float32)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=scaled)
    monitor = watch(model, holdout, scaler=scaler)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(10):
        with monitor.step(torch.arange(48), labels):
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(model(pixels), labels)
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert monitor.counters["faults"] == 0
    assert monitor._autocast == torch.bfloat16


def test_numerical_trouble_never_stops_the_training(caplog):
    train_set, holdout = data()
    pixels, labels = train_set
    model = fresh()
    monitor = watch(model, holdout)
    for step in range(12):
        x = pixels * (float("nan") if step in (4, 5, 8) else 1.0)
        with monitor.step(torch.arange(48), labels):
            F.cross_entropy(model(x), labels).backward()
        model.zero_grad()
    run = monitor.close()
    assert monitor.counters["visits_not_finite"] == 3 * 48
    assert np.isfinite(run.examples()["harm"]).all()
    assert torch.isfinite(monitor.engine.tracker.columns).all()


def test_an_error_of_our_own_is_counted_logged_once_and_kept_from_the_user(monkeypatch, caplog):
    train_set, holdout = data()
    model = fresh()
    monitor = watch(model, holdout)
    train(model, train_set, monitor, epochs=1)

    def broken(*_):
        raise RuntimeError("a bug in the monitor")

    monkeypatch.setattr(monitor.engine, "score", broken)
    with caplog.at_level(logging.WARNING):
        train(model, train_set, monitor, epochs=6)
    assert monitor.faults == {"RuntimeError: a bug in the monitor": 20}
    assert not monitor.is_on
    assert sum("could not be scored; the training goes on" in message for message in caplog.messages) == 1


def test_the_stability_proxy_is_the_learning_rate_times_the_gradients_norm():
    from sgoif.influence import GateSettings

    train_set, holdout = data()
    pixels, labels = train_set
    model = fresh()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    gate = GateSettings(beta_power=1.0, decay_weight=0.0)
    monitor = sgoif.watch(model, optimizer, anchors=holdout, train_size=48, plan=PLAN, gate=gate)
    with monitor.step(torch.arange(48), labels):
        F.cross_entropy(model(pixels), labels).backward()
    norm = torch.cat([model.fc.weight.grad.flatten(), model.fc.bias.grad]).norm()
    np.testing.assert_allclose(monitor.engine.reading.beta.item(), 0.3 * norm.item() / 48, rtol=1e-6)


def test_ids_and_labels_may_be_reused_by_the_loop():
    train_set, holdout = data()
    pixels, labels = train_set
    model = fresh()
    monitor = watch(model, holdout)
    ids, given = torch.arange(48), labels.clone()
    for _ in range(2):
        with monitor.step(ids, given):
            F.cross_entropy(model(pixels), labels).backward()
        ids.fill_(-1), given.fill_(0)
        ids.copy_(torch.arange(48)), given.copy_(labels)
    ids.fill_(-1), given.fill_(0)
    table = monitor.close().examples()
    assert sorted(table["id"].tolist()) == list(range(48))
    assert (table["given_label"][np.argsort(table["id"])] == labels.numpy()).all()


def test_the_users_own_exception_passes_through():
    train_set, holdout = data()
    model = fresh()
    monitor = watch(model, holdout)
    with pytest.raises(KeyError), monitor.step([1], train_set[1][:1]):
        raise KeyError("mine")
    train(model, train_set, monitor)
    assert monitor.counters["faults"] == 0


def test_two_hundred_classes_use_no_direction_per_class():
    classes = 200
    train_set, holdout = data(num=60, held=400, classes=classes)
    model = fresh(lambda: GroupNormNet(classes))
    monitor = watch(model, holdout, train_size=60)
    train(model, train_set, monitor, epochs=4)
    assert monitor.counters["faults"] == 0
    sizes = [t.numel() for t in monitor.engine.tracker.directions.values()]
    assert max(sizes) == classes * 7
    run = monitor.close()
    assert (run.examples()["suggested_label"] != run.examples()["given_label"]).all()


def test_the_dual_form_equals_the_direct_solve():
    """The per-class scores above 64 classes are those of a direction per class, solved with the same curvature."""
    from sgoif.gradients import Capture, ExactSpace, select_layers
    from sgoif.influence import DualAnchors

    torch.manual_seed(0)
    model, classes = GroupNormNet(5).float(), 5
    (pixels, labels), (held, held_labels) = data(num=20, held=15, classes=5, dtype=torch.float32)
    (layer,) = select_layers(model, ["fc"])
    space = ExactSpace(layer)

    def captured(x, y):
        with Capture([layer]) as capture:
            F.cross_entropy(model(x), y, reduction="sum").backward()
        return capture.calls[0]

    from sgoif.curvature import create

    train_call, held_call = captured(pixels, labels), captured(held, held_labels)
    curvature = create("kfac", {"fc": layer.shape})
    curvature.observe([space.rows(train_call)])
    dual = DualAnchors(15, classes, layer.shape.inputs, held_labels, classes)
    dual.update(torch.arange(15), space.rows(held_call), torch.ones(15))
    dual.factorise(curvature.operator("fc"))
    member = F.one_hot(held_labels, classes).float()
    g = {"fc": space.combine(held_call, member / member.sum(0))}
    expected = space.dots(train_call, curvature.solve(g)["fc"])
    torch.testing.assert_close(dual.dots(space.rows(train_call)), expected, rtol=1e-3, atol=1e-5)
    plain = space.dots(train_call, g["fc"])
    torch.testing.assert_close(dual.dots(space.rows(train_call), identity=True), plain, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("classes", [4, 100])
def test_a_scored_step_runs_on_the_meta_device_where_host_syncs_raise(classes):
    from sgoif.gradients import Capture, select_layers
    from sgoif.influence import HoldOut
    from sgoif.training.engine import Engine, EngineSettings
    from sgoif.training.signals import SIGNALS

    model = GroupNormNet(classes).to("meta")
    (head,) = select_layers(model, ["fc"])
    holdout = HoldOut((torch.zeros(2 * classes, 3, 8, 8), torch.arange(2 * classes) % classes), device="meta")
    settings = EngineSettings(probe=False)
    engine = Engine(head, [], holdout, settings, train_size=10, planned_steps=10, per_refresh=4)
    capture = Capture([head], keep_outputs=["fc"])
    labels = torch.zeros(6, dtype=torch.int64, device="meta")
    for _ in range(3):
        with capture:
            F.cross_entropy(model(torch.zeros(6, 3, 8, 8, device="meta")), labels).backward()
        with torch.no_grad():
            packed = engine.score(capture.calls, capture.calls[0].output, labels, None)
            engine.measure(capture.calls)
            engine.absorb()
            engine.advance(0.1, 0.0)
    assert packed.shape == (6, len(SIGNALS))


def test_further_layers_are_scored_in_a_projection():
    train_set, holdout = data()
    model = fresh()
    monitor = watch(model, holdout, layers=["conv"])
    train(model, train_set, monitor)
    assert set(monitor.engine.tracker.directions) == {"fc", "conv"}
    assert monitor.counters["faults"] == 0


def test_a_compiled_model_is_refused_with_the_way_out():
    with pytest.raises(SgoifError, match="Compile the part before the head"):
        watch(torch.compile(fresh()), data()[1])


def test_disabled_by_the_environment(monkeypatch):
    monkeypatch.setenv("SGOIF_DISABLE", "1")
    train_set, holdout = data()
    model = fresh()
    monitor = watch(model, holdout)
    train(model, train_set, monitor)
    assert monitor.close() is None


def test_a_run_is_written_and_reads_back(tmp_path):
    import json

    import pyarrow.parquet as pq

    train_set, holdout = data()
    model = fresh()
    monitor = watch(model, holdout, out=str(tmp_path / "run"))
    train(model, train_set, monitor)
    run = monitor.close()
    assert pq.read_table(tmp_path / "run" / "examples.parquet").num_rows == 48
    assert pq.read_table(tmp_path / "run" / "visits.parquet").num_rows == 144
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    assert info["num_examples"] == 48
    assert run.worst(3)["id"].shape == (3,)


def test_the_governor_backs_off_and_says_so():
    from sgoif.training.schedule import Governor

    governor = Governor(PLAN, max_overhead=0.1, window=10)
    for step in range(40):
        governor.note(0.5, 1.0)
        governor.decide(step)
    assert governor.plan.refresh_every > PLAN.refresh_every
    assert governor.changes[0]["overhead"] == 1.0
    fixed = Governor(PLAN, fixed=True, window=10)
    for step in range(40):
        fixed.note(0.5, 1.0)
        fixed.decide(step)
    assert fixed.plan == PLAN
    assert Governor(sgoif.Plan()).overhead == 0.0
