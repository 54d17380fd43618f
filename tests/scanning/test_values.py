"""Scans of values: what is found, what is not claimed on clean data, and what such a run refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import sgoif
from sgoif.api import make_sink
from sgoif.cli.main import app
from sgoif.errors import SgoifError
from sgoif.judging.folds import make_folds
from sgoif.scanning.regress import RidgeHead, blend_heads, make_regressors
from sgoif.scanning.residuals import ANOTHER, Residuals, judge_residuals
from sgoif.scanning.scan_run import ScanRun
from sgoif.scanning.standardise import standardise
from sgoif.scanning.values import audit_values


def made(count: int = 240, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Features and values around 20 that half of the features explain."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(count, 4))
    return rows, 20 + 4 * rows[:, 0] - 2 * rows[:, 1] + rng.standard_t(4, size=count)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """A run on disk with ten values that are ten times too large, one missing value and broken features."""
    rows, values = made()
    wrong = np.arange(0, 100, 10)
    values[wrong] *= 10
    values[101], rows[102, 0] = np.nan, np.inf
    out = tmp_path_factory.mktemp("values") / "run"
    ids = np.array([f"row{i}" for i in range(len(values))])
    audit_values(rows, values, ids, run=ScanRun(make_sink(str(out), "none"), {"path": "features"}))
    return out, ids[wrong]


def test_wrong_units_are_found_and_named(written: tuple[Path, np.ndarray]) -> None:
    run = sgoif.load(written[0])
    found = run.value_issues(top=10).to_pylist()
    assert {row["id"] for row in found} == set(written[1])
    assert all(row["p_mislabeled"] > 0.99 and "10 times too large" in row["why"] for row in found)
    assert abs(found[0]["suggested_value"] - found[0]["given_value"] / 10) < 8
    assert all(row["predicted_low"] < row["predicted_value"] < row["predicted_high"] for row in found)
    assert run.info["task"] == "regression" and abs(run.info["expected_errors"] - 10) < 0.5
    assert len(run.value_issues(min_p=0.5)) == 10


def test_values_that_cannot_be_judged_stay_with_a_reason(written: tuple[Path, np.ndarray]) -> None:
    rows = {row["id"]: row for row in sgoif.load(written[0]).value_issues().to_pylist()}
    assert len(rows) == 240
    assert rows["row101"]["no_p_reason"] == "it has no value" and rows["row101"]["p_mislabeled"] is None
    assert rows["row102"]["no_p_reason"] == "its features are not finite"


def test_summary_and_commands_speak_of_values(written: tuple[Path, np.ndarray]) -> None:
    out = str(written[0])
    said = repr(sgoif.load(out))
    assert "class" not in said and "Estimated wrong values: about 10" in said and "10 times too large" in said
    shown = CliRunner().invoke(app, ["issues", out, "--top", "3"])
    assert shown.exit_code == 0 and "10 times too large" in shown.stdout
    assert CliRunner().invoke(app, ["info", out]).exit_code == 0
    assert CliRunner().invoke(app, ["issues", out, "--json"]).exit_code == 0


@pytest.mark.parametrize(
    "command",
    [
        ["report"], ["classes"], ["verify"], ["duplicates"], ["check", "--max-error-rate", "2%"],
        ["holdout", "--out", "x.csv"], ["apply", "--drop-from", "0.9", "--out", "m.parquet"],
        ["export", "--to", "cleanlab", "--out", "x.csv"],
    ],
)  # fmt: skip
def test_commands_about_classes_refuse_in_a_sentence(
    written: tuple[Path, np.ndarray], command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = CliRunner().invoke(app, [command[0], str(written[0]), *command[1:]])
    assert found.exit_code == 2
    assert "has no classes" in " ".join(found.output.split())


def test_features_that_explain_nothing_give_no_probabilities() -> None:
    rng = np.random.default_rng(1)
    run = audit_values(rng.normal(size=(200, 3)), rng.normal(size=200), np.arange(200))
    assert not run.is_calibrated and "no better than a constant" in run.info["no_p_reason"]
    found = run.value_issues(top=5).to_pylist()
    assert all(row["p_mislabeled"] is None and 0 <= row["label_score"] <= 1 for row in found)
    assert "No probabilities" in repr(run)


@pytest.mark.parametrize("kind", ["heavy", "lopsided", "uneven"])
def test_clean_residuals_of_any_shape_are_not_called_errors(kind: str) -> None:
    rng = np.random.default_rng(3)
    level = rng.normal(size=800)
    noise = {
        "heavy": lambda: rng.standard_t(2.5, size=800),
        "lopsided": lambda: rng.lognormal(size=800) - 1,
        "uneven": lambda: rng.normal(size=800) * np.exp(0.6 * rng.normal(size=800)),
    }[kind]()
    found = judge_residuals(Residuals(3 * level + noise, 3 * level, np.ones(800)))
    assert found.sources == () and found.p.sum() == 0
    assert found.p_high.sum() > 0  # some could have gone unnoticed


def test_values_of_other_examples_are_found_as_such() -> None:
    rng = np.random.default_rng(4)
    level = 4 * rng.normal(size=800)
    values = level + 0.5 * rng.normal(size=800)
    wrong = np.arange(0, 800, 10)
    values[wrong] = values[np.roll(wrong, 1)]
    found = judge_residuals(Residuals(values, level, np.full(800, 0.5)))
    assert found.sources == (ANOTHER,)
    assert abs(found.p.sum() - 80) < 15
    is_wrong = np.zeros(800, bool)
    is_wrong[wrong] = True
    assert is_wrong[found.p > 0.5].mean() > 0.9
    assert (found.p_low <= found.p).all() and (found.p <= found.p_high).all()


def test_a_ridge_predicts_without_the_example_and_trees_join_small_tables() -> None:
    rows, values = made(120)
    inputs = standardise(rows).inputs
    folds = make_folds(np.arange(120), np.zeros(120, np.int64))
    moved = values.copy()
    moved[5] += 1000
    before, after = (RidgeHead(inputs, folds).fit(each, np.ones(120)) for each in (values, moved))
    weights = np.ones(120)
    weights[5] = 0
    ignored = RidgeHead(inputs, folds).fit(moved, weights)
    assert abs(after[5] - before[5]) < abs(after - before).max()  # the others moved, its own prediction little
    np.testing.assert_allclose(ignored, RidgeHead(inputs, folds).fit(values, weights), rtol=1e-6)
    found = blend_heads(make_regressors(inputs, folds), values, np.ones(120))
    assert set(found.shares) == {"ridge", "fourier", "trees"} and abs(sum(found.shares.values()) - 1) < 1e-9


def test_wrong_input_is_refused() -> None:
    rows, values = made(60)
    with pytest.raises(SgoifError, match="at least 40 examples"):
        audit_values(rows[:20], values[:20], np.arange(20))
    with pytest.raises(SgoifError, match="all 60 values are 1"):
        audit_values(rows, np.ones(60), np.arange(60))
    with pytest.raises(SgoifError, match="shape"):
        audit_values(rows, values[:50], np.arange(60))
    with pytest.raises(SgoifError, match="type"):
        audit_values(rows, values.astype(str), np.arange(60))
