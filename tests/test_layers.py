"""The import contracts of pyproject.toml hold, and each is broken by what it forbids."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("importlinter", reason="needs import-linter")

ROOT = Path(__file__).resolve().parents[1]
FORBIDDEN = {  # a file, and the line that the contract of this name forbids there
    "imports point one way": ("linalg/__init__.py", "import sgoif.report"),
    "findings and training do not know each other": ("findings/__init__.py", "import sgoif.training"),
    "features do not know each other": ("ood/__init__.py", "import sgoif.shift"),
    "what a finished model is asked needs no training": ("explain/__init__.py", "import sgoif.store"),
    "evidence is numpy alone": ("evidence/__init__.py", "import torch"),
}


def lint(folder):
    """Check the package in a folder: by contract whether it was kept."""
    program = "from importlinter.cli import lint_imports; lint_imports(config_filename='pyproject.toml', no_cache=True)"
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=120)
    return {name: kept == "KEPT" for name, kept in re.findall(r"^(.+?) (KEPT|BROKEN)\b", done.stdout, re.M)}


@pytest.mark.parametrize("is_broken", [False, True])
def test_every_contract_is_kept_and_broken_by_what_it_forbids(tmp_path, is_broken):
    shutil.copytree(ROOT / "src" / "sgoif", tmp_path / "sgoif", ignore=shutil.ignore_patterns("__pycache__", "assets"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for name, line in FORBIDDEN.values() if is_broken else ():
        with (tmp_path / "sgoif" / name).open("a") as file:
            file.write(f"\n{line}\n")
    assert lint(tmp_path) == dict.fromkeys(FORBIDDEN, not is_broken)
