"""Every row that a loop offers is recorded, refused or lost, and the run says which and why."""

import logging

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import sgoif
from sgoif.records import SIGNALS, VisitFlag
from sgoif.training.accounting import AFTER_SWITCHED_OFF, OUTSIDE_CLASSES
from sgoif.training.visits import PendingVisits, read_visits
from tests.training.loops import GroupNormNet, data, fresh, make_loop, run_twins, take_step, train, train_watched, watch


def assert_adds_up(counters):
    assert counters["visits_offered"] == counters["visits"] + counters["visits_refused"] + counters["visits_lost"]


@pytest.mark.parametrize("odd", ["ids", "no backward pass"])
def test_refusals_are_counted_and_never_switch_the_monitor_off(odd):
    (pixels, labels), holdout = data()
    monitor, ids = watch(fresh(), holdout), torch.arange(48)
    take_step(monitor, ids, pixels, labels)
    for _ in range(25):
        if odd == "ids":
            take_step(monitor, ids.float(), pixels, labels)
        else:
            with monitor.step(ids, labels), torch.no_grad():
                monitor.model(pixels)
    take_step(monitor, ids, pixels, labels)
    counters = monitor.counters
    assert monitor.is_on and (counters["visits"], counters["visits_refused"]) == (96, 25 * 48)
    assert_adds_up(counters)


def test_rows_after_the_monitor_switched_itself_off_are_lost_and_counted(monkeypatch, caplog):
    monitor = train_watched(epochs=1)
    monitor.flush()

    def broken(*_, **__):
        raise RuntimeError("a bug in the monitor")

    monkeypatch.setattr(monitor.engine, "_score_queue", broken)
    with caplog.at_level(logging.INFO):
        train(monitor.model, data()[0], monitor, epochs=6)
        counters = monitor.counters
        run = monitor.close()
    assert monitor.faults == {"RuntimeError: a bug in the monitor": 20} and not monitor.is_on
    assert sum("could not be scored; the training goes on" in message for message in caplog.messages) == 1
    assert (counters["visits_offered"], counters["visits"], counters["visits_lost"]) == (7 * 48, 48, 6 * 48)
    assert_adds_up(counters)
    assert run.info["visits_lost"] == {"RuntimeError: a bug in the monitor": 252, AFTER_SWITCHED_OFF: 36}
    (line,) = [record for record in caplog.records if "visits offered" in record.message]
    assert line.levelno == logging.WARNING and "a bug in the monitor: 252" in line.message


def test_a_user_who_detaches_loses_nothing():
    monitor = train_watched(epochs=1)
    monitor.detach()
    train(monitor.model, data()[0], monitor, epochs=1)
    assert monitor.counters["visits_offered"] == monitor.counters["visits"] == 48


@pytest.mark.parametrize(("place", "lost"), [("several at once", 0), ("brought to the host", 48), ("added up", 48)])
def test_memory_that_runs_out_is_counted_once(monkeypatch, place, lost):
    """Before, a MemoryError there lost every visit since the last refresh, and nothing said so."""
    monitor = train_watched(epochs=1, plan=sgoif.Plan(refresh_every=100))
    monitor.flush()
    train(monitor.model, data()[0], monitor, epochs=1)
    whole = torch.cat

    def full(tensors=(), *rest, **more):
        tensors = list(tensors)
        if place != "several at once" or len(tensors) > 3:
            raise MemoryError("no room")
        return whole(tensors, *rest, **more)

    with monkeypatch.context() as patch:
        if place == "added up":
            patch.setattr(monitor.recorder.evidence, "add", lambda *_, **__: full())
        else:
            patch.setattr("sgoif.training.visit_buffer.torch.cat", full)
        counters = monitor.counters
    assert (counters["visits_offered"], counters["visits_lost"]) == (96, lost)
    assert_adds_up(counters)
    assert_adds_up(monitor.close().info["counters"])


@pytest.mark.parametrize("share", ["some", "all of a batch"])
def test_rows_with_ignore_index_are_refused_alone(share):
    """Before, one such row lost its batch, and 20 such batches in a row the rest of the run."""
    (pixels, labels), holdout = data()
    labels = labels.clone()
    labels[::3] = -100
    if share != "some":
        labels[:12] = -100

    def loss(outputs, targets):  # whose mean over nothing would be NaN
        return F.cross_entropy(outputs, targets, reduction="sum") / (targets >= 0).sum().clamp(min=1)

    parts = [(part, pixels[part], labels[part]) for part in torch.arange(48).split(12)[::-1]]
    monitor, run = run_twins(GroupNormNet, make_loop(parts * 4, loss=loss), holdout)
    num_ignored = int((labels < 0).sum())
    counters = run.info["counters"]
    assert counters["visits_refused"] == counters["visits_ignored"] == 4 * num_ignored
    assert counters["visits_offered"] == 4 * 48
    assert_adds_up(counters)
    assert run.info["visits_refused"] == {OUTSIDE_CLASSES: 4 * num_ignored}
    assert sorted(run.table["id"].tolist()) == torch.nonzero(labels >= 0).flatten().tolist()
    assert (run.table["given_label"] == labels.numpy()[run.table["id"]]).all()
    assert (run.table["n_visits"] == 4).all()
    again = watch(fresh(), holdout)
    again.load_state_dict(monitor.state_dict())
    train(again.model, (pixels, labels.clamp(min=0)), again, epochs=1)
    counters = again.counters
    assert (counters["visits_offered"], counters["visits_refused"]) == (5 * 48, 4 * num_ignored)
    assert_adds_up(counters)


@pytest.mark.parametrize("ignore_index", [-1, 255])
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
        monitor = watch(fresh(), holdout, curvature="diagonal")
        for _ in range(9):
            take_step(monitor, ids, x, y, loss=lambda z, t: F.cross_entropy(z, t, ignore_index=ignore_index))
        assert monitor.faults == {}
        visits.append(monitor.close().visits)
    for name in ("id", "given_label", "loss", "margin", "harm", "worst", "own", "harm_solved", "probe_loss"):
        np.testing.assert_allclose(
            visits[0][name], visits[1][name], rtol=1e-6, atol=1e-9, err_msg=name
        )  # a float32 root


@pytest.mark.parametrize(
    ("losses", "wanted"), [([1.0, np.nan, 3.0], 2.0), ([np.nan, 1.0, 3.0], 2.0), ([np.nan, np.nan, np.nan], None)]
)
def test_a_repeated_id_is_the_mean_of_its_finite_rows(losses, wanted):
    """Before, a later row that was NaN left the visit usable, with a NaN in it."""
    signals = np.zeros((4, len(SIGNALS)), np.float32)
    signals[:, SIGNALS.index("loss")] = [*losses, 5.0]
    signals[:3, SIGNALS.index("flags")] = np.where(np.isnan(losses), int(VisitFlag.NOT_FINITE), 0)
    visits = read_visits(PendingVisits(np.array([7, 7, 7, 8]), np.array([1, 1, 1, 2]), signals, 0, 0))
    assert visits.ids.tolist() == [7, 8] and visits.usable.tolist() == [wanted is not None, True]
    if wanted is not None:
        assert visits.columns["loss"].tolist() == [wanted, 5.0]
        assert visits.columns["flags"].tolist() == [VisitFlag.REPEATED, 0]


def test_an_error_inside_a_hook_of_a_step_that_the_user_left_is_not_the_next_steps():
    (pixels, labels), holdout = data()
    monitor, ids = watch(fresh(), holdout), torch.arange(48)
    take_step(monitor, ids, pixels, labels)
    with pytest.raises(KeyError), monitor.step(ids, labels):
        loss = F.cross_entropy(monitor.model(pixels), labels)
        loss.backward(retain_graph=True)
        loss.backward()  # refused by the capture, inside the hook
        raise KeyError("mine")
    take_step(monitor, ids, pixels, labels)
    assert monitor.faults == {}
