"""What every test shares: one thread, repeatable hypothesis runs, and image data where it is present."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from benchmarks.data import DataMissing
from benchmarks.data import data_root as find_data_root
from benchmarks.models import ResNet9
from sgoif.evidence import measure_competence

pytest_plugins = ["tests.seconds", "tests.tiers"]

# One thread per process: two OpenMP threads on two busy cores spin against each other.
torch.set_num_threads(1)

settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci")

# What meets the libraries below: files, queries, the command line, pictures, pages. `.ci/run` repeats these tests with
# the oldest versions that pyproject.toml allows.
FLOORS = (
    "tests/cli/test_check.py",
    "tests/cli/test_compare.py",
    "tests/cli/test_duplicates.py",
    "tests/cli/test_errors.py",
    "tests/cli/test_holdout.py",
    "tests/cli/test_info.py",
    "tests/cli/test_issues.py",
    "tests/cli/test_scan.py",
    "tests/cli/test_settings.py",
    "tests/export/",
    "tests/files/",
    "tests/pictures/",
    "tests/report/",
    "tests/snapshot/",
    "tests/store/test_merge.py",
    "tests/store/test_reader.py",
    "tests/store/test_schema.py",
    "tests/store/test_writer.py",
    "tests/training/test_portable.py",
    "tests/training/test_monitor.py::test_a_run_is_written_and_reads_back",
)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With ``-m floors`` leave the other files alone: they import packages that need not be there."""
    if "floors" not in config.getoption("markexpr") or not collection_path.is_file():
        return None
    place = collection_path.relative_to(config.rootpath).as_posix()
    return None if place.startswith(tuple(floor.partition("::")[0] for floor in FLOORS)) else True


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Keep this checkout ahead of installed packages, for processes that a test starts: opacus has `benchmarks` too."""
    first = next((place for place, entry in enumerate(sys.path) if "site-packages" in entry), len(sys.path))
    if str(item.config.rootpath) not in sys.path[:first]:
        sys.path.insert(0, str(item.config.rootpath))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of ``FLOORS``; skip tests marked ``data`` where the image data is absent."""
    for item in items:
        if item.nodeid.startswith(FLOORS):
            item.add_marker(pytest.mark.floors)
    try:
        find_data_root()
    except DataMissing as error:
        skip = pytest.mark.skip(reason=f"data test: {error}")
        for item in items:
            if item.get_closest_marker("data") is not None:
                item.add_marker(skip)


@pytest.fixture
def weak_models_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a model judge labels whatever its accuracy: for tests of what comes after, whose trainings take seconds."""
    for place in ("sgoif.judging.judge", "sgoif.training.holdout_scores"):
        monkeypatch.setattr(
            f"{place}.measure_competence",
            lambda *measured: replace(measure_competence(*measured), is_competent=True),
        )
    monkeypatch.setattr("sgoif.judging.judge.why_no_probabilities", lambda kind, competence: None)


@pytest.fixture
def narrow_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small networks train in a seventh of their time, and learn as little: for tests of what is done with them."""
    monkeypatch.setattr(ResNet9.__init__, "__defaults__", ((8, 8, 16, 16), 10))


@pytest.fixture
def quick_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let scans fit fewer trees, waves and folds: for tests of what a scan does, not of how well it judges."""
    monkeypatch.setattr("sgoif.scanning.tabular._TREES", 20)
    monkeypatch.setattr("sgoif.scanning.tabular._WAVES", 60)
    monkeypatch.setattr("sgoif.judging.folds._REPEATED", 0)  # five folds, however few examples there are


@pytest.fixture(scope="session")
def data_root() -> Path:
    """Give the folder of the image data; mark the tests that use it with ``data``."""
    return find_data_root()
