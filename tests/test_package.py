"""The package as installed: what importing it loads and touches, and what it ships."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

import sgoif

PROGRAM = """
import json, sys
import numpy, torch

def state():
    numbers = torch.get_num_threads(), torch.get_rng_state().tolist()
    return repr(torch.get_default_dtype()), torch.is_grad_enabled(), *numbers

before, loaded = state(), set(sys.modules)
import sgoif
found = {"is_left_alone": before == state(), "package": sorted(set(sys.modules) - loaded)}
import sgoif.ood
found["ood"] = sorted(sys.modules)
import sgoif.shift, sgoif.unlearning, sgoif.explain
found["finished"] = sorted(sys.modules)
print(json.dumps(found))
"""
OPTIONAL = {"pyarrow", "duckdb", "jinja2", "typer", "rich", "pandas", "sklearn"}
TRAINING = ("sgoif.training", "sgoif.store", "sgoif.snapshot")


@pytest.fixture(scope="module")
def imported():
    """Import the package in a process of its own, and tell what that did."""
    source = str(Path(sgoif.__file__).resolve().parents[1])
    environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_importing_sgoif_imports_no_optional_package_and_leaves_global_state_alone(imported):
    assert not {name.partition(".")[0] for name in imported["package"]} & OPTIONAL  # beside what torch imports itself
    assert imported["is_left_alone"]


def test_what_a_finished_model_is_asked_loads_no_training(imported):
    assert not [module for module in imported["finished"] if module.startswith(TRAINING)]
    assert len([module for module in imported["ood"] if module.startswith("sgoif")]) <= 60


def test_only_public_names_are_listed_and_are_there():
    from sgoif import experimental

    assert dir(sgoif) == sorted(sgoif.__all__)
    for module in (sgoif, experimental):
        assert all(getattr(module, name) is not None for name in module.__all__)
    with pytest.raises(AttributeError):
        _ = experimental.nothing_of_the_kind


def test_py_typed_ships():
    assert (resources.files("sgoif") / "py.typed").is_file()
