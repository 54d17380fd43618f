"""Every fault of the list has its one place, and the runner tells faults that tests notice from those that live."""

import subprocess

import pytest

SOURCE = """
def add(a, b):
    return a + b


def clip(x):
    return min(max(x, 0), 9)
"""
FILES = {
    "src/sgoif/__init__.py": "",
    "src/sgoif/sums/__init__.py": "from sgoif.sums.add import add, clip",
    "src/sgoif/sums/add.py": SOURCE,
    "src/sgoif/uses/mean.py": "from sgoif.sums import clip\n\ndef mean(x): return clip(sum(x)) / len(x)\n",
    "tests/sums/test_add.py": "from sgoif.sums import add\n\ndef test_add(): assert add(1, 2) == 3\n",
    "tests/uses/test_mean.py": "from sgoif.uses.mean import mean\n\ndef test_mean(): assert mean([-1, -2]) == 0\n",
    "tests/mutants.toml": """
[[fault]]
name = "sign"
function = "add"
old = "a + b"
new = "a - b"

[[fault]]
name = "below zero"
function = "clip"
old = "max(x, 0)"
new = "x"

[[fault]]
name = "above nine"
function = "clip"
old = "9"
new = "8"
""",
}


@pytest.fixture
def mutants(monkeypatch, pytestconfig):
    monkeypatch.syspath_prepend(pytestconfig.rootpath / "scripts")
    import mutants

    return mutants


def test_every_fault_has_its_one_place(mutants, pytestconfig):
    planted, problems = mutants.find_places(pytestconfig.rootpath, mutants.read_faults(pytestconfig.rootpath))
    assert not problems and len(planted) >= 64
    assert len({item.room for item in planted}) >= 14


def test_faults_are_planted_in_a_copy_and_measured_once(mutants, tmp_path, monkeypatch, capsys):
    root = tmp_path / "checkout"
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    author = ("-c", "user.name=ann", "-c", "user.email=ann@example.org")
    for arguments in (["init", "-q"], ["add", "."], [*author, "commit", "-q", "-m", "all"]):
        subprocess.run(["git", *arguments], cwd=root, check=True)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def run(*options):
        arguments = ["--root", root, "--results", tmp_path / "results.jsonl", "--jobs", "1", *options]
        monkeypatch.setattr("sys.argv", ["mutants.py", *map(str, arguments)])
        return mutants.main(), capsys.readouterr().out

    code, printed = run("--until", "room", "--names", "e")
    assert code == 0 and "2 of 2 faults are planted" in printed and "alive: below zero" in printed
    code, printed = run("--until", "importers")
    assert "3 of 3 faults" in printed and "alive: above nine in src/sgoif/sums/add.py" in printed
    found = mutants.read_results(tmp_path / "results.jsonl", mutants.digest_tree(root), "").values()
    assert {item.name: (item.verdict, item.level, item.test) for item in found} == {
        "sign": ("killed", "room", "tests/sums/test_add.py::test_add"),
        "below zero": ("killed", "importers", "tests/uses/test_mean.py::test_mean"),
        "above nine": ("alive", "importers", ""),
    }
    assert "0 of 3 faults" in run("--until", "importers")[1]
    code, printed = run("--with", "python -m pytest nowhere.py", "--until", "room", "--names", "sign")
    assert code == 1 and "error: sign" in printed and "exit code 4" in printed
    assert (root / "src/sgoif/sums/add.py").read_text() == SOURCE
