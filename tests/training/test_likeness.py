"""Likeness through a run: the latest sketch of every example, kept through files, resumes and trouble."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sgoif
from sgoif.evidence import LIKENESS_COLUMNS
from sgoif.findings.neighbours import has_likeness
from sgoif.influence import packed_signs
from sgoif.records import VisitFlag
from sgoif.scanning.frozen import audit_embeddings
from tests.training.loops import data, fresh, make_loop, run_twins, take_step, train, train_watched, watch


class ConvHead(nn.Sequential):
    """A 1x1 convolution, averaged."""

    def __init__(self, classes=4):
        conv = nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, classes, 1)
        super().__init__(*conv, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def words_of(table):
    order = np.argsort(table["id"])
    return np.stack([np.asarray(table[name])[order] for name in LIKENESS_COLUMNS], 1)


def packed(signs):
    return packed_signs(signs).numpy().view(np.int64)


def test_a_run_has_the_signs_of_each_example_at_its_last_visit():
    """What the head sees at every visit, sketched by hand."""
    train_set, holdout = data()
    model, latest, given = fresh().train(), np.zeros((48, 4), np.int64), []
    monitor = watch(model, holdout)
    entered = monitor.step

    def note(module, args):
        if module.training:
            latest[given[-1]] = packed(monitor.engine.likeness.signs(args[0]))

    model.fc.register_forward_pre_hook(note)
    monitor.step = lambda part, targets: given.append(part.numpy()) or entered(part, targets)
    train(model, train_set, monitor)
    run = monitor.close()
    assert monitor.faults == {}
    assert (words_of(run.table) == latest).all()
    assert len(np.unique(latest, axis=0)) == 48
    assert not set(LIKENESS_COLUMNS) & set(run.visits)
    assert has_likeness(run.sql)


def test_sketching_leaves_weights_and_random_numbers_alone_with_a_convolutional_head_too():
    (pixels, labels), holdout = data(dtype=torch.float32)
    loop = make_loop((part, pixels[part], labels[part]) for part in torch.arange(48).split(12))
    _, run = run_twins(ConvHead, loop, holdout, dtype=torch.float32)
    assert len(np.unique(words_of(run.table), axis=0)) > 40


def test_the_hold_out_of_an_audit_has_the_models_predictions_and_its_features_signs():
    train_set, holdout = data()
    model = train(fresh(), train_set).eval()
    features = []
    model.fc.register_forward_pre_hook(lambda module, args: features.append(args[0].detach()))
    run = sgoif.audit(model, train_set, anchors=holdout)
    held = run._tables.columns("holdout")
    with torch.no_grad():
        expected = model(holdout[0]).softmax(1)[held["id"]]
    np.testing.assert_allclose(np.stack(held["posterior"]), expected, atol=1e-6)  # kept as float32
    with torch.no_grad():
        model(train_set[0]), model(holdout[0])
    mean = features[-1].mean(0)  # the whole hold-out's
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(features[-1].shape[1], 256, generator=generator).double()
    assert (words_of(run.table) == packed((features[-2] - mean) @ directions > 0)).mean() > 0.95  # signs near zero
    assert (words_of(held) == packed((features[-1] - mean) @ directions > 0)).mean() > 0.95


def test_likeness_is_written_and_read_like_any_column(tmp_path):
    monitor = train_watched(out=str(tmp_path / "run"), trusted=True, gate="none")
    monitor.flush()
    kept = monitor.recorder.likeness.words(48)[np.argsort(monitor.recorder.index.ids)]
    monitor.close()
    run = sgoif.load(tmp_path / "run")
    assert (words_of(run.table) == kept).all()
    held = run.sql("select id, posterior, likeness_0 from holdout")
    assert len(held) > 0
    assert held["likeness_0"].null_count == 0
    assert [sum(row) for row in held["posterior"].to_pylist()] == pytest.approx([1.0] * len(held), abs=1e-5)


def test_a_resumed_run_keeps_the_sketches():
    (_, holdout), model = data(), fresh()
    monitor = train_watched(epochs=2)
    state = monitor.state_dict()
    kept = monitor.recorder.likeness.words(48).copy()
    again = watch(model, holdout)
    again.load_state_dict(state)
    assert (again.recorder.likeness.words(48) == kept).all()
    assert torch.equal(again.engine.likeness.mean, monitor.engine.likeness.mean)
    features = torch.randn(5, 6, dtype=torch.float64)
    assert torch.equal(again.engine.likeness.signs(features), monitor.engine.likeness.signs(features))


def test_a_sketch_that_fails_loses_no_score(monkeypatch, caplog):
    train_set, holdout = data()
    runs = []
    for fails in (False, True):
        model = fresh()
        monitor = watch(model, holdout)
        if fails:
            monkeypatch.setattr(monitor.engine, "sketch", lambda rows: 1 / 0)
        train(model, train_set, monitor, epochs=8)  # 32 steps: more than the faults that switch a monitor off
        assert monitor.is_on
        runs.append(monitor.close())
    assert runs[0].visits["harm"].tolist() == runs[1].visits["harm"].tolist()
    assert list(monitor.faults.values()) == [32]
    assert "could not be sketched" in caplog.text
    assert not has_likeness(runs[1].sql)
    assert LIKENESS_COLUMNS[0] not in runs[1].table


def test_mixed_and_broken_visits_leave_the_last_sound_sketch():
    monitor, ((pixels, labels), _) = train_watched(), data()
    monitor.flush()
    before = monitor.recorder.likeness.words(48).copy()
    part = torch.arange(12)
    mixed = 0.6 * F.one_hot(labels[part], 4).double() + 0.4 * F.one_hot(labels[part].roll(1), 4)
    for targets, changed in ((mixed, pixels[part].roll(1, 0)), (labels[part], pixels[part] * float("nan"))):
        take_step(monitor, part, changed, targets)
    monitor.flush()
    assert monitor.recorder.flag_counts[VisitFlag.MIXED.name] == 12
    assert monitor.recorder.flag_counts[VisitFlag.NOT_FINITE.name] == 12
    assert (monitor.recorder.likeness.words(48) == before).all()


def test_examples_of_a_scan_are_sketched_alike():
    rng = np.random.default_rng(0)
    centres, labels = rng.normal(size=(3, 16)), np.tile(np.arange(3), 80)
    rows = (centres[labels] + rng.normal(size=(240, 16))).astype(np.float32)
    rows[120:180] = rows[:60]  # the same rows under other ids
    words = words_of(audit_embeddings(rows, labels, np.arange(240), num_classes=3).table)
    assert (words[120:180] == words[:60]).all()
    assert len(np.unique(words, axis=0)) == 180
