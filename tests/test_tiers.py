"""What a gate and `just quick` choose: by the files that a change touches, and by recorded seconds."""

import subprocess

import pytest

from scripts import quick
from tests import tiers

pytest_plugins = ["pytester"]


def git(folder, *arguments, **more):
    subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments],
        cwd=folder,
        check=True,
        capture_output=True,
        **more,
    )


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A repository with an old commit and a new one."""
    monkeypatch.delenv("GATE_BASE", raising=False)
    git(tmp_path, "init", "-q")
    for name, date in (("old.py", "2020-01-01T00:00:00"), ("new.py", None)):
        (tmp_path / name).write_text("")
        git(tmp_path, "add", ".")
        dates = {"GIT_COMMITTER_DATE": date} if date else {}
        git(tmp_path, "commit", "-q", "-m", name, env={"PATH": "/usr/bin:/bin", **dates})
    return tmp_path


def test_a_change_is_what_came_since_the_newest_old_commit(checkout, monkeypatch):
    (checkout / "untracked.py").write_text("")
    assert tiers.changed_files(tiers.find_base(checkout), checkout) == ["new.py", "untracked.py"]
    monkeypatch.setenv("GATE_BASE", "HEAD")
    assert tiers.changed_files(tiers.find_base(checkout), checkout) == ["untracked.py"]
    monkeypatch.setenv("GATE_BASE", "nothing")
    with pytest.raises(pytest.UsageError, match="nothing"):
        tiers.changed_files(tiers.find_base(checkout), checkout)


def test_without_a_checkout_nothing_is_touched(tmp_path, monkeypatch):
    monkeypatch.delenv("GATE_BASE", raising=False)
    assert tiers.find_base(tmp_path) is None
    assert tiers.changed_files(None, tmp_path) == []


def test_the_gate_leaves_dear_tests_of_other_rooms_to_the_night(pytester, monkeypatch):
    """A dear test stays where its room is touched, where it is always wanted, and in every other tier."""
    names = ["tests/linalg/test_a.py", "tests/store/test_b.py", "tests/test_neutrality.py"]
    for name in names:
        path = pytester.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("def test_cheap(): pass\ndef test_dear(): pass\n")
    pytester.makeconftest(
        f"""
        from tests import tiers
        pytest_plugins = ["tests.seconds", "tests.tiers"]
        tiers.read_seconds = lambda: { ({f"{name}::test_dear": 3.0 for name in names})!r}
        tiers.changed_files = lambda base: ["src/sgoif/linalg/factor.py"]
        """
    )
    monkeypatch.setenv("PYTHONPATH", str(tiers.ROOT))
    monkeypatch.setenv("GATE_BASE", "HEAD")
    gate = pytester.runpytest_subprocess("--tier", "gate", "--import-mode=importlib", "-v")
    gate.assert_outcomes(passed=5, deselected=1)
    gate.stdout.no_fnmatch_line("*test_b.py::test_dear*")
    gate.stdout.fnmatch_lines(["gate: changed since HEAD: src/sgoif/linalg/, tests/linalg/"])
    pytester.runpytest_subprocess("--import-mode=importlib").assert_outcomes(passed=6)


def test_seconds_of_all_parameters_are_recorded_for_their_function(pytester, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tiers.ROOT))
    pytester.makeconftest('pytest_plugins = ["tests.seconds"]')
    burn = "import time; end = time.process_time() + 0.15; [0 for _ in iter(lambda: time.process_time() < end, False)]"
    pytester.makepyfile(
        f"""
        import pytest, subprocess, sys
        @pytest.mark.parametrize("n", [1, 2])
        def test_in_a_process(n): subprocess.run([sys.executable, "-c", {burn!r}])
        def test_in_a_process_that_goes_on():
            pipe, command = subprocess.PIPE, {burn!r} + "; print(1, flush=True); input()"
            subprocess.Popen([sys.executable, "-c", command], stdin=pipe, stdout=pipe).stdout.readline()
        def test_here(): exec({burn!r}, {{}})
        def test_cheap(): pass
        """
    )
    done = pytester.runpytest_subprocess("--record-seconds", "seconds.json", "--dearest", "1")
    seconds = tiers.read_seconds(pytester.path / "seconds.json")
    assert sorted(name.partition("::")[2] for name in seconds) == [
        "test_here",
        "test_in_a_process",
        "test_in_a_process_that_goes_on",
    ]
    assert min(seconds.values()) >= 0.1 and max(seconds.values()) >= 0.3
    done.stdout.fnmatch_lines(["*0.*  test_seconds_of_all*::test_in_a_process"])


def test_quick_takes_the_nearest_tests_that_fit():
    names = quick.choose(["src/sgoif/linalg/factor.py"], {}, budget=1.0)
    assert 15 < len(names) <= 20 and all(name.startswith("tests/linalg/test_factor.py::") for name in names[:7])
    dear = {name: 0.9 for name in names[:1]}
    assert quick.choose(["src/sgoif/linalg/factor.py"], dear, budget=0.5)[0] != names[0]
    assert quick.choose(["docs/start.md"], {}) == []


def test_quick_follows_a_name_that_a_package_hands_on(tmp_path, monkeypatch):
    package = tmp_path / "src" / "sgoif" / "linalg"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from sgoif.linalg.factor import invert\n")
    user = tmp_path / "user.py"
    user.write_text("from sgoif.linalg import invert\n")
    monkeypatch.setattr(quick, "ROOT", tmp_path)
    quick._home_of.cache_clear()
    assert "sgoif.linalg.factor" in quick.imports(user)
    quick._home_of.cache_clear()
