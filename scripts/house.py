"""Count what makes the house large or small: ``python scripts/house.py [CHECKOUT]``.

Entries of the package, floors of the import contract, circles, files, lines, functions with many arguments, functions
named by a participle, and modules that ``import sgoif.ood`` loads.
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
        "modules that `import sgoif.ood` loads": _loaded(root),
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


def _loaded(root: Path) -> int:
    program = "import sys, sgoif.ood; print(len([name for name in sys.modules if name.startswith('sgoif')]))"
    environment = {**os.environ, "PYTHONPATH": str(root / "src")}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True)
    return int(done.stdout)


if __name__ == "__main__":
    main()
