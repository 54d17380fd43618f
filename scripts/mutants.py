"""Plant faults one by one and see whether the tests notice: ``python scripts/mutants.py [ROOM ...]``.

``tests/mutants.toml`` lists the faults: in which function some text is replaced by another. A fault is planted in a
copy of the tracked files, and the tests of its room run there; if they pass, those of the rooms that import the module;
if these pass too, all tests. Results are lines of a file, and are kept as long as source and tests stay the same.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import tomllib

LIST = "tests/mutants.toml"
MOST_ALIVE = 2  # faults without a reason that may live
LEVELS = {"room": 1800, "importers": 3600, "suite": 14400}  # seconds: several times what tests take
IGNORED = ("tests/test_mutants.py", "tests/scoring/test_on_ray.py", "src/sgoif/integrations")
# these find no place for the fault that is planted, need Ray, and need packages that may be absent
NO_VERDICT = (3, 4, 5)  # exit codes of pytest that broke, did not understand, or found no test
MEASURED = ("src/", "tests/", "benchmarks/", "pyproject.toml")  # what a result depends on

PLUGIN = '''"""Run cheap tests first, and write down which fail."""
import json, os
from pathlib import Path

def pytest_collection_modifyitems(items):
    path = Path("tests/seconds.json")
    seconds = json.loads(path.read_text()) if path.exists() else {}
    items.sort(key=lambda item: seconds.get(item.nodeid.partition("[")[0], 0.0))

def note(report):
    if report.failed:
        with open(os.environ["MUTANTS_FAILED"], "a") as file:
            print(report.nodeid, file=file)

pytest_runtest_logreport = pytest_collectreport = note
'''


@dataclass(frozen=True, slots=True)
class Fault:
    """A slip in one function: some of its text, and what stands there instead."""

    name: str
    function: str  # qualified name of a function or class; empty at the top of a module
    old: str
    new: str
    reason: str = ""  # why it is known to survive

    @property
    def digest(self) -> str:
        """Changes with what is planted."""
        return _digest([self.function, self.old, self.new])


@dataclass(frozen=True, slots=True)
class Planted:
    """A fault with its place."""

    fault: Fault
    file: str  # from the root of the checkout
    start: int  # where the old text begins, in characters

    @property
    def room(self) -> str:
        """The folder below the package, or the module where it lies beside the folders."""
        return Path(self.file).relative_to("src/sgoif").parts[0].removesuffix(".py")


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a fault."""

    name: str
    room: str
    file: str
    verdict: str  # killed, alive or error
    level: str  # that killed it, or the last one that it outlived
    test: str  # that noticed it first; or what went wrong
    seconds: float
    commit: str
    tree: str  # digest of source and tests
    fault: str  # digest of the fault
    command: str = ""  # what ran in place of the tests of its room


def main() -> int:
    """Plant what is asked for, print who lives, and return 1 where too many do."""
    options = _read_options()
    root = options.root.resolve()
    os.environ.setdefault("SGOIF_DATA", str(root.parent / "shared" / "data"))  # beside the checkout, not the copy
    planted, problems = find_places(root, read_faults(root))
    if options.check or problems:
        print("\n".join(problems) or f"each of {len(planted)} faults has its one place")
        return bool(problems)
    chosen = [item for item in planted if _is_chosen(item, options)]
    tree, commit = digest_tree(root), _git(root, "rev-parse", "--short=12", "HEAD").strip()
    runner = Runner(root, options.until, options.with_command, commit, tree)
    results = {} if options.again else read_results(options.results, tree, options.with_command)
    left = [item for item in chosen if not runner.is_done(results.get(item.fault.digest))]
    print(f"{len(left)} of {len(chosen)} faults are planted, the others have a result", flush=True)
    for result in runner.run(left, results, options.jobs):
        results[result.fault] = result
        append_result(options.results, result)
    found = [results[item.fault.digest] for item in chosen if item.fault.digest in results]
    return print_results(found, {item.fault.name: item.fault.reason for item in chosen})


def _read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("rooms", nargs="*", help="only faults of these rooms")
    add("--names", default="", help="only faults whose name contains this")
    add("--files", nargs="+", default=[], help="only faults in these source files")
    add("--until", choices=list(LEVELS), default="suite", help="the last tests that run")
    add("--with", dest="with_command", default="", help="a command that runs in place of the tests of the room")
    add("--jobs", type=int, default=2)
    add("--again", action="store_true", help="measure what has a result too")
    add("--check", action="store_true", help="only see whether every fault has its one place")
    add("--results", type=Path, default=Path("build/mutants.jsonl"))
    add("--root", type=Path, default=Path("."), help="the checkout")
    return parser.parse_args()


def _is_chosen(item: Planted, options: argparse.Namespace) -> bool:
    is_in_room = not options.rooms or item.room in options.rooms
    is_in_file = not options.files or item.file in {Path(file).as_posix() for file in options.files}
    return is_in_room and is_in_file and options.names in item.fault.name


def read_faults(root: Path) -> list[Fault]:
    """Read the list; names are distinct."""
    faults = [Fault(**entry) for entry in tomllib.loads((root / LIST).read_text(encoding="utf-8"))["fault"]]
    twice = [name for name, count in Counter(fault.name for fault in faults).items() if count > 1]
    if twice:
        raise SystemExit(f"{LIST}: several faults are called {', '.join(twice)}")
    return faults


def find_places(root: Path, faults: Iterable[Fault]) -> tuple[list[Planted], list[str]]:
    """The place of each fault, and what is wrong with those that have none or several."""
    sources = {path: path.read_text(encoding="utf-8") for path in sorted((root / "src" / "sgoif").rglob("*.py"))}
    planted, problems = [], []
    for fault in faults:
        places = [
            Planted(fault, path.relative_to(root).as_posix(), start)
            for path, text in sources.items()
            if fault.old in text
            for start in _find_starts(text, fault)
        ]
        if len(places) == 1:
            planted += places
        else:
            where = fault.function or "a module"
            problems.append(f"{LIST}: {fault.name!r} has {len(places)} places in {where}; it needs one: {fault.old!r}")
    return planted, problems


def _find_starts(text: str, fault: Fault) -> Iterator[int]:
    """Where the old text begins in each definition of the name that holds it once."""
    for start, stop in _find_spans(text).get(fault.function, ()):
        if text.count(fault.old, start, stop) == 1:
            yield text.index(fault.old, start, stop)


@cache
def _find_spans(text: str) -> dict[str, list[tuple[int, int]]]:
    """Start and end of functions and classes by qualified name, in characters; of a module's other statements by ''."""
    lines = [0]
    for line in text.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    spans: dict[str, list[tuple[int, int]]] = {}

    def visit(body: Iterable[ast.AST], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                first = min([node.lineno, *(item.lineno for item in node.decorator_list)])
                spans.setdefault(prefix + node.name, []).append((lines[first - 1], lines[node.end_lineno or 0]))
                visit(node.body, f"{prefix}{node.name}.")
            elif not prefix and isinstance(node, ast.stmt):
                spans.setdefault("", []).append((lines[node.lineno - 1], lines[node.end_lineno or 0]))

    visit(ast.parse(text).body, "")
    return spans


class Runner:
    """Plants faults in copies of a checkout, and runs tests there."""

    def __init__(self, root: Path, until: str, command: str, commit: str, tree: str) -> None:
        self.root, self.until, self.command, self.commit, self.tree = root, until, command, commit, tree
        self.levels = list(LEVELS)[: list(LEVELS).index(until) + 1]
        self.importers = find_importers(root)

    def is_done(self, before: Result | None) -> bool:
        """Whether a result says all that is asked."""
        if before is None or before.verdict == "error":
            return False
        return before.verdict == "killed" or before.level not in self.levels or before.level == self.until

    def run(self, planted: Sequence[Planted], before: dict[str, Result], jobs: int) -> Iterator[Result]:
        """Yield a result for every fault, and at the end errors for tests that fail without any fault."""
        if not planted:
            return
        with tempfile.TemporaryDirectory(prefix="sgoif-mutants-") as folder:
            copies: SimpleQueue[Copy] = SimpleQueue()
            for number in range(jobs):
                copies.put(Copy.make(self.root, Path(folder) / str(number)))

            def try_one(item: Planted) -> Result:
                copy = copies.get()
                try:
                    return self._try(copy, item, before.get(item.fault.digest))
                finally:
                    copies.put(copy)

            killed: list[Result] = []
            with ThreadPoolExecutor(jobs) as pool:
                for result in pool.map(try_one, planted):
                    print(f"{result.verdict:7s}{result.seconds:6.0f} s  {result.name}: {result.test}", flush=True)
                    killed += [result] if result.verdict == "killed" else []
                    yield result
            yield from self._doubt(copies.get(), killed)
            _drop_bytecode(Path(folder))

    def _try(self, copy: Copy, item: Planted, before: Result | None) -> Result:
        """Run one level after the other until a test notices the fault."""
        outlived = before.level if before is not None and before.verdict == "alive" else ""
        levels = self.levels[self.levels.index(outlived) + 1 :] if outlived in self.levels else self.levels
        started, verdict, test, level = time.monotonic(), "alive", "", outlived
        with copy.plant(item):
            for level in levels:
                command = self._command(copy, level, item)
                verdict, test = copy.run(command, LEVELS[level]) if command else ("alive", "")
                if verdict != "alive":
                    break
        seconds = round(time.monotonic() - started, 1)
        about = (item.fault.name, item.room, item.file, verdict, level, test, seconds)
        return Result(*about, self.commit, self.tree, item.fault.digest, self.command)

    def _command(self, copy: Copy, level: str, item: Planted) -> list[str]:
        """What runs at a level; nothing where no other room imports the module."""
        if level == "room":
            return shlex.split(self.command) or _pytest(room_tests(copy.root, item))
        if level == "suite":
            return _pytest(["tests", "src/sgoif"])
        rooms = self.importers.get(item.file, set()) - {item.room}
        folders = [f"tests/{room}" for room in sorted(rooms) if (copy.root / "tests" / room).is_dir()]
        return _pytest(folders) if folders else []

    def _doubt(self, copy: Copy, killed: Sequence[Result]) -> Iterator[Result]:
        """Run the tests that noticed something without a fault: one that fails even so has noticed nothing."""
        tests = sorted({_function_of(result.test) for result in killed if ".py" in result.test})
        failures = copy.list_failures(_pytest(tests, stop=False), LEVELS["suite"]) if tests else []
        broken = {_function_of(test) for test in failures}
        for result in killed:
            if _function_of(result.test) in broken:
                print(f"error: {result.test} fails without the fault {result.name!r} too", flush=True)
                yield Result(**{**asdict(result), "verdict": "error", "test": f"{result.test} fails without it too"})


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of the tracked files, in which one fault at a time is planted."""

    root: Path

    @classmethod
    def make(cls, checkout: Path, folder: Path) -> Copy:
        """Copy the tracked files as they lie in the work tree."""
        for name in list_files(checkout):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(checkout / name, folder / name)
        (folder / "plant").mkdir()
        (folder / "plant" / "mutants_plugin.py").write_text(PLUGIN, encoding="utf-8")
        return cls(folder)

    def plant(self, item: Planted) -> _Planting:
        """Plant a fault for the length of a ``with`` block."""
        return _Planting(self.root / item.file, item)

    def run(self, command: Sequence[str], timeout_s: float) -> tuple[str, str]:
        """Run tests: whether they noticed anything, and which one did."""
        code, output, failures = self._start(command, timeout_s)
        if code is None:
            return "killed", f"time: {timeout_s:.0f} s were not enough"
        if code < 0 or code > 128:
            return "killed", f"crash: exit code {code}"
        if code == 0:
            return "alive", ""
        if code in NO_VERDICT or not failures:
            return "error", f"exit code {code}: {' '.join(output.split())[-300:]}"
        return "killed", failures[0]

    def list_failures(self, command: Sequence[str], timeout_s: float) -> list[str]:
        """Run tests to the end, and list those that fail."""
        return self._start(command, timeout_s)[2]

    def _start(self, command: Sequence[str], timeout_s: float) -> tuple[int | None, str, list[str]]:
        """Exit code, or none where the time was up; what was printed; and which tests failed."""
        notes = self.root / "plant" / "failed"
        notes.write_text("", encoding="utf-8")
        process = subprocess.Popen(
            command,
            cwd=self.root,
            env=self._environment(notes),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            output = process.communicate(timeout=timeout_s)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return None, "", []
        return process.returncode, output, notes.read_text(encoding="utf-8").splitlines()

    def _environment(self, notes: Path) -> dict[str, str]:
        """What makes the tests, and processes that they start, import the copy."""
        paths = [str(self.root / "src"), str(self.root)]
        more = {"PYTHONPATH": os.pathsep.join([*paths, str(self.root / "plant")]), "OMP_NUM_THREADS": "1"}
        more |= {"MKL_NUM_THREADS": "1", "MUTANTS_FAILED": str(notes), "PYTEST_ADDOPTS": "-p mutants_plugin"}
        return {**os.environ, **more}


class _Planting:
    """A file with a fault in it; its time is another for every fault, lest old bytecode is taken for new."""

    _times = iter(range(1_000_000_000, 2_000_000_000))

    def __init__(self, path: Path, item: Planted) -> None:
        self.path, self.item = path, item
        self.text, self.before = path.read_text(encoding="utf-8"), path.stat()

    def __enter__(self) -> None:
        fault, start = self.item.fault, self.item.start
        text = self.text[:start] + fault.new + self.text[start + len(fault.old) :]
        ast.parse(text)
        self.path.write_text(text, encoding="utf-8")
        os.utime(self.path, (next(self._times),) * 2)

    def __exit__(self, *_: object) -> None:
        self.path.write_text(self.text, encoding="utf-8")
        os.utime(self.path, ns=(self.before.st_atime_ns, self.before.st_mtime_ns))


def _pytest(paths: Sequence[str], *, stop: bool = True) -> list[str]:
    ignored = [f"--ignore={path}" for path in IGNORED]
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", "--doctest-modules"]
    return [*command, *ignored, *(["-x"] if stop else []), *paths]


def _function_of(test: str) -> str:
    """A test without its parameters."""
    return test.partition("[")[0]


def room_tests(root: Path, item: Planted) -> list[str]:
    """Tests of the room of a fault, those of its file first, and the examples in its docstrings.

    A module beside the rooms has tests beside theirs.
    """
    folder, stem = root / "tests" / item.room, Path(item.file).stem
    files = sorted(folder.rglob("test_*.py")) if folder.is_dir() else sorted((root / "tests").glob("test_*.py"))
    names = [path.relative_to(root).as_posix() for path in files]
    is_mirror = re.compile(rf"test_{re.escape(stem.strip('_'))}(_\w+)?\.py$")
    tests = sorted((name for name in names if name not in IGNORED), key=lambda name: not is_mirror.search(name))
    source = f"src/sgoif/{item.room}"  # whole: pytest imports a file by itself a second time, and rules register once
    return [*tests, source if (root / source).is_dir() else item.file]


def find_importers(root: Path) -> dict[str, set[str]]:
    """Rooms that import each file, by the file; a name that a package hands on counts for where it is from."""
    package = root / "src" / "sgoif"
    files = {_module_of(path, package): path for path in package.rglob("*.py")}
    trees = {module: ast.parse(path.read_text(encoding="utf-8")) for module, path in files.items()}
    homes = {name: home for module, tree in trees.items() for name, home in _list_imports(module, tree)}
    found: dict[str, set[str]] = {}
    for module, tree in trees.items():
        room = files[module].relative_to(package).parts[0].removesuffix(".py")
        for _, target in _list_imports(module, tree):
            while target not in files and target in homes and homes[target] != target:
                target = homes[target]
            target = target if target in files else target.rpartition(".")[0]
            if target in files:
                found.setdefault(files[target].relative_to(root).as_posix(), set()).add(room)
    return found


def _module_of(path: Path, package: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _list_imports(module: str, tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Names that a module's imports give it, and what they stand for, both qualified."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield f"{module}.{alias.asname or alias.name}", f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield f"{module}.{alias.asname or alias.name}", alias.name


def list_files(root: Path) -> list[str]:
    """Tracked files that are there."""
    return [name for name in _git(root, "ls-files", "-z").split("\0") if name and (root / name).is_file()]


def digest_tree(root: Path) -> str:
    """A digest of source and tests as they lie in the work tree, without the list of faults."""
    names = [name for name in list_files(root) if name.startswith(MEASURED) and name != LIST]
    return _digest(part for name in names for part in (name, (root / name).read_bytes()))


def _digest(parts: Iterable[str | bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()[:12]


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout


def _drop_bytecode(folder: Path) -> None:
    """Remove what Python kept of copies that are gone, where it keeps bytecode in a folder of its own."""
    prefix = os.environ.get("PYTHONPYCACHEPREFIX")
    if prefix:
        shutil.rmtree(Path(prefix) / folder.resolve().relative_to("/"), ignore_errors=True)


def read_results(path: Path, tree: str, command: str) -> dict[str, Result]:
    """The last result of each fault with this source, these tests and this command, by the fault's digest."""
    if not path.exists():
        return {}
    rows: list[dict[str, Any]] = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    found = [Result(**row) for row in rows if row["tree"] == tree and row["command"] == command]
    return {result.fault: result for result in found}


def append_result(path: Path, result: Result) -> None:
    """Keep a result as soon as it is known."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        print(json.dumps(asdict(result)), file=file)


def print_results(results: Sequence[Result], reasons: dict[str, str]) -> int:
    """Print who lives, by room, and return 1 where too many live or something went wrong."""
    by_room: dict[str, list[Result]] = {}
    for result in results:
        by_room.setdefault(result.room, []).append(result)
    print(f"\n{'room':16s}{'faults':>8s}" + "".join(f"{level:>11s}" for level in (*LEVELS, "alive", "errors")))
    for room, mine in sorted(by_room.items()):
        killed = Counter(result.level for result in mine if result.verdict == "killed")
        counts = [*(killed[level] for level in LEVELS), *(_count(mine, verdict) for verdict in ("alive", "error"))]
        print(f"{room:16s}{len(mine):8d}" + "".join(f"{count:11d}" for count in counts))
    for result in results:
        if result.verdict != "killed":
            known = f" (known: {reasons[result.name]})" if reasons.get(result.name) else ""
            print(f"{result.verdict}: {result.name} in {result.file}{known} {result.test}".rstrip())
    alive = [result for result in results if result.verdict == "alive" and not reasons.get(result.name)]
    return int(len(alive) > MOST_ALIVE or _count(results, "error") > 0)


def _count(results: Iterable[Result], verdict: str) -> int:
    return sum(result.verdict == verdict for result in results)


if __name__ == "__main__":
    raise SystemExit(main())
