"""Targets that are probabilities: mixed batches are skipped and counted, soft targets give `harm` only."""

import logging
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from sgoif.errors import SgoifError
from sgoif.records import CLASS_SIGNALS, SIGNALS, VisitFlag
from sgoif.training.targets import read_targets, without_classes
from tests.training.loops import GroupNormNet, batches, data, fresh, make_loop, run_twins, take_step, train, watch


def mix_most(parts, smoothing=0.1):
    """Batches as Mixup with smoothing makes them of these, one in five not mixed; and how many rows are mixed."""
    random, made, num_mixed = np.random.default_rng(0), [], 0
    for ids, x, y in parts:
        hot = F.one_hot(y, 4).to(x.dtype) * (1 - smoothing) + smoothing / 4
        if random.random() < 0.8:
            kept = random.uniform(0.1, 0.9)
            x, hot = (kept * part + (1 - kept) * part.flip(0) for part in (x, hot))
            num_mixed += len(y)
        made.append((ids, x, hot))
    return made, num_mixed


@pytest.mark.parametrize("is_declared", [False, True])
def test_a_recipe_of_mixup_and_smoothing_scores_the_batches_that_are_not_mixed(is_declared):
    train_set, holdout = data()
    parts, num_mixed = mix_most(batches(train_set, count=60))

    def soft_cross_entropy(outputs, targets):  # takes probabilities only, and so is the hold-out given to it
        return -(targets * outputs.log_softmax(1)).sum(1)

    settings = {"loss": soft_cross_entropy} if is_declared else {}
    monitor, run = run_twins(GroupNormNet, make_loop(parts), holdout, label_smoothing=0.1, **settings)
    counters = monitor.counters
    assert 0 < num_mixed < 60 * 12
    assert counters["visits"] == 60 * 12
    assert counters["visits_mixed"] == num_mixed
    table = run.table
    used = run.visits["flags"].astype(int) & VisitFlag.MIXED == 0
    is_known = np.isin(table["id"], run.visits["id"][used])  # a blend does not change who it was
    assert is_known.sum() > 24
    assert (table["given_label"] == np.where(is_known, train_set[1].numpy()[table["id"]], -1)).all()
    assert used.sum() == 60 * 12 - num_mixed
    assert (run.visits["given_label"][~used] == -1).all()
    assert np.isfinite(run.visits["harm_std"][used]).sum() > 0.7 * used.sum()
    assert np.isnan(run.visits["harm_std"][~used]).all()


def test_a_pure_row_of_a_mixed_batch_is_a_blend_too():
    targets = torch.tensor([[0.6, 0.4, 0.0], [1.0, 0.0, 0.0]])
    given = read_targets(targets, torch.zeros(2, 3))
    assert given.mixed.tolist() == [True, True]
    assert given.label_to_record.tolist() == [-1, -1]
    for alone in (targets[1:], torch.tensor([0])):
        given = read_targets(alone, torch.zeros(1, 3))
        assert given.mixed is None or given.mixed.tolist() == [False]
        assert given.label_to_record.tolist() == [0]


@pytest.mark.parametrize("is_smoothed_by", ["targets", "loss", "nobody"])
def test_one_class_written_as_probabilities_scores_like_its_number(is_smoothed_by):
    train_set, holdout = data()
    smoothing = 0.0 if is_smoothed_by == "nobody" else 0.2
    visits = []
    for as_probabilities in (False, True):
        in_loss = smoothing if is_smoothed_by == "loss" or not as_probabilities else 0.0
        parts = list(batches(train_set))
        if as_probabilities:
            kept = 0.8 if is_smoothed_by == "targets" else 1.0
            parts = [(ids, x, kept * F.one_hot(y, 4).double() + (1 - kept) / 4) for ids, x, y in parts]
        loop = make_loop(parts, loss=partial(F.cross_entropy, label_smoothing=in_loss))
        _, run = run_twins(GroupNormNet, loop, holdout, label_smoothing=smoothing)
        visits.append(run.visits)
    for name in ("given_label", "harm", "worst", "worst_anchor", "loss", "margin", "flags"):
        np.testing.assert_allclose(visits[1][name], visits[0][name], rtol=1e-5, atol=1e-7)


def opinions():
    """Probabilities of every training example."""
    return torch.rand(48, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).softmax(1)


def soft_loop(train_set, targets_of, count=24):
    return make_loop((ids, x, targets_of[ids]) for ids, x, _ in batches(train_set, count=count))


def test_soft_targets_give_harm_only():
    train_set, holdout = data()
    monitor, run = run_twins(GroupNormNet, soft_loop(train_set, opinions()), holdout, soft_targets="soft", gate="none")
    visits = run.visits
    assert (visits["flags"].astype(int) & VisitFlag.SOFT > 0).all()
    assert monitor.counters["visits_soft"] == monitor.counters["visits"] == 24 * 12
    assert monitor.counters["visits_mixed"] == 0
    for name, nothing in CLASS_SIGNALS.items():
        np.testing.assert_array_equal(visits[name], np.full(len(visits[name]), nothing))
    for name in ("loss", "harm", "harm_identity", "harm_solved", "confidence"):
        assert np.isfinite(visits[name]).all(), name
    table = run.table
    assert (table["given_label"] == -1).all()
    assert (table["suggested_label"] == -1).all()
    assert np.isnan(table["p_mislabeled"]).all()
    for name in ("harm", "harm_std", "harm_identity", "harm_solved", "loss"):
        assert np.isfinite(table[name]).all(), name
    for name in ("worst", "own", "margin", "p_given", "probe_loss"):
        assert np.isnan(table[name]).all(), name


def test_harm_and_loss_of_a_soft_target_are_those_of_its_own_gradient():
    train_set, holdout = data()
    pixels, opinion = train_set[0], opinions()
    model = fresh()
    monitor = watch(model, holdout, soft_targets="soft", gate="none")
    soft_loop(train_set, opinion, count=8)(model, monitor.step)
    directions = monitor.engine.directions()["fc"].clone()
    monitor.flush()
    before = len(monitor.recorder.sink.visits()["id"])
    take_step(monitor, torch.arange(6), pixels[:6], opinion[:6])
    monitor.flush()
    visits = {name: column[before:] for name, column in monitor.recorder.sink.visits().items()}
    for i in range(6):
        model.zero_grad()
        loss = F.cross_entropy(model(pixels[i : i + 1]), opinion[i : i + 1])
        loss.backward()
        gradient = torch.cat([model.fc.weight.grad, model.fc.bias.grad[:, None]], 1)
        influence = -torch.einsum("kgoi,oi->k", directions, gradient)
        np.testing.assert_allclose(visits["harm"][i], influence.mean().item(), rtol=1e-5)
        np.testing.assert_allclose(visits["loss"][i], loss.item(), rtol=1e-6)


def test_annotators_who_agree_give_a_class_and_others_do_not():
    train_set, holdout = data()
    opinion = F.one_hot(train_set[1], 4).double()
    opinion[::2] = 0.5 * opinion[::2] + 0.125
    monitor, run = run_twins(GroupNormNet, soft_loop(train_set, opinion), holdout, soft_targets="soft", gate="none")
    table = run.table
    is_soft = table["id"] % 2 == 0
    assert np.isnan(table["worst"][is_soft]).all()
    assert np.isfinite(table["worst"][~is_soft]).all()
    assert np.isfinite(table["harm"]).all()
    assert (table["given_label"][~is_soft] == train_set[1].numpy()[table["id"][~is_soft]]).all()
    saved = monitor.recorder.own_state()
    again = watch(fresh(), holdout, soft_targets="soft").recorder
    again.load_own(saved)
    for name in again.means.signals:
        np.testing.assert_array_equal(again.means.mean(name), monitor.recorder.means.mean(name))
    for name, column in monitor.recorder.last.columns(len(table["id"])).items():
        np.testing.assert_array_equal(again.last.columns(len(column))[name], column)


@pytest.mark.parametrize("meaning", ["mixed", "soft"])
def test_targets_are_read_without_waiting_for_the_device(meaning):
    targets, outputs = torch.zeros(6, 4, device="meta"), torch.zeros(6, 4, device="meta")  # where a wait raises
    given = read_targets(targets, outputs, label_smoothing=0.1, meaning=meaning)
    packed = without_classes(torch.zeros(6, len(SIGNALS), device="meta"), given, targets, outputs)
    assert packed.shape == (6, len(SIGNALS))
    assert given.label_to_record.shape == (6,)


def test_a_run_of_nothing_but_mixed_batches_is_warned_of_once_and_goes_on(caplog):
    train_set, holdout = data()
    opinion = torch.full((48, 4), 0.25, dtype=torch.float64)
    model = fresh()
    monitor = watch(model, holdout)
    with caplog.at_level(logging.WARNING):
        soft_loop(train_set, opinion, count=48)(model, monitor.step)
        assert not caplog.messages
        soft_loop(train_set, opinion, count=80)(model, monitor.step)
    (message,) = [text for text in caplog.messages if "mixed targets only" in text]
    for way_out in ("stride=k", "un-mixed batches", "label_smoothing=", "soft_targets='soft'"):
        assert way_out in message
    assert monitor.counters["faults"] == 0
    assert monitor.counters["visits_mixed"] == 128 * 12
    assert monitor.is_on


def test_class_numbers_of_any_integer_type_score_alike():
    """Before, int32 targets switched the monitor off after 20 steps."""
    train_set, holdout = data()
    visits = []
    for kind in (torch.int64, torch.int32, torch.uint8):
        model = fresh()
        monitor = watch(model, holdout)
        pixels, labels = train_set
        train(model, (pixels, labels.to(kind)), monitor, loss=lambda z, y: F.cross_entropy(z, y.long()))
        assert monitor.faults == {}
        visits.append(monitor.close().visits)
    for found in visits[1:]:
        for name in ("harm", "given_label"):
            np.testing.assert_array_equal(visits[0][name], found[name])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda labels: labels[:, None], r"shape \(12, 1\).*class numbers as integers \[B\]"),
        (lambda labels: labels.float(), r"torch.float32.*class numbers as integers \[B\]"),
        (lambda labels: labels.numpy(), r"got a ndarray; pass torch.as_tensor\(targets\)"),
        (lambda labels: labels.tolist(), r"got a list; pass torch.as_tensor\(targets\)"),
        (lambda labels: [f"class {i}" for i in labels.tolist()], "got a list of strings; number the classes"),
        (lambda labels: labels.numpy().astype(str), "got a ndarray of strings; number the classes"),
        (lambda labels: labels[0], "got a single number; pass the targets of the whole batch"),
        (lambda labels: None, "got a NoneType"),
    ],
)
def test_targets_of_another_form_are_refused_on_the_first_step_with_the_cure(make, words):
    """Before, the error named the type alone."""
    (pixels, labels), holdout = data()
    monitor = watch(fresh(), holdout)
    with pytest.raises(SgoifError, match=words), monitor.step(torch.arange(12), make(labels[:12])):
        F.cross_entropy(monitor.model(pixels[:12]), labels[:12]).backward()
