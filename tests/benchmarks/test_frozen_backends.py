"""Curvature and damping on frozen features: the mechanics, on features that need no backbone."""

import numpy as np
import pytest

from benchmarks import frozen_backends
from benchmarks.frozen_backends import BACKENDS, Case, examine
from benchmarks.frozen_noise import NoisyFeatures


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


def test_kfac_becomes_the_identity_as_its_damping_grows(case, monkeypatch):
    endless = {**BACKENDS, "kfac, endless": ("kfac", {"relative_damping": 1e6})}
    monkeypatch.setattr(frozen_backends, "BACKENDS", endless)
    plain, damped = (examine(case, name, "audited")["report"] for name in ("identity", "kfac, endless"))
    for name in ("harm", "worst"):
        assert damped[name]["ap"] == pytest.approx(plain[name]["ap"], abs=0.01)
