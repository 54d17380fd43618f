"""Every row that a loop offers is recorded, refused or lost, and the run says which and why."""

import logging

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import sgoif
from sgoif.errors import SgoifError
from sgoif.records import SIGNALS, VisitFlag
from sgoif.training.accounting import AFTER_SWITCHED_OFF, OUTSIDE_CLASSES, VisitCounts
from sgoif.training.visits import PendingVisits, read_visits
from tests.training.loops import batches, data, fresh, run_twins, train, watch


def assert_adds_up(counters):
    assert counters["visits_offered"] == counters["visits"] + counters["visits_refused"] + counters["visits_lost"]


def one_step(model, monitor, ids, pixels, labels):
    with monitor.step(ids, labels):
        F.cross_entropy(model(pixels), labels).backward()
    model.zero_grad()


def test_a_bad_batch_of_ids_costs_its_own_rows_and_no_others():
    """Before, what waited behind it was discarded uncounted: 186 of 600 visits of one run."""
    (pixels, labels), holdout = data()
    model = fresh()
    monitor = watch(model, holdout, plan=sgoif.Plan(refresh_every=50, observe_every=2))
    bad = {3: torch.arange(12).float(), 5: [str(i) for i in range(12)], 7: list(range(11)), 9: [None] * 12}
    for step in range(12):
        one_step(model, monitor, bad.get(step, torch.arange(12)), pixels[:12], labels[:12])
    counters = monitor.counters
    assert (counters["visits_offered"], counters["visits"], counters["visits_refused"]) == (144, 96, 48)
    assert_adds_up(counters)
    assert len(monitor.faults) == 4 and monitor.is_on
    run = monitor.close()
    assert len(run.visits["id"]) == 96
    assert sum(run.info["visits_refused"].values()) == 48 and run.info["visits_lost"] == {}
    assert any("float64" in cause or "float32" in cause for cause in run.info["visits_refused"])


def test_refusals_never_switch_the_monitor_off():
    (pixels, labels), holdout = data()
    model = fresh()
    monitor = watch(model, holdout)
    one_step(model, monitor, torch.arange(12), pixels[:12], labels[:12])
    for _ in range(30):
        one_step(model, monitor, torch.arange(12).float(), pixels[:12], labels[:12])
    one_step(model, monitor, torch.arange(12), pixels[:12], labels[:12])
    assert monitor.is_on and monitor.counters["visits"] == 24
    assert_adds_up(monitor.counters)


def test_a_step_without_a_backward_pass_is_refused_and_counted():
    (pixels, labels), holdout = data()
    model = fresh()
    monitor = watch(model, holdout)
    one_step(model, monitor, torch.arange(48), pixels, labels)
    for _ in range(25):
        with monitor.step(torch.arange(48), labels), torch.no_grad():
            model(pixels)
    one_step(model, monitor, torch.arange(48), pixels, labels)
    counters = monitor.counters
    assert (counters["visits"], counters["visits_refused"]) == (96, 25 * 48)
    assert_adds_up(counters)


def test_the_users_own_exception_is_no_step():
    (pixels, labels), holdout = data()
    model = fresh()
    monitor = watch(model, holdout)
    one_step(model, monitor, torch.arange(48), pixels, labels)
    with pytest.raises(KeyError), monitor.step(torch.arange(48), labels):
        raise KeyError("mine")
    assert monitor.counters["visits_offered"] == monitor.counters["visits"] == 48


def test_rows_after_the_monitor_switched_itself_off_are_lost_and_counted(monkeypatch, caplog):
    train_set, holdout = data()
    model = fresh()
    monitor = watch(model, holdout)
    train(model, train_set, monitor, epochs=1)
    monitor.flush()

    def broken(*_, **__):
        raise RuntimeError("a bug in the monitor")

    monkeypatch.setattr(monitor.engine, "_score_queue", broken)
    train(model, train_set, monitor, epochs=6)
    counters = monitor.counters
    assert counters["visits_offered"] == 7 * 48 and counters["visits"] == 48
    assert counters["visits_lost"] == 6 * 48
    assert_adds_up(counters)
    with caplog.at_level(logging.INFO):
        run = monitor.close()
    assert run.info["visits_lost"] == {"RuntimeError: a bug in the monitor": 252, AFTER_SWITCHED_OFF: 36}
    (line,) = [record for record in caplog.records if "visits offered" in record.message]
    assert line.levelno == logging.WARNING and "a bug in the monitor: 252" in line.message


def test_a_user_who_detaches_loses_nothing():
    train_set, holdout = data()
    model = fresh()
    monitor = watch(model, holdout)
    train(model, train_set, monitor, epochs=1)
    monitor.detach()
    train(model, train_set, monitor, epochs=1)
    assert monitor.counters["visits_offered"] == monitor.counters["visits"] == 48


@pytest.mark.parametrize("how_many", ["once", "always"])
def test_memory_that_runs_out_while_visits_are_brought_to_the_host_is_counted(monkeypatch, how_many):
    """Before, a MemoryError there lost every visit since the last refresh, and nothing said so."""
    train_set, holdout = data()
    model = fresh()
    monitor = watch(model, holdout, plan=sgoif.Plan(refresh_every=100))
    train(model, train_set, monitor, epochs=1)
    monitor.flush()
    train(model, train_set, monitor, epochs=1)
    whole = torch.cat

    def full(tensors, *rest, **more):
        tensors = list(tensors)
        if how_many == "always" or len(tensors) > 3:
            raise MemoryError("no room")
        return whole(tensors, *rest, **more)

    with monkeypatch.context() as patch:
        patch.setattr("sgoif.training.visit_buffer.torch.cat", full)
        counters = monitor.counters
    assert counters["visits_offered"] == 96
    assert counters["visits_lost"] == (0 if how_many == "once" else 48)
    assert_adds_up(counters)
    assert_adds_up(monitor.close().info["counters"])


def test_memory_that_runs_out_while_visits_are_added_up_is_counted_once(monkeypatch):
    """Several micro-steps are added up in one call; where that fails half way, none of them is tried again."""
    train_set, holdout = data()
    model = fresh()
    monitor = watch(model, holdout, plan=sgoif.Plan(refresh_every=100))
    train(model, train_set, monitor, epochs=1)
    monitor.flush()
    train(model, train_set, monitor, epochs=1)

    def full(*_, **__):
        raise MemoryError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(monitor.recorder.evidence, "add", full)
        counters = monitor.counters
    assert (counters["visits_offered"], counters["visits_lost"]) == (96, 48)
    assert_adds_up(counters)
    assert_adds_up(monitor.close().info["counters"])


def test_the_counts_go_on_where_a_run_is_resumed():
    train_set, holdout = data()
    labels = train_set[1].clone()
    labels[::4] = -100
    model = fresh()
    monitor = watch(model, holdout)
    train(model, (train_set[0], labels), monitor, epochs=2)
    again = watch(model, holdout)
    again.load_state_dict(monitor.state_dict())
    train(model, (train_set[0], labels), again, epochs=1)
    counters = again.counters
    assert (counters["visits_offered"], counters["visits_refused"]) == (3 * 48, 3 * 12)
    assert_adds_up(counters)


def test_steps_that_the_plan_passes_over_are_not_offered():
    train_set, holdout = data()
    model = fresh()
    monitor = watch(model, holdout, plan=sgoif.Plan(stride=2))
    train(model, train_set, monitor, epochs=2)
    counters = monitor.counters
    assert (counters["visits_offered"], counters["visits_passed_over"]) == (48, 48)
    assert_adds_up(counters)


@pytest.mark.parametrize("share", ["some", "all of a batch"])
def test_rows_with_ignore_index_are_refused_alone(share):
    """Before, one such row lost its batch, and 20 such batches in a row the rest of the run."""
    (pixels, labels), holdout = data()
    labels = labels.clone()
    labels[::3] = -100
    if share != "some":
        labels[:12] = -100
    parts = list(torch.arange(48).split(12))

    def loop(model, step):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for part in parts[::-1] * 4:
            with step(part, labels[part]):
                F.cross_entropy(model(pixels[part]), labels[part]).backward()
            if not (labels[part] < 0).all():
                optimizer.step()
            optimizer.zero_grad()

    _, run = run_twins(fresh, loop, holdout)
    num_ignored = int((labels < 0).sum())
    counters = run.info["counters"]
    assert counters["visits_refused"] == counters["visits_ignored"] == 4 * num_ignored
    assert counters["visits_offered"] == 4 * 48
    assert_adds_up(counters)
    assert run.info["visits_refused"] == {OUTSIDE_CLASSES: 4 * num_ignored}
    assert sorted(run.table["id"].tolist()) == torch.nonzero(labels >= 0).flatten().tolist()
    assert (run.table["given_label"] == labels.numpy()[run.table["id"]]).all()
    assert (run.table["n_visits"] == 4).all()


@pytest.mark.parametrize("ignore_index", [-100, -1, 4, 255])
def test_scores_beside_ignored_rows_are_those_of_the_other_rows_alone(ignore_index):
    """The mean divides by the rows that count, and so does the captured factor."""
    (pixels, labels), holdout = data()
    with_ignored = labels.clone()
    with_ignored[1::2] = ignore_index
    keep = with_ignored != ignore_index
    visits = []
    for ids, x, y in (
        (torch.arange(48), pixels, with_ignored),
        (torch.arange(48)[keep], pixels[keep], labels[keep]),
    ):
        model = fresh()
        monitor = watch(model, holdout, curvature="diagonal")
        for _ in range(9):
            with monitor.step(ids, y):
                F.cross_entropy(model(x), y, ignore_index=ignore_index).backward()
        assert monitor.faults == {}
        visits.append(monitor.close().visits)
    for name in ("id", "given_label", "loss", "margin", "harm", "worst", "own", "harm_solved", "probe_loss"):
        np.testing.assert_allclose(
            visits[0][name], visits[1][name], rtol=1e-6, atol=1e-9, err_msg=name
        )  # a float32 root


def test_ignored_rows_are_counted_without_waiting_for_the_device():
    from sgoif.training.targets import read_targets

    targets, outputs = torch.zeros(6, device="meta", dtype=torch.long), torch.zeros(6, 4, device="meta")
    given = read_targets(targets, outputs)
    assert given.num_classed.shape == () and given.thinning.shape == () and given.label_to_record.shape == (6,)


def packed(losses, flags):
    signals = np.zeros((len(losses), len(SIGNALS)), np.float32)
    signals[:, SIGNALS.index("loss")] = losses
    signals[:, SIGNALS.index("flags")] = flags
    return signals


@pytest.mark.parametrize(("order", "wanted"), [([1.0, np.nan, 3.0], 2.0), ([np.nan, 1.0, 3.0], 2.0)])
def test_a_repeated_id_is_the_mean_of_its_finite_rows(order, wanted):
    """Before, a later row that was NaN left the visit usable, with a NaN in it."""
    flags = [int(VisitFlag.NOT_FINITE) if np.isnan(loss) else 0 for loss in order]
    signals = packed([*order, 5.0], [*flags, 0])
    visits = read_visits(PendingVisits(np.array([7, 7, 7, 8]), np.array([1, 1, 1, 2]), signals, 0, 0))
    assert visits.ids.tolist() == [7, 8] and visits.usable.tolist() == [True, True]
    assert visits.columns["loss"].tolist() == [wanted, 5.0]
    assert visits.columns["flags"].tolist() == [VisitFlag.REPEATED, 0]


def test_a_repeated_id_without_a_finite_row_is_flagged():
    flag = int(VisitFlag.NOT_FINITE)
    signals = packed([np.nan, np.nan], [flag, flag])
    visits = read_visits(PendingVisits(np.array([7, 7]), np.array([1, 1]), signals, 0, 0))
    assert visits.usable.tolist() == [False]


def test_a_repeated_id_with_a_nan_row_trains_on_and_has_no_nan(caplog):
    (pixels, labels), holdout = data(num=12)
    model = fresh()
    monitor = watch(model, holdout, train_size=12)
    broken = pixels.clone()
    broken[1] = float("nan")
    for step in range(8):
        x = broken if step == 5 else pixels
        with monitor.step([0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10], labels):
            outputs = model(x)
            F.cross_entropy(outputs, labels).backward()
        model.zero_grad()
    run = monitor.close()
    assert np.isfinite(run.table["loss"]).all() and np.isfinite(run.table["harm"]).all()


def test_counts_of_several_processes_add_up():
    first, second, both = VisitCounts(), VisitCounts(), VisitCounts()
    first.offer(5), first.refuse(2, "a"), second.offer(7), second.refuse(1, "a"), second.lose(3, "b")
    both.load([first.state_dict(), second.state_dict()])
    assert (both.offered, both.refused, both.lost) == (12, {"a": 3}, {"b": 3})


def test_the_first_step_raises_for_wrong_weights_instead_of_going_on_without_scores():
    (pixels, labels), holdout = data()
    model = fresh()
    monitor = watch(model, holdout)
    step = monitor.step(torch.arange(48), labels, weights=torch.ones(3))
    with pytest.raises(SgoifError, match=r"weights of shape \(3,\) for 48 targets"), step:
        F.cross_entropy(model(pixels), labels).backward()


def test_an_error_inside_a_hook_of_a_step_that_the_user_left_is_not_the_next_steps():
    train_set, holdout = data()
    model = fresh()
    monitor = watch(model, holdout)
    part, x, y = next(iter(batches(train_set)))
    one_step(model, monitor, part, x, y)
    with pytest.raises(KeyError), monitor.step(part, y):
        loss = F.cross_entropy(model(x), y)
        loss.backward(retain_graph=True)
        loss.backward()  # refused by the capture, inside the hook
        raise KeyError("mine")
    one_step(model, monitor, part, x, y)
    assert monitor.faults == {}
