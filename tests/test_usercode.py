"""Code by name: found in the current folder last, and blamed by name where it fails."""

import sys

import pytest

import sgoif.backbones.own  # noqa: F401
from sgoif.backbones import load_encoder
from sgoif.errors import SgoifError
from sgoif.usercode import describe_error, import_named


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_the_current_folder_is_searched_last(tmp_path):
    (tmp_path / "usercode_mine.py").write_text("class Nets:\n    small = 3\n")
    first = sys.path[0]
    assert import_named("usercode_mine:Nets.small", "--model") == 3
    assert sys.path[-1] == str(tmp_path) and sys.path[0] == first


def test_two_modules_of_one_name_are_told_apart_by_the_user(tmp_path):
    (tmp_path / "statistics.py").write_text("raise SystemExit('was run')\n")
    with pytest.raises(SgoifError, match=r"two modules are called 'statistics'.*PYTHONPATH=\."):
        import_named("statistics:mean", "--model")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1 / 0\n", r"cannot be imported: ZeroDivisionError: division by zero \(.*usercode_bad\.py, line 1\)"),
        ("import no_such_thing_at_all\n", "No module named 'no_such_thing_at_all'"),
        ("other = 3\n", "has no attribute 'make'"),
        ("def make():\n    return [][2]\n", r"called without arguments, raised IndexError.*usercode_bad\.py, line 2"),
        ("def make(size):\n    pass\n", r"raised TypeError: make\(\) missing 1 required positional argument"),
        ("def make():\n    return 3\n", r"made a int; expected .* \[B, 3, S, S\] to embeddings \[B, D\]"),
    ],
)
def test_mistakes_in_it_are_the_users_and_say_where(tmp_path, text, words):
    (tmp_path / "usercode_bad.py").write_text(text)
    with pytest.raises(SgoifError, match=words):
        load_encoder("usercode_bad:make", takes="pictures")


def test_the_line_named_is_the_users_own_and_not_torchs():
    import torch

    try:
        torch.nn.Linear(3, 2)(torch.zeros(1, 4))  # this line
    except RuntimeError as error:
        assert f"({__file__}, line " in describe_error(error)
