"""The reference and the public names agree both ways, and docs and examples use no internal name."""

import ast
import importlib
import json
import re
from pathlib import Path

import sgoif
from sgoif import experimental
from sgoif.training.monitor import Monitor

ROOT = Path(__file__).resolve().parents[2]
API = ROOT / "docs" / "api"
OVERVIEW, _, EXPERIMENTAL = (API / "index.md").read_text().partition("\n## Experimental\n")
STABLE = "\n".join([OVERVIEW, *(path.read_text() for path in sorted(API.glob("*.md")) if path.stem != "index")])
MONITOR = "sgoif.training.monitor.Monitor"  # what `watch` returns: users call its methods and never import it
INTERNAL = {  # who may use which internal module, and why
    "examples/simulated_reviewer.py": {"files", "report", "review"},  # stands in for the page, which is no Python
    "examples/quickstart.ipynb": {"review"},  # the same
    "examples/human_cifar10.py": {"files"},
    "examples/any_data.py": {"files"},
}


def public_modules():
    """The modules that the reference lists, with the names it gives them."""
    rows = re.findall(r"^\| `(sgoif\.[\w.]+)` \| (`.*?`) \|", EXPERIMENTAL, re.M)
    return {module: set(re.findall(r"`(\w+)`", names)) for module, names in rows}


def declared(module):
    """``__all__`` of a module, read without importing it: its library need not be here."""
    path = ROOT / "src" / Path(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    lists = [node for node in ast.parse(path.read_text()).body if ast.unparse(node).startswith("__all__")]
    return set(ast.literal_eval(lists[0].value))


def test_the_reference_has_the_stable_names_and_no_others():
    documented = [name for name in re.findall(r"^::: (\S+)$", STABLE, re.M) if not name.startswith("sgoif.Run.")]
    assert len(documented) == len(set(documented))
    assert set(documented) == {f"sgoif.{name}" for name in sgoif.__all__ if name != "__version__"} | {MONITOR}
    assert ":::" not in EXPERIMENTAL


def test_the_overview_names_what_is_on_its_pages():
    rows = re.findall(r"^\| \[[^]]*\]\((\w+\.md)\) \| (.*?) \|$", OVERVIEW, re.M)
    assert sorted(page for page, _ in rows) == sorted(path.name for path in API.glob("*.md") if path.stem != "index")
    for page, names in rows:
        text = (API / page).read_text()
        named = re.findall(r"`([\w.]+)`", names)
        assert named and [name for name in named if not re.search(rf"^::: [\w.]*\b{name}$", text, re.M)] == []


def members_of(name):
    """The members that the reference lists below a class."""
    listed = re.search(rf"^::: {re.escape(name)}\n    options:\n      members: \[(.*?)\]$", STABLE, re.M)
    return listed[1].split(", ")


def test_the_reference_has_every_public_member_of_a_monitor_and_of_a_run_once():
    documented = members_of("sgoif.Run") + re.findall(r"^::: sgoif\.Run\.(\w+)$", STABLE, re.M)
    for kind, listed in ((Monitor, members_of(MONITOR)), (sgoif.Run, documented)):
        assert sorted(listed) == [name for name in dir(kind) if not name.startswith("_")]


def test_the_reference_has_the_experimental_names_and_no_others():
    first = EXPERIMENTAL.partition("\nModules")[0]
    cells = re.findall(r"^\| (`[^|]*) \|", first, re.M)[1:]  # without the header
    documented = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    assert documented == set(experimental.__all__)
    members = [name for cell in cells for name in re.findall(r"`Monitor\.(\w+)`", cell)]
    assert members and all(hasattr(Monitor, name) for name in members)


def test_public_modules_declare_what_the_reference_lists():
    assert public_modules() == {module: declared(module) for module in public_modules()}


def used_names():
    """Every dotted name below ``sgoif`` in docs and examples, as (file, name)."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.py")]
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in pages}
    for path in (ROOT / "examples").glob("*.ipynb"):
        cells = json.loads(path.read_text())["cells"]
        texts[str(path.relative_to(ROOT))] = "\n".join("".join(cell["source"]) for cell in cells)
    for page, text in sorted(texts.items()):
        if page.startswith("docs/api/"):
            continue
        for module, names in re.findall(r"^ *from (sgoif[\w.]*) import (\w+(?:, \w+)*)", text, re.M):
            yield from ((page, f"{module}.{name}") for name in names.split(", "))
        for name in re.findall(r"(?<![\w./-])sgoif(?:\.[A-Za-z_]\w*)+(?!\.?\w*/)", text):
            yield page, name


def is_public(name):
    known = {"sgoif": set(sgoif.__all__), "sgoif.experimental": set(experimental.__all__), **public_modules()}
    if name in known or any(module.startswith(f"{name}.") for module in known):
        return True
    parts = name.split(".")
    return any(".".join(parts[:i]) in known and parts[i] in known[".".join(parts[:i])] for i in range(1, len(parts)))


def test_docs_and_examples_use_public_names_only():
    used = list(used_names())
    assert len(used) > 100
    internal = [(page, name) for page, name in used if not is_public(name)]
    assert [(page, name) for page, name in internal if name.split(".")[1] not in INTERNAL.get(page, ())] == []
    needed = {(page, name.split(".")[1]) for page, name in internal}
    assert needed == {(page, module) for page, modules in INTERNAL.items() for module in modules}  # none is left over


def test_every_public_name_can_be_imported():
    for module in ("sgoif", "sgoif.experimental", "sgoif.ood", "sgoif.testing"):
        loaded = importlib.import_module(module)
        assert all(hasattr(loaded, name) for name in loaded.__all__)
