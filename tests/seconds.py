"""Pytest plugin: the CPU seconds of every test, its processes included; `tests/tiers.py` chooses by them."""

from __future__ import annotations

import json
import os
import resource
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

__all__ = ["name_of"]

_CHEAP = 0.1  # seconds; a function that takes less is not written down
_PROPERTY = "cpu_seconds"


def name_of(nodeid: str) -> str:
    """The function of a test, whatever its parameters.

    >>> name_of("tests/linalg/test_factor.py::test_zero[1.0-a]@group")
    'tests/linalg/test_factor.py::test_zero'
    """
    return nodeid.partition("[")[0].partition("@")[0]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-seconds", metavar="FILE", help="write the CPU seconds of each test function to FILE")
    parser.addoption("--dearest", metavar="N", type=int, default=0, help="print the N functions that took most of them")


def _cpu_seconds() -> float:
    """Of this process, of those that it waited for, and of those that still run: a browser, processes that wait."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages) + _seconds_below(os.getpid())


def _seconds_below(process: int) -> float:
    """CPU seconds of the processes that one has started, as far as ``/proc`` has them."""
    total = 0.0
    for listed in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            children = [int(child) for child in listed.read_text().split()]
        except OSError:
            continue  # ended meanwhile
        for child in children:
            try:
                fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            total += sum(int(ticks) for ticks in fields[11:15]) / os.sysconf("SC_CLK_TCK") + _seconds_below(child)
    return total


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    item.stash[_STARTED] = _cpu_seconds()
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Hand the seconds over with the report of the teardown, through which they leave a worker."""
    if call.when == "teardown":
        # a process that ends without being waited for takes its seconds along
        seconds = max(0.0, _cpu_seconds() - item.stash[_STARTED])
        item.user_properties.append((_PROPERTY, seconds))


_STARTED = pytest.StashKey[float]()


class _Recorder:
    """Adds up what the tests of a run took."""

    def __init__(self, file: str | None, dearest: int):
        self._file, self._dearest = file, dearest
        self._seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            self._seconds[name_of(report.nodeid)] += dict(report.user_properties).get(_PROPERTY, 0.0)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        rows = sorted(self._seconds.items(), key=lambda row: -row[1])[: self._dearest]
        if rows:
            total = sum(self._seconds.values())
            terminalreporter.section(f"dearest tests, of {total:.0f} CPU seconds in all")
            for name, seconds in rows:
                terminalreporter.write_line(f"{seconds:8.1f}  {name}")

    def pytest_sessionfinish(self) -> None:
        if self._file:
            rows = {name: round(seconds, 1) for name, seconds in sorted(self._seconds.items()) if seconds >= _CHEAP}
            Path(self._file).write_text(json.dumps(rows, indent=0) + "\n", encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    file, dearest = config.getoption("--record-seconds"), config.getoption("--dearest")
    if (file or dearest) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Recorder(file, dearest), "seconds-recorder")
