"""Scoring on Ray Data: the rows of the local engine to the bit, also where an actor is killed in the middle."""

import os
import signal
import sys
import threading
import time

import numpy as np
import pytest
import torch

from sgoif.scoring.score import score
from tests.scoring import pictures
from tests.scoring.pictures import as_parquet, train_and_audit

pytest.importorskip("ray", reason="the engine ray needs Ray")

from sgoif.scoring.on_ray import RayEngine


@pytest.fixture(scope="session")
def cluster():
    """Two CPUs; actors take a quarter each, so that the rest of Ray has some."""
    import ray

    os.environ["RAY_worker_niceness"] = "3"  # noqa: SIM112 - 15 by default: beside other work they would hardly run
    for trial in range(3):  # a node that is not up within 30 s gives up: seen on a busy machine
        try:
            ray.init(
                num_cpus=2,
                include_dashboard=False,
                object_store_memory=128 * 2**20,
                log_to_driver=False,
                logging_level="ERROR",
                runtime_env={"env_vars": {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "OMP_NUM_THREADS": "1"}},
            )
            break
        except Exception:
            ray.shutdown()
            if trial == 2:
                raise
    for module in (sys.modules[__name__], pictures):  # actors find no module of the tests
        ray.cloudpickle.register_pickle_by_value(module)
    yield ray
    ray.shutdown()


def slowly(folder):
    """A transform that says where it runs and takes its time, so that there is a middle to be killed in."""

    def transform(picture):
        (folder / "scoring.pid").write_text(str(os.getpid()))
        time.sleep(0.01)
        return torch.from_numpy(np.array(picture)).permute(2, 0, 1).float().div(255)

    return transform


def kill_the_first(folder, killed):
    """Kill the process that said it was scoring, once a part is there."""
    while not list(folder.glob("examples/rank-00000/*.parquet")):
        time.sleep(0.05)
    said = ""
    while not said:  # between two pictures the file is empty for a moment
        said = (folder.parent / "scoring.pid").read_text()
    pid = int(said)
    os.kill(pid, signal.SIGKILL)
    killed.append(pid)


def test_two_actors_give_the_local_engines_rows_though_one_is_killed(cluster, tmp_path):
    trained = train_and_audit(tmp_path)
    data = as_parquet(trained.train, tmp_path / "data", files=8, broken={7})
    local = score(trained.snapshot, trained.model, data, str(tmp_path / "local"), transform=slowly(tmp_path))
    killed: list[int] = []
    killer = threading.Thread(target=kill_the_first, args=(tmp_path / "ray", killed), daemon=True)
    killer.start()
    engine = RayEngine(actors=2, cpus=0.25)
    spread = score(
        trained.snapshot, trained.model, data, str(tmp_path / "ray"), engine=engine, transform=slowly(tmp_path)
    )
    killer.join(timeout=30)
    assert killed and killed[0] != os.getpid()
    assert spread.info["num_examples"] == 299 and spread.info["num_quarantined"] == 1
    for name, column in local.table.items():
        first, second = column[np.argsort(local.table["id"])], spread.table[name][np.argsort(spread.table["id"])]
        assert np.array_equal(first, second, equal_nan=column.dtype.kind == "f"), name
