"""Time and memory of variants of the same work, measured so that a drifting machine favours none of them; of commands.

Time: all variants run in one process, in blocks, forward and backward in turn (A B B A for two), so that a slow drift
of the machine falls on each alike. Memory: one process per variant, since a peak cannot be lowered again.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, ParamSpec, TypeVar
from unittest import mock

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from sgoif.overhead import Ratio, Timings, alternate

__all__ = [
    "Ratio",
    "Timings",
    "alternate",
    "peak_mb",
    "raised_memory_mb",
    "raised_peak_mb",
    "resident_mb",
    "run_command",
    "run_in_process",
    "run_ranks",
]

_P = ParamSpec("_P")
_T = TypeVar("_T")
_GIVE_BACK = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}


def run_command(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> dict[str, float]:
    """Run a command with one thread: its wall and CPU seconds, and the peak of its memory in MiB.

    Raises:
        RuntimeError: It failed; with the end of what it wrote to standard error.
    """
    env, started = {**environment, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}, time.perf_counter()
    process = subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"{shlex.join(command)} failed: {said.decode()[-2000:]}")
    return {
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "seconds": time.perf_counter() - started,
        "peak_mb": used.ru_maxrss / 1024,
    }


def run_in_process(function: Callable[_P, _T], *arguments: _P.args, **settings: _P.kwargs) -> _T:
    """Call a function of a module in a fresh process of one thread, whose peak memory is then its own."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, torch.set_num_threads, (1,)) as pool:
        return pool.submit(function, *arguments, **settings).result()


def run_ranks(size: int, function: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """Call a function on so many ranks of one thread each, joined by gloo; what rank 0 found."""
    with tempfile.TemporaryDirectory() as folder:
        spawn(_run_rank, (size, folder, function, arguments), nprocs=size)
        found: dict[str, Any] = json.loads((Path(folder) / "found.json").read_text())
    return found


def _run_rank(
    rank: int, size: int, folder: str, function: Callable[..., dict[str, Any]], arguments: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=size)
    found = function(*arguments)
    if rank == 0:
        (Path(folder) / "found.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def raised_peak_mb(function: Callable[..., object], *arguments: Any) -> float:
    """Measure by how much a call raises the peak resident memory of a fresh process over its imports, in MiB."""
    return raised_memory_mb(function, *arguments)["peak"]


def raised_memory_mb(function: Callable[..., object], *arguments: Any) -> dict[str, float]:
    """Measure by how much a call raises the peak resident memory of a fresh process over its imports, in MiB.

    There the C library gives back at once what is freed. By default it keeps some, how much depends on the order of
    calls, and the peak of one program varied by 20%.

    Returns:
        ``peak``, and ``mapped``: how much of it are files, that is code of libraries that was used for the first time.
        Processes share it, the system takes it back when it is short, and it does not grow with model or data.
    """
    with mock.patch.dict(os.environ, _GIVE_BACK):
        return run_in_process(_raise_memory, function, arguments)


def _raise_memory(function: Callable[..., object], arguments: tuple[Any, ...]) -> dict[str, float]:
    baseline, mapped = peak_mb(), _status_mb("RssFile:")
    function(*arguments)
    return {"peak": peak_mb() - baseline, "mapped": _status_mb("RssFile:") - mapped}


def peak_mb() -> float:
    """The peak resident memory of this process so far, in MiB."""
    # On Linux ru_maxrss of a fresh process starts at the memory of the process that launched it, so a large parent
    # hides the child's growth. VmHWM is the same peak, counted from the start of the program.
    if Path("/proc/self/status").exists():
        return _status_mb("VmHWM:")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 1024


def resident_mb() -> float:
    """The resident memory of this process now, in MiB; on Linux alone."""
    return _status_mb("VmRSS:")


def _status_mb(name: str) -> float:
    if not Path("/proc/self/status").exists():  # not Linux
        return float("nan")
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))
