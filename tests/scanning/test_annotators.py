"""Scans of labels by several annotators, as runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import sgoif
from sgoif.api import make_sink
from sgoif.cli.main import app
from sgoif.errors import SgoifError
from sgoif.scanning.annotators import audit_annotators, judge_annotators
from sgoif.scanning.scan_run import ScanRun

NAMES = {"class_names": ["ant", "bee", "cat"], "annotator_names": ["ann", "bo", "cy", "di"]}


def labelled(count: int = 300) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    true = rng.integers(0, 3, count)
    rows = np.repeat(np.eye(3), 40, axis=1)[true] / 2 + rng.normal(size=(count, 120))
    labels = np.full((count, 4), -1)
    for who, quality in enumerate([0.95, 0.9, 0.8, 0.4]):
        asked = rng.random(count) < 0.6
        wrong = (true + rng.integers(1, 3, count)) % 3
        labels[asked, who] = np.where(rng.random(count) < quality, true, wrong)[asked]
    return rows, labels, true


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    rows, labels, true = labelled()
    labels[7], rows[8, 0] = -1, np.nan
    out = tmp_path_factory.mktemp("annotators") / "run"
    audit_annotators(rows, labels, np.arange(300), **NAMES, run=ScanRun(make_sink(str(out), "none")))
    return out, true


def test_a_run_knows_its_annotators(written: tuple[Path, np.ndarray]) -> None:
    run = sgoif.load(written[0])
    table = run.annotators().to_pylist()
    assert [row["annotator"] for row in table] in (["ann", "bo", "cy", "di"], ["bo", "ann", "cy", "di"])
    assert table[-1]["quality"] < 0.6 and table[-1]["quality_high"] < table[0]["quality_low"]
    examples = {row["id"]: row for row in run.examples().to_pylist()}
    judged = [i for i in examples if i not in (7, 8)]
    right = np.mean([examples[i]["consensus_label"] == written[1][i] for i in judged])
    most = np.mean([examples[i]["given_label"] == written[1][i] for i in judged])
    assert right > 0.9 and right >= most
    assert examples[7]["no_p_reason"] == "no annotator labelled it" and examples[7]["p_mislabeled"] is None
    assert examples[8]["no_p_reason"] == "its features are not finite"


def test_questions_about_classes_are_answered(written: tuple[Path, np.ndarray]) -> None:
    run = sgoif.load(written[0])
    found = run.label_issues(top=10).to_pylist()
    assert all(row["p_mislabeled"] >= 0.5 for row in found[:3]) and found[0]["given_name"] in NAMES["class_names"]
    assert "by 4 annotators" in repr(run) and "Surely below the mean: di" in repr(run)
    for command in (["issues"], ["classes"], ["info"], ["issues", "--json"]):
        shown = CliRunner().invoke(app, [command[0], str(written[0]), *command[1:]])
        assert shown.exit_code == 0, shown.output


def test_one_label_per_example_has_no_annotators() -> None:
    from sgoif.run import Run
    from sgoif.tables import MemoryTables

    with pytest.raises(SgoifError, match="one label per example"):
        Run({}, MemoryTables({})).annotators()


def test_wrong_input_is_refused() -> None:
    _, labels, _ = labelled(50)
    with pytest.raises(SgoifError, match="between -1"):
        judge_annotators(labels + 1, None, 3)
    with pytest.raises(SgoifError, match="whole numbers"):
        judge_annotators(labels[:, 0], None, 3)
    with pytest.raises(SgoifError, match="no annotator gave"):
        judge_annotators(np.full((5, 2), -1), None, 3)
    with pytest.raises(SgoifError, match="shape"):
        judge_annotators(labels, np.zeros((50, 2)), 3)
    with pytest.raises(SgoifError, match="column for each"):
        audit_annotators(np.zeros((50, 2)), labels[:, :2], np.arange(50), **NAMES)
