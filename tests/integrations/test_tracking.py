"""Trackers get the monitor's health and a run's findings, and pictures only where that was said."""

import glob
import json
import logging

import numpy as np
import pytest
import torch.nn.functional as F

import sgoif
from sgoif.errors import SgoifError
from sgoif.integrations.tracking import MLflow, TensorBoard, WandB, log_monitor, log_run
from tests.cli.runs import noisy, write_run
from tests.training.loops import data, fresh, watch


class Kept:
    """A tracker that keeps what it is told."""

    def __init__(self):
        self.said, self.rows, self.shown = {}, [], []

    def numbers(self, values, step):
        self.said |= values

    def table(self, name, rows, step):
        self.rows += rows

    def pictures(self, name, pictures, step):
        self.shown += pictures


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of 400 examples, of which the first 30 are flagged."""
    return sgoif.load(write_run(tmp_path_factory.mktemp("tracked") / "run", noisy()))


@pytest.fixture(scope="module")
def monitors():
    """Give a monitor before the first step, when most is not known, and one after a short training."""
    (pixels, labels), holdout = data(num=12)
    model = fresh()
    monitor = watch(model, holdout, train_size=12)
    for _ in range(6):
        with monitor.step(range(12), labels):
            F.cross_entropy(model(pixels), labels).backward()
    return watch(fresh(), holdout, train_size=12), monitor


def picture_of(id):
    return np.full((4, 5, 3), 9, np.uint8)


def log_all(tracker, monitors, run):
    """Log all that there is."""
    for monitor in monitors:
        log_monitor(tracker, monitor)
    log_run(tracker, run, top=5, images=picture_of, log_images=True, hash_ids=True)


def test_health_and_findings_are_told_and_pictures_only_when_asked_for(run, monitors):
    tracker = Kept()
    log_all(tracker, monitors, run)
    assert tracker.said["sgoif/residual"] > 0 and tracker.said["sgoif/is_on"] == 1
    assert tracker.said["sgoif/label_issues"] == 30 and tracker.said["sgoif/examples"] == 400
    assert len(tracker.rows) == len(tracker.shown) == 5 and tracker.shown[0][1].shape == (4, 5, 3)
    ids = {str(id) for id in run.table["id"]}
    assert not ids & {row["id"] for row in tracker.rows}  # hashes

    tracker = Kept()
    log_run(tracker, run, top=5, images=picture_of)
    assert {row["id"] for row in tracker.rows} <= ids and tracker.shown == []
    with pytest.raises(SgoifError, match="images="):
        log_run(tracker, run, log_images=True)


def test_texts_stand_in_the_table_only_when_asked_for(run):
    tracker = Kept()
    log_run(tracker, run, top=5, images=lambda id: f"what {id}\nsays", log_images=True)
    assert [row["example"] for row in tracker.rows] == [f"what {row['id']} says" for row in tracker.rows]
    assert tracker.shown == []
    tracker = Kept()
    log_run(tracker, run, top=5, images=lambda id: "private")
    assert not any("example" in row for row in tracker.rows)


def test_tensorboard_reads_it_back(run, monitors, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path / "logs")) as writer:
        log_all(TensorBoard(writer), monitors, run)
    found = EventAccumulator(str(tmp_path / "logs")).Reload()
    assert {"sgoif/residual", "sgoif/confidence", "sgoif/overhead"} <= set(found.Tags()["scalars"])
    assert found.Scalars("sgoif/label_issues")[0].value == 30 and len(found.Tags()["images"]) == 5
    assert "p_mislabeled" in str(found.Tensors("sgoif/suspects/text_summary")[0])


def test_weights_and_biases_keeps_it_offline(run, monitors, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.chdir(tmp_path)
    with wandb.init(mode="offline", dir=str(tmp_path), project="test") as theirs:
        log_all(WandB(theirs), monitors, run)
        assert theirs.summary["sgoif/label_issues"] == 30 and theirs.summary["sgoif/examples"] == 400
    assert glob.glob(str(tmp_path / "wandb" / "offline-run-*" / "*.wandb"))


@pytest.fixture
def loggers():
    """Put back what MLflow's database migrations switch off: every logger that there is."""
    known = [item for item in logging.root.manager.loggerDict.values() if isinstance(item, logging.Logger)]
    yield
    for item in known:
        item.disabled = False


def test_mlflow_keeps_it_in_its_database(run, monitors, tmp_path, loggers):
    mlflow = pytest.importorskip("mlflow")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = mlflow.create_experiment("test", artifact_location=str(tmp_path / "artifacts"))
    with mlflow.start_run(experiment_id=experiment) as theirs:
        log_all(MLflow(mlflow), monitors, run)
    found = mlflow.get_run(theirs.info.run_id)
    assert found.data.metrics["sgoif/label_issues"] == 30 and found.data.metrics["sgoif/residual"] > 0
    (table,) = (tmp_path / "artifacts").rglob("suspects.json")
    assert len(json.loads(table.read_text())["id"]) == 5 and len(list((tmp_path / "artifacts").rglob("*.png"))) == 5
