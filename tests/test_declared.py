"""What the package declares: oldest versions without known holes, and no skipped test that nobody expects."""

from __future__ import annotations

import pytest

pytest.importorskip("pip._vendor.packaging", reason="needs pip")


@pytest.fixture(autouse=True)
def scripts(monkeypatch, pytestconfig):
    """Let the tests import the scripts."""
    monkeypatch.syspath_prepend(pytestconfig.rootpath / "scripts")


def test_a_hole_is_told_by_its_name(monkeypatch, capsys):
    import holes

    monkeypatch.setattr(holes, "find_installed", lambda: {"pyarrow": "14.0.0", "torch": "2.5.1", "pillow": "13.0.0"})
    assert holes.main([]) == 1
    said = capsys.readouterr().out
    assert "FAIL  pyarrow 14.0.0 has CVE-2023-47248" in said and "torch 2.5.1 has CVE-2025-32434" in said
    assert "pillow 13.0.0 has" not in said


def test_every_dependency_states_its_oldest_version(capsys):
    import floors

    assert floors.main(["--extra", "ray", "--without", "torch"]) == 0
    lines = capsys.readouterr().out.split()
    assert {"pyarrow==14.0.1", "jinja2==3.1.6"} <= set(lines) and not any(line.startswith("torch") for line in lines)
    assert sum(line.startswith("Pillow==") for line in lines) == 1  # one per Python, though two are declared


def test_every_path_that_is_repeated_with_the_oldest_versions_is_there(pytestconfig):
    from tests.conftest import FLOORS

    files = [floor.partition("::")[0] for floor in FLOORS]
    assert [file for file in files if not (pytestconfig.rootpath / file).exists()] == []


@pytest.mark.parametrize(
    ("reason", "code"),
    [("data test: no image data", 0), ("could not import 'wandb': No module", 0), ("could not import 'ray'", 1)],
)
def test_a_skip_that_nobody_expects_fails(tmp_path, reason, code):
    import skips

    file, whole = tmp_path / "tests.xml", ("a.py", 1, f"Skipped: {reason}")
    for skipped in (
        f'<skipped type="pytest.skip" message="{reason}"/>',
        f'<skipped message="collection skipped">{whole}</skipped>',
    ):
        file.write_text(f"<testsuite><testcase>{skipped}</testcase></testsuite>")
        assert skips.main(str(file)) == code
