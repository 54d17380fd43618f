"""At close() the finished model is asked once more about all examples; a pass that fails costs itself alone."""

import logging

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

import sgoif
from sgoif.evidence import LAST_COLUMNS
from sgoif.training.closing_pass import final_views, predict_holdout
from tests.training.loops import TwoParts, data, fresh, train, watch

NUM = 48


def trained(*, make=TwoParts, epochs=3, ids=None, loop=train, **settings):
    train_set, holdout = data(apart=1.0)
    model = fresh(make)
    monitor = watch(model, holdout, **settings)
    loop(model, train_set, monitor, epochs=epochs)
    return model, monitor, train_set, holdout


def logs(model, pixels):
    """In eval mode, which is how the model is left."""
    with torch.no_grad():
        return model.eval()(pixels).log_softmax(1)


def by_hand(model, pixels, labels):
    log_p = logs(model, pixels)
    own, rest = log_p.gather(1, labels[:, None])[:, 0], log_p.scatter(1, labels[:, None], -torch.inf)
    return own.exp(), own - rest.max(1).values, rest.argmax(1)


def check(table, model, train_set):
    """The last predictions of a run are those of a model; returns how many examples they are of."""
    at = torch.as_tensor(np.asarray(table["id"]).astype(np.int64))
    for name, values in zip(LAST_COLUMNS, by_hand(model, train_set[0][at], train_set[1][at]), strict=True):
        np.testing.assert_allclose(table[name], values.numpy(), rtol=1e-5, atol=1e-6, err_msg=name)
    return len(at)


FORMS = {
    "tensors": lambda pixels, labels: (pixels, labels),
    "without labels": lambda pixels, labels: pixels,
    "dataset": lambda pixels, labels: sgoif.with_ids(TensorDataset(pixels, labels)),
    "loader": lambda pixels, labels: DataLoader(TensorDataset(pixels, labels), batch_size=5, shuffle=True),
    "dictionaries": lambda pixels, labels: [
        {"pixel_values": x, "label": int(y), "id": i} for i, (x, y) in enumerate(zip(pixels, labels))
    ],
}


@pytest.mark.parametrize("form", FORMS)
def test_the_last_predictions_are_the_finished_models(form, monkeypatch):
    monkeypatch.setattr("sgoif.training.closing_pass._BATCH", 7)
    model, monitor, train_set, _ = trained()
    was_training = model.training
    run = monitor.close(FORMS[form](*train_set))
    assert model.training == was_training and monitor.faults == {}
    assert check(run.table, model, train_set) == NUM
    view = run.info["final_view"]
    assert {name: view[name] for name in ("from", "examples", "missing", "not_seen")} == {
        "from": "pass",
        "examples": NUM,
        "missing": 0,
        "not_seen": 0,
    }
    assert 0 < view["seconds"] < 60 and 0 < view["holdout_seconds"] < 60


def test_without_the_dataset_the_last_visits_stand_in(tmp_path):
    _, monitor, _, _ = trained(out=str(tmp_path / "run"), epochs=2)
    run = monitor.close()
    visits = run.visits
    order = np.lexsort((visits["step"], visits["id"]))
    last = np.flatnonzero(np.diff(visits["id"][order], append=-1))
    at = order[last]
    table = {name: run.table[name][np.argsort(run.table["id"])] for name in LAST_COLUMNS}
    for name in LAST_COLUMNS:
        np.testing.assert_array_equal(table[name], visits[name.removesuffix("_last")][at], err_msg=name)
    assert run.info["final_view"]["from"] == "visits" and run.info["final_view"]["examples"] == 0
    assert run.info["final_view"]["missing"] == NUM
    read = sgoif.load(str(tmp_path / "run"))
    assert read.info["final_view"] == run.info["final_view"]
    assert [read.table[name].dtype for name in LAST_COLUMNS] == [np.float32, np.float32, np.int32]


def test_examples_that_are_missing_keep_their_last_visit_and_those_never_seen_are_ignored():
    model, monitor, (pixels, labels), _ = trained()
    monitor.flush()
    before = monitor.recorder.last.columns(NUM)
    rows = monitor.recorder.index.rows(np.arange(NUM))
    half = NUM // 2
    ids = list(range(half)) + list(range(1000, 1000 + half))  # the second half under ids that no step had
    run = monitor.close((pixels, labels, ids))
    view = run.info["final_view"]
    assert (view["examples"], view["missing"], view["not_seen"]) == (half, half, half)
    assert len(run.table["id"]) == NUM
    is_given = run.table["id"] < half
    check({name: column[is_given] for name, column in run.table.items()}, model, (pixels, labels))
    for name in LAST_COLUMNS:
        np.testing.assert_array_equal(run.table[name][rows[half:]], before[name][rows[half:]])


def broken(pixels, labels):
    class Broken(TensorDataset):
        def __getitem__(self, index):
            raise OSError("the disk is gone")

    return Broken(pixels, labels)


REFUSED = {
    "no example can be read": (broken, "the disk is gone"),
    "no dataset": (lambda pixels, labels: 3, "expected a tuple"),
    "ids of another kind": (lambda pixels, labels: (pixels, labels, [f"{i}" for i in range(NUM)]), "given strings"),
    "ids of none": (lambda pixels, labels: (pixels, labels, list(range(500, 500 + NUM))), "none of the 48 examples"),
    "ids of others": (lambda pixels, labels: (pixels.flip(0), labels.flip(0)), "of the labels of dataset"),
    "another shape": (lambda pixels, labels: (pixels[:, :1], labels), "expected input"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_pass_that_fails_costs_itself_alone(case, caplog):
    make, message = REFUSED[case]
    model, monitor, train_set, _ = trained()
    monitor.flush()
    before = monitor.recorder.last.columns(NUM)
    modes = [module.training for module in model.modules()]
    with caplog.at_level(logging.WARNING):
        run = monitor.close(make(*train_set))
    (said,) = [text for text in caplog.messages if "last visits stand in" in text]
    assert message in said
    assert run.info["final_view"]["from"] == "visits" and run.info["final_view"]["missing"] == NUM
    for name in LAST_COLUMNS:
        np.testing.assert_array_equal(run.table[name], before[name])
    assert [module.training for module in model.modules()] == modes
    assert sum(run.info["faults"].values()) == 1


def test_examples_that_cannot_be_read_are_missing_and_the_others_are_not():
    class Holes(TensorDataset):
        def __getitem__(self, index):
            if int(index) % 5 == 3:
                raise OSError("a hole")
            return super().__getitem__(index)

    model, monitor, train_set, _ = trained()
    run = monitor.close(Holes(*train_set))
    is_hole = run.table["id"] % 5 == 3
    view = run.info["final_view"]
    assert (view["from"], view["examples"], view["missing"]) == ("pass", int((~is_hole).sum()), int(is_hole.sum()))
    check({name: column[~is_hole] for name, column in run.table.items()}, model, train_set)


def test_the_hold_out_is_predicted_in_its_order_by_the_finished_model():
    model, monitor, _, (pixels, _) = trained()
    found = predict_holdout(model, monitor.engine, monitor._as_trained())
    expected = logs(model, pixels).numpy()
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    some = torch.tensor([5, 2, 11])
    np.testing.assert_array_equal(predict_holdout(model, monitor.engine, monitor._as_trained(), some), found[some])
    monitor.engine.predicted.fill_(-1)
    np.testing.assert_array_equal(final_views(monitor).held_log_p, found)
    assert monitor.engine.predicted.tolist() == expected.argmax(1).tolist()


def test_of_a_hold_out_too_large_a_part_is_predicted(monkeypatch):
    _, monitor, _, _ = trained()
    monkeypatch.setattr("sgoif.training.closing_pass._MOST_NUMBERS", 4 * 6)
    assert final_views(monitor).held_log_p is None
    assert int((monitor.engine.predicted >= 0).sum()) == 6


def test_the_pass_has_the_precision_of_the_training():
    train_set, holdout = data(apart=1.0, dtype=torch.float32)
    model = fresh(TwoParts, dtype=torch.float32)
    monitor = watch(model, holdout)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for part in torch.arange(NUM).split(12):
        with monitor.step(part, train_set[1][part]):
            with torch.autocast("cpu", torch.bfloat16):
                outputs = model(train_set[0][part])
            F.cross_entropy(outputs.float(), train_set[1][part]).backward()
        optimizer.step()
        optimizer.zero_grad()
    run = monitor.close(train_set)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        log_p = model.eval()(train_set[0]).float().log_softmax(1)
    order = np.argsort(run.table["id"])
    expected = log_p.gather(1, train_set[1][:, None])[:, 0].exp().numpy()
    np.testing.assert_allclose(run.table["p_given_last"][order], expected, rtol=1e-5)


def test_the_label_is_the_one_that_was_given_last():
    def loop(model, train_set, monitor, epochs):
        train(model, train_set, monitor, epochs=1)
        train(model, (train_set[0], changed), monitor, epochs=1)

    changed = data(apart=1.0)[0][1].clone()
    changed[:4] = (changed[:4] + 1) % 4
    model, monitor, train_set, _ = trained(loop=loop)
    run = monitor.close(train_set)
    assert check(run.table, model, (train_set[0], changed)) == NUM


def test_two_epochs_resumed_keep_the_last_visit_of_the_second(tmp_path):
    train_set, holdout = data(apart=1.0)
    model = fresh()
    first = watch(model, holdout)
    train(model, train_set, first, epochs=1)
    state = first.state_dict()
    early = first.recorder.last.columns(NUM)
    second = watch(model, holdout)
    second.load_state_dict(state)
    np.testing.assert_array_equal(second.recorder.last.columns(NUM)["margin_last"], early["margin_last"])
    train(model, train_set, second, epochs=1)
    run = second.close()
    visits = run.visits
    for row, id in enumerate(run.table["id"]):
        mine = np.flatnonzero(visits["id"] == id)
        assert run.table["margin_last"][row] == np.float32(visits["margin"][mine[-1]])
    assert (run.table["margin_last"] != early["margin_last"]).any()


def test_several_processes_are_asked_nothing(monkeypatch, caplog):
    _, monitor, train_set, _ = trained()
    monitor.flush()
    monkeypatch.setattr(type(monitor.peers), "is_alone", False)
    with caplog.at_level(logging.WARNING):
        found = final_views(monitor, train_set)
    assert found.held_log_p is None and found.facts["from"] == "visits"
    assert sum("several processes" in text for text in caplog.messages) == 1


def test_other_tasks_say_that_they_have_no_use_for_it(caplog):
    (pixels, labels), (held, held_labels) = data()
    model = fresh()
    anchors = held, F.one_hot(held_labels, 4).double()
    monitor = sgoif.watch(model, anchors=anchors, train_size=NUM, task="multilabel")
    targets = F.one_hot(labels, 4).double()
    with monitor.step(torch.arange(12), targets[:12]):
        F.binary_cross_entropy_with_logits(model(pixels[:12]), targets[:12]).backward()
    with caplog.at_level(logging.WARNING):
        run = monitor.close((pixels, targets))
    (said,) = [text for text in caplog.messages if "close(dataset)" in text]
    assert "one class per example" in said and run is not None


def test_a_monitor_that_is_switched_off_asks_nothing(monkeypatch):
    monkeypatch.setenv("SGOIF_DISABLE", "1")
    train_set, holdout = data()
    monitor = watch(fresh(), holdout)
    assert not len(monitor.close(train_set).table.get("id", ()))
