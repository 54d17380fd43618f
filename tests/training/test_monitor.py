"""The monitor inside a real training loop: it changes nothing, scores what it says and resumes exactly."""

import copy
import io

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import sgoif
from sgoif.errors import SgoifError
from sgoif.influence import GateSettings
from tests.cases import ResidualNet
from tests.training.loops import PLAN, GroupNormNet, data, fresh, train, watch


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
    directions = {name: value.double() for name, value in monitor.engine.directions().items()}
    monitor.flush()
    before = len(monitor.recorder.sink.visits()["id"])
    with monitor.step(torch.arange(6), labels[:6]):
        F.cross_entropy(model(pixels[:6]), labels[:6]).backward()
    monitor.flush()
    visits = {name: column[before:] for name, column in monitor.recorder.sink.visits().items()}
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
        train(model, train_set, monitor, accumulate=accumulate)
        assert monitor.counters["faults"] == 0
        tables.append(monitor.close().visits)
    one, four = ({name: t[name][np.lexsort((t["id"], t["step"]))] for name in ("id", "harm", "worst")} for t in tables)
    assert (one["id"] == four["id"]).all()
    for name in ("harm", "worst"):
        np.testing.assert_allclose(
            one[name], four[name], rtol=1e-8, atol=1e-12
        )  # float64: only the order of summation differs


def test_a_shorter_last_window_is_declared_step_by_step():
    """Frameworks step at the end of an epoch, whether ``accumulate`` micro-batches have come or not."""
    (pixels, labels), holdout = data(num=50)
    tables = []
    for parts in ([20, 20, 10], [10, 10, 10, 10, 10]):
        model = fresh()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        monitor = watch(model, holdout, train_size=50, accumulate=1 if parts[0] == 20 else 2)
        for _ in range(4):
            for number, part in enumerate(torch.arange(50).split(parts)):
                is_last = len(part) == 20 or number in (1, 3) or part[-1] == 49
                windows = 1 if len(part) == 20 or part[-1] == 49 else 2
                with monitor.step(part, labels[part], accumulate=windows, is_last=bool(is_last)):
                    (F.cross_entropy(model(pixels[part]), labels[part]) / windows).backward()
                if is_last:
                    optimizer.step()
                    optimizer.zero_grad()
        assert (monitor.step_count, monitor.faults) == (12, {})
        tables.append(monitor.close().visits)
    for name in ("id", "step", "harm", "worst"):
        np.testing.assert_allclose(tables[0][name], tables[1][name], rtol=1e-8, atol=1e-12)  # float64, other sums


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
            torch.save(first.state_dict(), file := io.BytesIO())
            file.seek(0)
            saved["monitor"] = torch.load(file, weights_only=True)  # nothing but tensors and plain values
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


def test_the_stability_proxy_is_the_learning_rate_times_the_gradients_norm():

    train_set, holdout = data()
    pixels, labels = train_set
    model = fresh()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    gate = GateSettings(beta_power=1.0, decay_weight=0.0)
    monitor = sgoif.watch(
        model, optimizer, anchors=holdout, train_size=48, method=sgoif.Method(gate=gate), budget=sgoif.Budget(plan=PLAN)
    )
    with monitor.step(torch.arange(48), labels):
        F.cross_entropy(model(pixels), labels).backward()
    norm = torch.cat([model.fc.weight.grad.flatten(), model.fc.bias.grad]).norm()
    np.testing.assert_allclose(monitor.engine.reading.beta.item(), 0.3 * norm.item() / 48, rtol=1e-6)


def test_further_layers_are_scored_in_a_projection():
    train_set, holdout = data()
    model = fresh()
    monitor = watch(model, holdout, layers=["conv"])
    train(model, train_set, monitor)
    assert set(monitor.engine.directions()) == {"fc", "conv"}
    assert monitor.counters["faults"] == 0


def test_a_run_is_written_and_reads_back(tmp_path):
    train_set, holdout = data()
    model = fresh()
    monitor = watch(model, holdout, out=str(tmp_path / "run"))
    train(model, train_set, monitor)
    run, again = monitor.close(), sgoif.load(tmp_path / "run")
    in_memory = watch(fresh(), holdout)
    train(in_memory.model, train_set, in_memory)
    expected = in_memory.close()
    for found in (run, again):
        assert found.info["num_examples"] == 48
        assert found.info["state"] == "finished"
        assert len(found.visits["id"]) == 144
        order, wanted = np.argsort(found.table["id"]), np.argsort(expected.table["id"])
        for name, column in expected.table.items():
            if column.dtype.kind == "f":
                np.testing.assert_allclose(found.table[name][order], column[wanted], rtol=1e-6, err_msg=name)
            else:
                assert found.table[name][order].tolist() == column[wanted].tolist(), name
    assert run.sql("select count(*) as n from visits")["n"].to_pylist() == [144]
    assert expected.sql("select count(*) as n from visits")["n"].to_pylist() == [144]


def test_a_resumed_run_counts_nothing_twice(tmp_path):
    train_set, holdout = data()
    model = fresh()
    first = watch(model, holdout, out=str(tmp_path / "run"))
    train(model, train_set, first, epochs=1)
    state, weights = first.state_dict(), copy.deepcopy(model.state_dict())
    train(model, train_set, first, epochs=1)  # and here the process dies: nothing is closed
    first.flush()
    first.recorder.sink.checkpoint()
    assert len(sgoif.load(tmp_path / "run").visits["id"]) == 96
    again = fresh()
    again.load_state_dict(weights)
    second = watch(again, holdout, out=str(tmp_path / "run"))
    second.load_state_dict(state)
    train(again, train_set, second, epochs=2)
    run = second.close()
    assert len(run.visits["id"]) == 144
    assert (run.table["n_visits"] == 3).all()


def test_the_disk_may_fail_and_the_run_is_there(tmp_path, monkeypatch):
    train_set, holdout = data()
    model = fresh()
    monitor = watch(model, holdout, out=str(tmp_path / "run"))
    train(model, train_set, monitor)

    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr(monitor.recorder.sink, "write_table", full)
    run = monitor.close()
    assert run.worst(3)["id"].shape == (3,)


def test_the_anchors_table_holds_the_error_terms_of_every_refresh():
    train_set, holdout = data()
    model = fresh()
    monitor = watch(model, holdout)
    train(model, train_set, monitor)
    refreshes, table = monitor.refreshes, monitor.close().anchors().to_pydict()
    # before the first product there is nothing to say
    assert len(table["residual"]) == 4 * (refreshes - 1)
    assert table["class"][:4] == [0, 1, 2, 3]
    for name in ("residual", "curvature_gap", "coverage", "smallest_eigenvalue", "largest_cosine", "g_norm"):
        assert np.isfinite(table[name]).all(), name
    assert all(0 <= value <= 1 for value in table["coverage"])
    assert all(m == 6 for m in table["m"])
    operator = monitor.engine.curvature.operator("fc")
    phi = monitor.engine.directions()["fc"]
    gradient = monitor.engine.anchors.gradients["fc"]
    left = (gradient.flatten(1).mT - operator @ phi.flatten(1).mT).norm(dim=0) / gradient.flatten(1).norm(dim=1)
    assert (left < 2).all()  # the residual is against this very H


def test_what_watch_would_ignore_is_refused():
    """Before, an unknown solver ran as Richardson."""
    _, holdout = data()
    with pytest.raises(SgoifError, match="solver must be one of richardson, direct, neumann, cg, got 'foo'"):
        watch(fresh(), holdout, solver="foo")
