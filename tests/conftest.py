"""What every test shares: one thread, repeatable hypothesis runs, and image data where it is present."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import settings

from benchmarks.data import DataMissing
from benchmarks.data import data_root as find_data_root

# One thread per process: two OpenMP threads on two busy cores spin against each other.
torch.set_num_threads(1)

settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked ``data`` where the image data is absent."""
    try:
        find_data_root()
    except DataMissing as error:
        skip = pytest.mark.skip(reason=f"data test: {error}")
        for item in items:
            if item.get_closest_marker("data") is not None:
                item.add_marker(skip)


@pytest.fixture(scope="session")
def data_root() -> Path:
    """Give the folder of the image data; mark the tests that use it with ``data``."""
    return find_data_root()
