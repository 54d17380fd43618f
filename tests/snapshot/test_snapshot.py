"""A snapshot judges as the audit did, in a file that any process reads, and leaves the training alone."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open

import sgoif
from sgoif.errors import SgoifError
from sgoif.gradients.fingerprint import check_weights
from sgoif.snapshot import read_snapshot, write_snapshot
from sgoif.training.recorder import MEAN_SIGNALS
from tests.cases import ResidualNet
from tests.grouped import grouped
from tests.training.loops import PLAN, GroupNormNet, data, fresh, train, watch

CALIBRATED = ("p_mislabeled", "p_mislabeled_low", "p_mislabeled_high")


def seen_at_head(model, pixels):
    """The head's inputs and the logits, by a plain hook."""
    inputs = []
    handle = model.fc.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    with torch.no_grad():
        logits = model.eval()(pixels)
    handle.remove()
    return inputs[0], logits


def audited(tmp_path, make=GroupNormNet, classes=4, trusted=True, **settings):
    train_set, holdout = data(num=96, held=max(48, 2 * classes), classes=classes, apart=4.0)
    model = train(fresh(lambda: make(classes=classes)), train_set)
    path = tmp_path / "audit.safetensors"
    run = sgoif.audit(model, train_set, anchors=holdout, trusted=trusted, snapshot=str(path), **grouped(settings))
    return model, train_set, run, path


@pytest.mark.parametrize("trusted", [True, False])
def test_a_snapshot_judges_every_row_as_the_audit_did(tmp_path, trusted):
    model, (pixels, labels), run, path = audited(tmp_path, trusted=trusted)
    snapshot = read_snapshot(path)
    found = snapshot.score(*seen_at_head(model, pixels), labels)
    order = np.argsort(run.table["id"])
    for name in (*MEAN_SIGNALS, *CALIBRATED):
        # double precision throughout; another batch size rounds products otherwise
        np.testing.assert_allclose(found[name], run.table[name][order], rtol=1e-7, atol=1e-9, err_msg=name)
    np.testing.assert_array_equal(found["suggested_label"], run.table["suggested_label"][order])
    assert snapshot.about.num_adapted == len(labels)


def test_many_classes_are_judged_by_pairs_of_examples_too(tmp_path):
    model, (pixels, labels), run, path = audited(tmp_path, classes=70)
    found = read_snapshot(path).score(*seen_at_head(model, pixels), labels)
    order = np.argsort(run.table["id"])
    for name in ("harm", "worst", "own", "worst_identity", "probe_margin", "p_mislabeled"):
        np.testing.assert_allclose(found[name], run.table[name][order], rtol=1e-7, atol=1e-9, err_msg=name)
    np.testing.assert_array_equal(found["suggested_label"], run.table["suggested_label"][order])


def test_rows_do_not_depend_on_their_batch(tmp_path):
    model, (pixels, labels), _, path = audited(tmp_path)
    snapshot = read_snapshot(path)
    features, logits = seen_at_head(model, pixels)
    whole = snapshot.score(features, logits, labels)
    parts = [snapshot.score(features[rows], logits[rows], labels[rows]) for rows in torch.arange(96).split(7)]
    assert whole.pop("no_p_reason").tolist() == [None] * 96
    for name, column in whole.items():
        joined = np.concatenate([part[name] for part in parts])
        np.testing.assert_allclose(joined, column, rtol=1e-7, atol=1e-9, err_msg=name)


def test_a_row_that_is_not_finite_is_not_judged(tmp_path):
    model, (pixels, labels), _, path = audited(tmp_path)
    features, logits = seen_at_head(model, pixels)
    logits[3] = torch.nan
    found = read_snapshot(path).score(features, logits, labels)
    assert np.isnan(found["p_mislabeled"][3]) and found["suggested_label"][3] == -1
    assert np.isfinite(np.delete(found["p_mislabeled"], 3)).all()


def test_the_file_is_plain_safetensors_and_comes_back_as_it_was(tmp_path):
    _, _, _, path = audited(tmp_path)
    with safe_open(path, "pt") as file:
        header = json.loads(file.metadata()["sgoif"])
        assert {"directions/solved", "probe/weight", "canaries/signals"} <= set(file.keys())
    assert header["format"] == 4 and header["head"] == "fc" and header["num_classes"] == 4
    first = read_snapshot(path)
    write_snapshot(first, tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()


def test_other_weights_are_refused(tmp_path):
    model, _, _, path = audited(tmp_path)
    about = read_snapshot(path).about
    check_weights(model, about.weights, about.step)
    with torch.no_grad():
        model.conv.weight[0, 0, 0, 0] += 1e-6
    with pytest.raises(SgoifError, match=r"not those of the snapshot.*Load the checkpoint"):
        check_weights(model, about.weights, about.step)


def test_what_is_no_snapshot_is_refused_by_name(tmp_path):
    with pytest.raises(SgoifError, match="there is no snapshot"):
        read_snapshot(tmp_path / "none.safetensors")
    (tmp_path / "noise.safetensors").write_bytes(b"\x00" * 64)
    with pytest.raises(SgoifError, match="cannot be read as a snapshot"):
        read_snapshot(tmp_path / "noise.safetensors")


def trained_with(at_step):
    """Train to the end, with a snapshot taken after one step or with none."""
    train_set, holdout = data(num=96, held=48, apart=4.0)
    model = fresh(ResidualNet)
    monitor = watch(model, holdout, train_size=96)
    taken = []
    train(model, train_set, monitor, after=lambda step: step == at_step and taken.append(monitor.snapshot()))
    return model.state_dict(), torch.get_rng_state(), monitor.close().visits["harm"], monitor.faults, taken


def test_a_monitor_goes_on_as_if_no_snapshot_had_been_taken():
    bare, rng, harm, _, _ = trained_with(None)
    watched, other_rng, other_harm, faults, taken = trained_with(9)
    assert faults == {} and taken[0].about.step == 9
    assert torch.equal(rng, other_rng) and np.array_equal(harm, other_harm, equal_nan=True)
    assert all(torch.equal(value, watched[name]) for name, value in bare.items())


def test_a_snapshot_before_the_first_step_is_a_fault_not_an_error(caplog):
    _, holdout = data()
    monitor = watch(fresh(), holdout)
    assert monitor.snapshot() is None
    assert "take it after" in caplog.text and len(monitor.faults) == 1


def test_a_monitors_snapshot_ranks_and_then_adapts(tmp_path):
    train_set, holdout = data(num=96, held=48, apart=4.0)
    model = fresh()
    monitor = sgoif.watch(
        model, anchors=holdout, train_size=96, trusted=True, class_names=list("abcd"), budget=sgoif.Budget(plan=PLAN)
    )
    train(model, train_set, monitor)
    snapshot = monitor.snapshot(str(tmp_path / "s.safetensors"))
    assert read_snapshot(tmp_path / "s.safetensors").about == snapshot.about
    assert snapshot.about.class_names == tuple("abcd") and snapshot.about.num_adapted == 0
    features, logits = seen_at_head(model, train_set[0])
    before = snapshot.score(features, logits, train_set[1])
    after = snapshot.adapted(before, train_set[1].numpy()).score(features, logits, train_set[1])
    assert np.isfinite(before["p_mislabeled"]).all() and np.isnan(before["p_mislabeled_low"]).all()
    assert (after["p_mislabeled_low"] <= after["p_mislabeled"]).all() and "harm_std" in after


def test_another_loss_asks_for_its_gradients():
    train_set, holdout = data(num=96, held=48, apart=4.0)
    model = fresh()

    def halved(outputs, targets):
        return 0.5 * F.cross_entropy(outputs, targets, reduction="none")

    monitor = sgoif.watch(model, anchors=holdout, train_size=96, loss=halved, budget=sgoif.Budget(plan=PLAN))
    train(model, train_set, monitor, loss=lambda outputs, targets: halved(outputs, targets).mean())
    snapshot = monitor.snapshot()
    features, logits = seen_at_head(model, train_set[0])
    with pytest.raises(SgoifError, match="not cross-entropy"):
        snapshot.score(features, logits, train_set[1])
    gradients = 0.5 * (logits.softmax(1) - F.one_hot(train_set[1], 4))
    assert np.isfinite(snapshot.score(features, logits, train_set[1], gradients)["harm"]).all()
