"""Count what makes the house large or small: ``python scripts/house.py [CHECKOUT]``.

Entries of the package, floors of the import contract, circles, files, lines, functions with many arguments, functions
named by a participle, modules that ``import sgoif.ood`` loads, and files that the ids of a step pass through.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import tomllib

MANY = 10  # arguments of a function
IRREGULAR = (
    "borne",
    "drawn",
    "found",
    "given",
    "held",
    "kept",
    "left",
    "made",
    "said",
    "seen",
    "shown",
    "told",
    "written",
)

LOAD = "import sys, sgoif.ood; print(len([name for name in sys.modules if name.startswith('sgoif')]))"
# A short training, and the files of all functions that were given its ids, alone or in something that holds them.
FOLLOW_IDS = """
import sys, tempfile, threading
import numpy, torch, sgoif

FIRST, files = 987_654_321_000, set()

def holds(value, depth=2):
    if isinstance(value, (numpy.ndarray, torch.Tensor)):
        return value.ndim == 1 and len(value) > 0 and str(value.dtype).endswith("int64") and int(value[0]) >= FIRST
    if isinstance(value, (list, tuple)):
        return depth > 0 and any(holds(item, depth - 1) for item in value[:3])
    if isinstance(value, dict):
        return depth > 0 and any(holds(item, depth - 1) for item in value.values())
    fields = getattr(type(value), "__dataclass_fields__", ())
    return depth > 0 and any(holds(getattr(value, name, None), depth - 1) for name in fields)

def look(frame, event, _):
    path = frame.f_code.co_filename
    if event == "call" and "/sgoif/" in path and path not in files:
        names = frame.f_code.co_varnames[: frame.f_code.co_argcount + frame.f_code.co_kwonlyargcount]
        if any(holds(frame.f_locals[name]) for name in names if name in frame.f_locals):
            files.add(path)

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
held = torch.randn(60, 4), torch.arange(60) % 3
with tempfile.TemporaryDirectory() as folder:
    monitor = sgoif.watch(model, anchors=held, train_size=64, out=folder + "/run", trusted=True)
    threading.setprofile(look)
    sys.setprofile(look)
    for step in range(45):
        ids, labels = torch.arange(16) + FIRST, torch.arange(16) % 3
        with monitor.step(ids, labels):
            torch.nn.functional.cross_entropy(model(torch.randn(16, 4)), labels).backward()
    monitor.flush()
    sys.setprofile(None)
print(len(files))
"""


def main() -> None:
    """Print a line for each number."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    package = root / "src" / "sgoif"
    functions = [node for _, node in _functions(package)]
    # options of commands are arguments too, by the library's form; a command has the name of its file
    options = [node for path, node in _functions(package / "cli") if node.name == path.stem]
    are_long = [sum(_num_arguments(node) >= MANY for node in some) for some in (functions, options)]
    rows = {
        "entries at the top level": len(
            [p for p in package.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()]
        ),
        "floors": len(_layers(root)),
        "circles between files": _circles(package),
        "files of src": len(list(package.rglob("*.py"))),
        **{f"lines of {name}": _lines(root / name) for name in ("src", "tests", "benchmarks")},
        f"functions with {MANY} or more arguments": are_long[0] - are_long[1],
        f"commands with {MANY} or more options": are_long[1],
        "functions named by a participle": sum(_is_participle(node.name) for node in functions),
        "modules that `import sgoif.ood` loads": int(_run(root, LOAD)),
        "files that ids pass from step to Parquet": int(_run(root, FOLLOW_IDS)),
    }
    for name, value in rows.items():
        print(f"{name:42s}{value:8,d}")


def _functions(folder: Path) -> Iterator[tuple[Path, ast.FunctionDef]]:
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                yield path, node


def _num_arguments(node: ast.FunctionDef) -> int:
    named = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return len([argument for argument in named if argument.arg not in ("self", "cls")])


def _is_participle(name: str) -> bool:
    first = name.strip("_").split("_")[0]
    return first in IRREGULAR or (first.endswith("ed") and first not in ("need", "embed", "feed", "seed", "speed"))


def _layers(root: Path) -> list[str]:
    contracts = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    return max((contract["layers"] for contract in contracts if "layers" in contract), key=len)


def _lines(folder: Path) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in folder.rglob("*.py"))


def _circles(package: Path) -> int:
    """Groups of files that import each other when they are loaded, by Tarjan's algorithm."""
    arrows = {_module(path, package): _imports(path) for path in package.rglob("*.py")}
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = 0

    def visit(name: str) -> None:
        nonlocal found
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in arrows[name] & arrows.keys():
            if other not in index:
                visit(other)
            if other in stack:
                low[name] = min(low[name], low[other])
        if low[name] == index[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            found += len(group) > 1

    for name in arrows:
        if name not in index:
            visit(name)
    return found


def _module(path: Path, package: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(path: Path) -> set[str]:
    """Modules imported at the top of a file; what is imported inside a function comes later."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found - {_module(path, next(p for p in path.parents if p.name == "sgoif"))}


def _run(root: Path, program: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(root / "src")}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True)
    return done.stdout


if __name__ == "__main__":
    main()
