"""The tests nearest to a change, within a minute: ``python scripts/quick.py [FILE ...]``; ``--list`` names them alone.

Nearest first, and among equals the cheapest: tests of the changed file, of the files that import it, of its room, of
the rooms that import it. Functions are taken until 40 recorded CPU seconds are used.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.tiers import ROOT, changed_files, read_seconds

BUDGET = 40.0  # CPU seconds
UNRECORDED = 0.05  # what a test function takes that nobody wrote down


def choose(files: Sequence[str], seconds: dict[str, float], budget: float = BUDGET) -> list[str]:
    """Names of test functions for a change of these files, the nearest first."""
    chosen: list[str] = []
    for ring in rings(files):
        names = {name for path in ring for name in functions_of(path)} - set(chosen)
        for name in sorted(names, key=lambda name: (seconds.get(name, UNRECORDED), name)):
            cost = seconds.get(name, UNRECORDED)
            if cost <= budget:
                chosen.append(name)
                budget -= cost
    return chosen


def rings(files: Sequence[str]) -> Iterator[set[Path]]:
    """Test files around a change, from the nearest to the furthest."""
    changed = {ROOT / file for file in files}
    sources = {path for path in changed if path.is_relative_to(ROOT / "src") and path.suffix == ".py"}
    tests = {path for path in changed if path.name.startswith("test_")}
    yield tests | {mirror for path in sources for mirror in mirrors(path)}
    modules = {module_of(path) for path in sources}
    importers = {path for path in python_files("src") if imports(path) & modules}
    yield {path for path in test_files() if imports(path) & modules}
    yield {mirror for path in importers for mirror in mirrors(path)}
    rooms = {path.parent for path in sources if path.parent != ROOT / "src" / "sgoif"}
    yield {path for path in test_files() if any(path.is_relative_to(mirror_of_room(room)) for room in rooms)}
    inside = {module_of(path) for room in rooms for path in room.rglob("*.py")}
    outside = {path for path in python_files("src") if imports(path) & inside}
    yield {mirror for path in outside for mirror in mirrors(path)}


def mirrors(path: Path) -> list[Path]:
    """The test files named after a source file: ``training/step.py`` has ``tests/training/test_step*.py``."""
    return sorted(mirror_of_room(path.parent).glob(f"test_{path.stem}*.py"))


def mirror_of_room(room: Path) -> Path:
    """The folder of a room's tests."""
    return ROOT / "tests" / room.relative_to(ROOT / "src" / "sgoif")


@cache
def python_files(folder: str) -> tuple[Path, ...]:
    """All of a folder of the checkout."""
    return tuple(sorted((ROOT / folder).rglob("*.py")))


def test_files() -> list[Path]:
    """All files that have tests."""
    return [path for path in python_files("tests") if path.name.startswith("test_")]


@cache
def functions_of(path: Path) -> tuple[str, ...]:
    """Names of the test functions of a file, as pytest writes them."""
    if not path.exists():
        return ()
    place = path.relative_to(ROOT).as_posix()
    found = []
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        above = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        found += [
            f"{place}::{above}{test.name}"
            for test in inside
            if isinstance(test, ast.FunctionDef) and test.name.startswith("test_")
        ]
    return tuple(found)


def module_of(path: Path) -> str:
    """The dotted name of a source file."""
    parts = path.relative_to(ROOT / "src").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imports(path: Path) -> frozenset[str]:
    """Modules of ours that a file imports; a name that a package hands on counts for the module that has it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                found |= {node.module, f"{node.module}.{alias.name}", _home_of(node.module, alias.name)}
    return frozenset(name for name in found if name.startswith("sgoif"))


@cache
def _home_of(module: str, name: str) -> str:
    """Where a package's ``__init__`` has a name from."""
    init = ROOT / "src" / Path(*module.split(".")) / "__init__.py"
    if not init.exists():
        return module
    for node in ast.parse(init.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module and name in {alias.name for alias in node.names}:
            return node.module
    return module


def command(names: Iterable[str], files: Sequence[str]) -> list[str]:
    """What runs them, with the examples in docstrings of the changed rooms: a file alone would be imported twice."""
    sources = [Path(file) for file in files if file.startswith("src/sgoif/") and (ROOT / file).exists()]
    examples = sorted({str(path.parent if len(path.parts) > 3 else path) for path in sources if path.suffix == ".py"})
    options = ["-q", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadgroup", "--doctest-modules"]
    return [sys.executable, "-m", "pytest", *options, *examples, *names]


def main(arguments: Sequence[str]) -> int:
    """Run them, or name them."""
    files = [argument for argument in arguments if not argument.startswith("-")]
    files = files or changed_files("HEAD") or changed_files("HEAD~1")
    seconds = read_seconds()
    names = choose(files, seconds)
    total = sum(seconds.get(name, UNRECORDED) for name in names)
    print(f"{len(files)} changed files, {len(names)} test functions, about {total:.0f} CPU seconds", flush=True)
    if "--list" in arguments:
        print(*names, sep="\n")
        return 0
    return subprocess.run(command(names, files), cwd=ROOT).returncode if names else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
