"""One set of processes for all distributed tests of a session: starting them is most of what such tests cost."""

import pytest

import sgoif
from tests.distributed.loops import Recipe, trained
from tests.distributed.worlds import Worlds

collect_ignore = ["server.py"]  # a program that is handed a connection, not a module


def pytest_collection_modifyitems(items):
    """Keep them together where pytest runs in several processes (``--dist loadgroup``)."""
    for item in items:
        if "worlds" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("worlds"))


@pytest.fixture(scope="session")
def worlds(tmp_path_factory):
    """Give processes that run a function as a world of up to four ranks."""
    found = Worlds(4, tmp_path_factory.mktemp("worlds"))
    yield found
    found.close()


@pytest.fixture(scope="session")
def alone(tmp_path_factory):
    """Give the run of eleven steps of one process, from the disk."""
    return sgoif.load(trained(Recipe(steps=11), {"out": str(tmp_path_factory.mktemp("alone") / "run")})["info"]["url"])
