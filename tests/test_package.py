"""The package as installed: what importing it costs, and what it ships."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import resources
from pathlib import Path

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
