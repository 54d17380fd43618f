"""The package as installed: what importing it costs, and what it ships."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

import sgoif

OPTIONAL = ("pyarrow", "duckdb", "jinja2", "typer", "rich", "pandas", "sklearn")


def test_importing_sgoif_imports_no_optional_package():
    # torch itself may import some of these, so only what sgoif adds to torch and numpy counts
    program = f"""
import json, sys
import numpy, torch
before = set(sys.modules)
import sgoif
added = {{name.partition(".")[0] for name in set(sys.modules) - before}}
print(json.dumps(sorted(added & set({OPTIONAL!r}))))
"""
    assert json.loads(_run(program)) == []


def test_importing_sgoif_leaves_global_state_alone():
    program = """
import json
import torch
def state():
    numbers = torch.get_num_threads(), torch.get_rng_state().tolist()
    return repr(torch.get_default_dtype()), torch.is_grad_enabled(), *numbers
before = state()
import sgoif
print(json.dumps(before == state()))
"""
    assert json.loads(_run(program)) is True


def test_only_public_names_are_listed():
    assert dir(sgoif) == sorted(sgoif.__all__)
    assert all(getattr(sgoif, name) is not None for name in dir(sgoif))


def test_importing_sgoif_takes_no_time_beside_torch():
    program = """
import json, time
def seconds(name):
    begun = time.perf_counter()
    __import__(name)
    return time.perf_counter() - begun
print(json.dumps([seconds("torch"), seconds("sgoif")]))
"""
    torch, ours = json.loads(_run(program))
    assert ours <= 0.05 * torch, (ours, torch)


def test_few_names_are_stable():
    assert len(sgoif.__all__) <= 15  # with __version__; tests/docs/test_reference.py compares them with the reference


@pytest.mark.parametrize("name", ["ood", "shift", "unlearning", "explain"])
def test_what_a_finished_model_is_asked_loads_no_training(name):
    loaded = json.loads(_run(f"import json, sys, sgoif.{name}; print(json.dumps(sorted(sys.modules)))"))
    ours = [module for module in loaded if module.startswith("sgoif")]
    assert not [module for module in ours if module.startswith(("sgoif.training", "sgoif.store", "sgoif.snapshot"))]
    assert name != "ood" or len(ours) <= 60


def test_every_experimental_name_is_there():
    from sgoif import experimental

    assert all(getattr(experimental, name) is not None for name in experimental.__all__)
    with pytest.raises(AttributeError):
        _ = experimental.nothing_of_the_kind


def test_py_typed_ships():
    assert (resources.files("sgoif") / "py.typed").is_file()


def test_version_is_a_string():
    assert sgoif.__version__.count(".") >= 2


def _run(program: str) -> str:
    source = str(Path(sgoif.__file__).resolve().parents[1])
    environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout
