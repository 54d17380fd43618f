"""Pytest plugin: which tests a run has, and in which order (``docs/decisions/tests.md``).

``--tier gate`` keeps what every change must pass: tests of less than two CPU seconds, those of ``ALWAYS``, and all
tests of the rooms that the change touches. Without it every test runs that is not marked ``slow``.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

import pytest

from tests.seconds import name_of

__all__ = ["changed_files", "find_base", "match_tests", "read_seconds"]

ROOT = Path(__file__).resolve().parents[1]
SECONDS = ROOT / "tests" / "seconds.json"  # `just seconds` writes it
CHEAP = 2.0  # CPU seconds of a test function, with all its parameters
HOURS = 4  # a base is a commit older than this, where none is named

# Beginnings of the names of tests that the gate always has: truths that any change may break.
ALWAYS = (
    "tests/browser/test_page.py",
    "tests/cli/test_command_machine.py",
    "tests/distributed/test_ddp.py",
    "tests/distributed/test_random_faults.py",
    "tests/distributed/test_rounds.py",
    "tests/gradients/",
    "tests/influence/",
    "tests/store/test_kill.py",
    "tests/test_neutrality.py",
    "tests/training/test_contract.py",
    "tests/training/test_paper_switches.py",
    "tests/training/test_watch_machine.py",
)
PAGES = ("tests/docs/", "tests/test_examples.py", "tests/test_notebook.py")
PUBLIC = ("src/sgoif/__init__.py", "src/sgoif/api.py", "src/sgoif/settings.py")


def find_base(root: Path = ROOT) -> str | None:
    """The commit that a change is compared with: ``GATE_BASE``, else the newest one that is over four hours old."""
    named = os.environ.get("GATE_BASE")
    if named is not None:
        return named or None
    return _git(root, "rev-list", "-1", f"--before={HOURS} hours ago", "HEAD").strip() or None


def changed_files(base: str | None, root: Path = ROOT) -> list[str]:
    """Files that differ from a commit, those that git does not track yet included; none without a commit."""
    if base is None:
        return []
    tracked = _git(root, "diff", "--name-only", "--no-renames", base)
    new = _git(root, "ls-files", "--others", "--exclude-standard")
    return sorted({*tracked.splitlines(), *new.splitlines()})


def _git(root: Path, *arguments: str) -> str:
    """What git answers; nothing where the folder is no checkout, an error where it is one and the question is wrong."""
    if not (root / ".git").exists():
        return ""
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
    if done.returncode:
        raise pytest.UsageError(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def match_tests(files: Iterable[str]) -> set[str]:
    """Beginnings of the names of the tests in the rooms of these files.

    >>> sorted(match_tests(["src/sgoif/linalg/factor.py", "src/sgoif/finish.py", "tests/cli/test_info.py"]))
    ['src/sgoif/finish.py', 'src/sgoif/linalg/', 'tests/cli/test_info.py', 'tests/linalg/', 'tests/test_finish.py']
    >>> sorted(match_tests(["docs/howto/scan.md", "CHANGELOG.md"]))
    ['tests/docs/test_docs.py::test_the_code_of_a_page_runs[docs/howto/scan.md]']
    """
    return {beginning for file in files for beginning in _match_file(PurePosixPath(file))}


def _match_file(file: PurePosixPath) -> Iterable[str]:
    match file.parts:
        case ("src", "sgoif", _):
            pages = PAGES if str(file) in PUBLIC else ()
            return (str(file), f"tests/test_{file.name}", *pages)
        case ("src", "sgoif", room, *_):
            return f"src/sgoif/{room}/", f"tests/{room}/"
        case ("tests", room, *_, name) if name.startswith("test_") or room == name:
            return (str(file),)
        case ("tests", room, _, *_):
            return (f"tests/{room}/",)
        case ("benchmarks", *_):
            return ("tests/benchmarks/",)
        case ("docs", "cli.md"):
            return ("tests/docs/test_cli_page.py",)
        case ("docs", *_) if file.suffix == ".md":
            return (f"tests/docs/test_docs.py::test_the_code_of_a_page_runs[{file}]",)
        case ("examples", *_):
            return ("tests/test_examples.py", "tests/test_notebook.py")
        case _:
            return ()


def read_seconds(path: Path = SECONDS) -> dict[str, float]:
    """CPU seconds by test function; one that is not written down is cheap."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", choices=["gate", "nightly"], default="nightly", help="gate: what every change must pass")


def pytest_configure(config: pytest.Config) -> None:
    """Name the base for the processes that are started from here: they must choose alike."""
    if config.getoption("--tier") == "gate":
        os.environ["GATE_BASE"] = find_base() or ""
        os.environ.setdefault("SGOIF_TRACES", "5")


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say what the choice was made by."""
    if config.getoption("--tier") != "gate":
        return []
    touched = sorted(match_tests(changed_files(find_base())))
    return [f"gate: changed since {os.environ['GATE_BASE'] or 'no commit'}: {', '.join(touched) or 'no room'}"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seconds = read_seconds()
    _share_fixtures(items)
    _start_with_the_longest(items, seconds)
    if config.getoption("--tier") == "gate":
        beginnings = (*ALWAYS, *match_tests(changed_files(find_base())))
        later = {item for item in items if not _is_in_gate(item.nodeid, seconds, beginnings)}
        items[:] = [item for item in items if item not in later]
        config.hook.pytest_deselected(items=list(later))


def _is_in_gate(nodeid: str, seconds: dict[str, float], beginnings: tuple[str, ...]) -> bool:
    return seconds.get(name_of(nodeid), 0.0) < CHEAP or nodeid.startswith(beginnings)


def _share_fixtures(items: list[pytest.Item]) -> None:
    """Keep tests together that share a fixture of their file: apart, each process would make it anew."""
    for item in items:
        shared = any(
            fixture.scope in ("module", "class") or (fixture.scope == "session" and fixture.baseid.endswith(".py"))
            for fixtures in item._fixtureinfo.name2fixturedefs.values()
            for fixture in fixtures
        )
        if shared and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


def _start_with_the_longest(items: list[pytest.Item], seconds: dict[str, float]) -> None:
    """Order files by their seconds, so that no process ends with a long one while the others wait."""
    files: dict[str, float] = defaultdict(float)
    for name in sorted({name_of(item.nodeid) for item in items}):  # sums of floats depend on their order
        files[name.partition("::")[0]] += seconds.get(name, 0.0)
    items.sort(key=lambda item: -files[item.nodeid.partition("::")[0]])
