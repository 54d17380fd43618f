"""Curvature and damping on frozen features: the mechanics, on features that need no backbone."""

import numpy as np
import pytest
import torch

from benchmarks import frozen_backends, records
from benchmarks.frozen_backends import BACKENDS, Case, examine
from benchmarks.frozen_noise import NoisyFeatures
from benchmarks.tables import rows


@pytest.fixture(scope="module")
def case():
    """Ten classes around means of their own in 40 dimensions of unequal scale, every fifth label wrong."""
    rng = np.random.default_rng(0)
    clean = np.arange(6300) % 10
    rows = (rng.normal(size=(10, 40))[clean] + rng.normal(size=(6300, 40))) * np.geomspace(0.1, 10, 40)
    held = np.arange(6300) >= 6000
    given = np.where(held | (np.arange(6300) // 10 % 5 > 0), clean, (clean + 1) % 10)
    found = NoisyFeatures(rows.astype(np.float32), given, clean, np.array([f"{i}" for i in range(6300)]), held)
    return Case.of(found, features="standardised", is_trusted=True, seed=0)


def test_a_case_sets_the_holdout_apart_and_knows_the_wrong_labels(case):
    assert len(case.labels) == 6000 and len(case.anchors[1]) == 300
    assert case.wrong.mean() == pytest.approx(0.2)
    torch.testing.assert_close(case.inputs.mean(0), torch.zeros(40), atol=1e-5, rtol=0)


@pytest.mark.parametrize("way", frozen_backends.WAYS)
@pytest.mark.parametrize("backend", ["identity", "diagonal, 0.1", "kfac, 0.1"])
def test_every_signal_finds_more_than_chance(case, backend, way):
    found = examine(case, backend, way)
    assert set(found["report"]) == set(frozen_backends.SIGNALS)
    assert all(row["ap"] > 40 for row in found["report"].values())  # chance is 20
    assert all(0 < value <= 100 for value in found["canaries"].values())


def test_kfac_becomes_the_identity_as_its_damping_grows(case, monkeypatch):
    endless = {**BACKENDS, "kfac, endless": ("kfac", {"relative_damping": 1e6})}
    monkeypatch.setattr(frozen_backends, "BACKENDS", endless)
    plain, damped = (examine(case, name, "audited")["report"] for name in ("identity", "kfac, endless"))
    for name in ("harm", "worst"):
        assert damped[name]["ap"] == pytest.approx(plain[name]["ap"], abs=0.01)


def test_the_table_has_a_line_per_backend_and_a_cell_per_setting(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    monkeypatch.setattr(rows, "RESULTS", tmp_path)
    common = {"split": "reported", "holdout": "trusted", "features": "standardised", "way": "audited"}
    found = (("identity", 1, 80.0), ("identity", 2, 90.0), ("kfac, 0.1", 1, 60.0), ("diagonal, 0.1", 1, 95.0))
    for backend, seed, ap in found:
        report = {name: {"ap": ap, "p@1%": 99.0} for name in frozen_backends.SIGNALS}
        what = {**common, "setting": "pair-20", "backend": backend}
        line = {"settings": what, "seed": seed, "report": report, "canaries": {"harm": ap, "worst": 100 - ap}}
        records.append_result("frozen_backends.jsonl", line)
    assert frozen_backends.frozen_backends().splitlines()[2:] == [
        "| audited, trusted | identity | 85.0 / 85.0 / 85.0 | 99.0 / 99.0 / 99.0 |",
        "|  | kfac, 0.1 | 60.0 / 60.0 / 60.0 | 99.0 / 99.0 / 99.0 |",
        "|  | diagonal, 0.1 | 95.0 / 95.0 / 95.0 | 99.0 / 99.0 / 99.0 |",
        # the identity in seed 2, K-FAC in seed 1
        "|  | chosen by canaries | 75.0 / 75.0 / 75.0 | 99.0 / 99.0 / 99.0 |",
    ]
