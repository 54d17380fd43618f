"""What a process of a world runs: functions that come through a pipe, each as a rank of a world of its own."""

import sys
import traceback
from datetime import timedelta
from pathlib import Path
from types import ModuleType

import torch
import torch.distributed as dist

# pytest finds this folder by itself; elsewhere a package that some library installed as `tests` would hide it
tests = sys.modules["tests"] = ModuleType("tests")
tests.__path__ = [str(Path(__file__).parents[1])]


def serve(connection):
    """Run what comes, in a world of its own, until None comes."""
    torch.set_num_threads(1)
    while (task := connection.recv()) is not None:
        function, rank, size, place, arguments = task
        try:
            dist.init_process_group(
                "gloo", init_method=f"file://{place}", rank=rank, world_size=size, timeout=timedelta(seconds=60)
            )
            connection.send((function(*arguments), None))
        except BaseException:
            connection.send((None, traceback.format_exc()))
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()


serve(globals()["connection"])
