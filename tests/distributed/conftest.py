"""One set of processes for all distributed tests of a session: starting them is most of what such tests cost."""

import pytest

from tests.distributed.worlds import Worlds


@pytest.fixture(scope="session")
def worlds(tmp_path_factory):
    """Give processes that run a function as a world of up to four ranks."""
    found = Worlds(4, tmp_path_factory.mktemp("worlds"))
    yield found
    found.close()
