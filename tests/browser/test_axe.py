"""Accessibility: axe-core finds nothing serious in any view, light and dark, on a desktop and on a phone."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tarfile

import pytest

from tests.browser.test_workbench import colours, path  # noqa: F401

VIEWS = ("overview", "batches", "focus", "cards", "result")


@pytest.fixture(scope="session")
def axe(tmp_path_factory):
    """The source of axe-core, fetched by npm."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("axe-core: this machine has no npm")
    folder = tmp_path_factory.mktemp("axe-core")
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run([npm, "pack", "axe-core"], cwd=folder, capture_output=True, timeout=120)
    packed = next(iter(folder.glob("axe-core-*.tgz")), None)
    if packed is None:
        pytest.skip("axe-core: npm cannot fetch it")
    with tarfile.open(packed) as archive:
        return archive.extractfile("package/axe.min.js").read().decode()


def serious(page, axe):
    page.evaluate(axe)
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")["violations"]
    return [
        (item["id"], [node["html"][:160] for node in item["nodes"][:3]], item["nodes"][0].get("failureSummary"))
        for item in found
        if item["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")])
def test_no_view_has_a_serious_fault(axe, path, open_page, width, scheme):  # noqa: F811
    page = open_page(path, "cards", width=width, height=850, scheme=scheme)
    for key in "k1du":
        page.keyboard.press(key)
    for name in VIEWS:
        page.evaluate("name => (location.hash = name)", name)
        page.wait_for_timeout(150)
        assert serious(page, axe) == [], name
    page.evaluate("location.hash = 'cards'")
    for key in ("?", "/"):
        page.keyboard.press(key)
        assert serious(page, axe) == [], key
        page.keyboard.press("Escape")
