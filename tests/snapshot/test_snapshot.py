"""A snapshot judges as the audit did, in a file that any process reads, and leaves the training alone."""

import functools
import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import sgoif
from sgoif.errors import SgoifError
from sgoif.snapshot import read_snapshot, write_snapshot
from sgoif.training.recorder import MEAN_SIGNALS
from tests.cases import ResidualNet
from tests.training.loops import GroupNormNet, data, fresh, train, watch

WORLD = data(num=96, held=48, apart=4.0)
CALIBRATED = ("p_mislabeled", "p_mislabeled_low", "p_mislabeled_high")


def seen_at_head(model, pixels):
    """The head's inputs and the logits, by a plain hook."""
    inputs = []
    handle = model.fc.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    with torch.no_grad():
        logits = model.eval()(pixels)
    handle.remove()
    return inputs[0], logits


@pytest.fixture(scope="module")
def audited(tmp_path_factory):
    """Audits by their settings, each done once: the model, what it was trained on, the run, the snapshot's file."""

    @functools.cache
    def audit(classes=4, trusted=True):
        train_set, holdout = data(num=96, held=max(48, 2 * classes), classes=classes, apart=4.0)
        model = train(fresh(lambda: GroupNormNet(classes=classes)), train_set)
        path = tmp_path_factory.mktemp("audit") / "audit.safetensors"
        run = sgoif.audit(model, train_set, anchors=holdout, trusted=trusted, snapshot=str(path))
        return model, train_set, run, path

    return audit


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({}, (*MEAN_SIGNALS, *CALIBRATED)),
        ({"trusted": False}, (*MEAN_SIGNALS, *CALIBRATED)),
        ({"classes": 70}, (*MEAN_SIGNALS, "p_mislabeled")),
    ],
    ids=["as usual", "a hold-out as given", "many classes, by pairs of examples"],
)
def test_a_snapshot_judges_every_row_as_the_audit_did(audited, settings, names):
    model, (pixels, labels), run, path = audited(**settings)
    snapshot = read_snapshot(path)
    found = snapshot.score(*seen_at_head(model, pixels), labels)
    order = np.argsort(run.table["id"])
    for name in names:
        # double precision throughout; another batch size rounds products otherwise
        np.testing.assert_allclose(found[name], run.table[name][order], rtol=1e-7, atol=1e-9, err_msg=name)
    np.testing.assert_array_equal(found["suggested_label"], run.table["suggested_label"][order])
    assert snapshot.about.num_adapted == (0 if "classes" in settings else len(labels))


def test_rows_do_not_depend_on_their_batch_and_one_that_is_not_finite_is_not_judged(audited):
    model, (pixels, labels), _, path = audited()
    snapshot = read_snapshot(path)
    features, logits = seen_at_head(model, pixels)
    whole = snapshot.score(features, logits, labels)
    parts = [snapshot.score(features[rows], logits[rows], labels[rows]) for rows in torch.arange(96).split(7)]
    logits[3] = torch.nan
    broken = snapshot.score(features, logits, labels)
    assert np.isnan(broken["p_mislabeled"][3]) and broken["suggested_label"][3] == -1
    assert np.isfinite(np.delete(broken["p_mislabeled"], 3)).all()
    assert whole.pop("no_p_reason").tolist() == [None] * 96
    for name, column in whole.items():
        joined = np.concatenate([part[name] for part in parts])
        np.testing.assert_allclose(joined, column, rtol=1e-7, atol=1e-9, err_msg=name)


def test_the_file_is_plain_safetensors_and_comes_back_as_it_was(audited, tmp_path):
    path = audited()[-1]
    with safe_open(path, "pt") as file:
        header = json.loads(file.metadata()["sgoif"])
        assert {"directions/solved", "probe/weight", "holdout/labels", "label_judge/counts"} <= set(file.keys())
    assert header["format"] == 6 and header["head"] == "fc" and header["num_classes"] == 4
    write_snapshot(read_snapshot(path), tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()


def test_what_is_no_snapshot_is_refused_by_name(tmp_path):
    with pytest.raises(SgoifError, match="there is no snapshot"):
        read_snapshot(tmp_path / "none.safetensors")
    (tmp_path / "noise.safetensors").write_bytes(b"\x00" * 64)
    with pytest.raises(SgoifError, match="cannot be read as a snapshot"):
        read_snapshot(tmp_path / "noise.safetensors")


@pytest.mark.parametrize("other", [5, 7, "6", None])
def test_a_snapshot_of_another_format_is_refused(audited, tmp_path, other):
    path = audited()[-1]
    with safe_open(path, "pt") as file:
        header = json.loads(file.metadata()["sgoif"])
    told = json.dumps({**header, "format": other})
    save_file(load_file(path), tmp_path / "other.safetensors", {"sgoif": told})
    with pytest.raises(SgoifError, match=f"has format {other}, this sgoif reads format 6"):
        read_snapshot(tmp_path / "other.safetensors")


def watch_to_the_end(model, path=None):
    """Train with a monitor that takes a snapshot after step 9 where there is a path for it."""
    monitor = watch(model, WORLD[1], train_size=96, trusted=True, class_names=list("abcd"))
    taken = []
    train(model, WORLD[0], monitor, after=lambda step: path and step == 9 and taken.append(monitor.snapshot(path)))
    end = {**model.state_dict(), "rng": torch.get_rng_state()}
    assert monitor.faults == {}
    return end, monitor.close().visits["harm"], taken


def test_a_monitor_goes_on_as_if_no_snapshot_had_been_taken(tmp_path):
    bare, harm, _ = watch_to_the_end(fresh(ResidualNet))
    watched, other_harm, (taken,) = watch_to_the_end(fresh(ResidualNet), str(tmp_path / "s.safetensors"))
    assert taken.about.step == 9 and read_snapshot(tmp_path / "s.safetensors").about == taken.about
    assert taken.about.class_names == tuple("abcd") and taken.about.num_adapted == 0
    assert np.array_equal(harm, other_harm, equal_nan=True)
    assert all(torch.equal(value, watched[name]) for name, value in bare.items())


def test_a_monitors_snapshot_ranks_and_then_adapts():
    (pixels, labels), model = WORLD[0], fresh()
    monitor = watch(model, WORLD[1], train_size=96, trusted=True)
    train(model, WORLD[0], monitor)
    snapshot, seen = monitor.snapshot(), seen_at_head(model, pixels)
    before = snapshot.score(*seen, labels)
    after = snapshot.adapted(before, labels.numpy()).score(*seen, labels)
    is_silent = np.isnan(before["p_mislabeled"])  # of 48 labels nobody can tell
    assert (is_silent == [why is not None for why in before["no_p_reason"]]).all() and "harm_std" not in before
    assert (after["p_mislabeled_low"] <= after["p_mislabeled"]).all() and "harm_std" in after


def test_a_snapshot_before_the_first_step_is_a_fault_not_an_error(caplog):
    monitor = watch(fresh(), WORLD[1])
    assert monitor.snapshot() is None
    assert "take it after" in caplog.text and len(monitor.faults) == 1


def test_another_loss_asks_for_its_gradients():
    (train_set, holdout), model = WORLD, fresh()

    def halved(outputs, targets):
        return 0.5 * F.cross_entropy(outputs, targets, reduction="none")

    monitor = watch(model, holdout, train_size=96, loss=halved)
    train(model, train_set, monitor, loss=lambda outputs, targets: halved(outputs, targets).mean())
    snapshot = monitor.snapshot()
    features, logits = seen_at_head(model, train_set[0])
    with pytest.raises(SgoifError, match="not cross-entropy"):
        snapshot.score(features, logits, train_set[1])
    gradients = 0.5 * (logits.softmax(1) - F.one_hot(train_set[1], 4))
    assert np.isfinite(snapshot.score(features, logits, train_set[1], gradients)["harm"]).all()
