"""The monitor inside a real training loop: it scores what it says, and what it wrote is counted once."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import sgoif
from tests.training.loops import data, fresh, take_step, train, train_watched, watch


def gradients_of(model, pixels, labels):
    """The gradient of one example at the head and at the convolution, by autograd, as matrices with their biases."""
    model.zero_grad()
    F.cross_entropy(model(pixels[None]), labels[None]).backward()
    layers = {"fc": model.fc, "conv": model.conv}
    return {name: torch.cat([la.weight.grad.flatten(1), la.bias.grad[:, None]], 1) for name, la in layers.items()}


@pytest.mark.parametrize("layers", ["auto", ["conv"]])
def test_harm_is_minus_the_tracked_direction_times_the_gradient(layers):
    """Of further layers, in a projection that is the same for directions and gradients."""
    monitor = train_watched(epochs=2, gate="none", layers=layers)
    model, (pixels, labels) = monitor.model, data()[0]
    directions, spaces = {k: v.double() for k, v in monitor.engine.directions().items()}, monitor.engine.spaces
    assert set(directions) == {"fc", *([] if layers == "auto" else layers)}
    monitor.flush()
    before = len(monitor.recorder.sink.visits()["id"])
    take_step(monitor, torch.arange(6), pixels[:6], labels[:6])
    monitor.flush()
    assert monitor.faults == {}
    visits = {name: column[before:] for name, column in monitor.recorder.sink.visits().items()}
    for i in range(6):
        found = gradients_of(model, pixels[i], labels[i])
        if layers != "auto":
            found["conv"] = spaces["conv"].left[0] @ found["conv"] @ spaces["conv"].right[0].mT
        influence = -sum(torch.einsum("kgoi,oi->k", at, found[name]) for name, at in directions.items())
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
    for name in one:  # float64: only the order of summation differs
        np.testing.assert_allclose(one[name], four[name], rtol=1e-8, atol=1e-12)


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


def test_a_run_is_written_and_reads_back(tmp_path):
    run, again = train_watched(out=str(tmp_path / "run")).close(), sgoif.load(tmp_path / "run")
    expected = train_watched().close()
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
    for found in (run, expected):
        assert found.sql("select count(*) as n from visits")["n"].to_pylist() == [144]


def test_a_resumed_run_counts_nothing_twice(tmp_path):
    train_set, holdout = data()
    first = train_watched(epochs=1, out=str(tmp_path / "run"))
    state, weights = first.state_dict(), copy.deepcopy(first.model.state_dict())
    train(first.model, train_set, first, epochs=1)  # and here the process dies: nothing is closed
    first.flush()
    first.recorder.sink.checkpoint()
    assert len(sgoif.load(tmp_path / "run").visits["id"]) == 96
    again = fresh()
    again.load_state_dict(weights)
    second = watch(again, holdout, out=str(tmp_path / "run"))
    second.load_state_dict(state)
    train(again, train_set, second, epochs=2)
    run = second.close()
    assert np.bincount(run.visits["attempt"]).tolist() == [48, 96]
    assert (run.table["n_visits"] == 3).all()


def test_the_anchors_table_holds_the_error_terms_of_every_refresh():
    monitor, ((pixels, labels), _) = train_watched(leak_horizon=None), data()
    take_step(monitor, torch.arange(48), pixels, labels)
    refreshes, engine = monitor.refreshes, monitor.engine
    phi, goal = engine.directions()["fc"].flatten(1), engine.anchors.gradients["fc"].flatten(1)
    left = goal.mT - engine.curvature.operator("fc") @ phi.mT
    take_step(monitor, torch.arange(48), pixels, labels)  # looks at no anchor, and sees what the last step left
    np.testing.assert_allclose(engine.reading.residual, left.norm(dim=0) / goal.norm(dim=1), rtol=1e-6)
    table = monitor.close().anchors().to_pydict()
    # before the first product there is nothing to say
    assert len(table["residual"]) == 4 * (refreshes - 1)
    assert table["class"][:4] == [0, 1, 2, 3]
    for name in ("residual", "curvature_gap", "coverage", "smallest_eigenvalue", "largest_cosine", "g_norm"):
        assert np.isfinite(table[name]).all(), name
    assert all(0 <= value <= 1 for value in table["coverage"])
    assert all(m == 6 for m in table["m"])
