"""Accessibility: axe-core finds nothing serious in any view, light and dark, on a desktop and on a phone."""

from __future__ import annotations

import shutil

import pytest

from sgoif.run import load
from tests.browser.conftest import colour, make_report, press
from tests.report.test_queues import write_queued

VIEWS = ("overview", "batches", "focus", "cards", "result")


def serious(page, axe):
    page.evaluate(axe)
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")["violations"]
    return [
        (item["id"], [node["html"][:160] for node in item["nodes"][:3]], item["nodes"][0].get("failureSummary"))
        for item in found
        if item["impact"] in ("serious", "critical")
    ]


def check_views(page, axe, views):
    """Decide on some cards, and look at every view."""
    press(page, *"k1du")
    for name in views:
        page.evaluate("name => (location.hash = name)", name)
        page.wait_for_timeout(150)
        assert serious(page, axe) == [], name


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_no_view_has_a_serious_fault(axe, alike_report, open_page, width, scheme):
    page = open_page(alike_report, "cards", width=width, height=850, scheme=scheme)
    check_views(page, axe, VIEWS)
    page.evaluate("location.hash = 'cards'")
    for key in ("?", "/"):
        page.keyboard.press(key)
        assert serious(page, axe) == [], key
        page.keyboard.press("Escape")


def text_of(ident):
    number = sum(str(ident).encode())
    return f"play song number {number} in the {['kitchen', 'garden', 'office'][number % 3]}, please " * (number % 4 + 1)


def row_of(ident):
    number = sum(str(ident).encode())
    cells = {f"measured_{i}": (number * (i + 3)) % 97 / 10 for i in range(10)}
    return {**cells, "country": ["Peru", "Chad", None][number % 3], "remark": "a longer remark " * (number % 5)}


@pytest.mark.parametrize(("example", "width", "scheme"), [(text_of, 1280, "light"), (row_of, 390, "dark")])
def test_no_view_of_texts_and_rows_has_a_serious_fault(axe, alike, tmp_path, open_page, example, width, scheme):
    report = make_report(alike, tmp_path / "report.html", images=example, top=60)
    page = open_page(report, "cards", width=width, height=850, scheme=scheme)
    check_views(page, axe, VIEWS[1:-1])


@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (390, "light")])
def test_the_page_of_a_reviewer_has_no_serious_fault(axe, alike, tmp_path, open_page, width, scheme):
    own = load(shutil.copytree(alike.url, tmp_path / "run"))
    (report,) = own.report(tmp_path / "r.html", images=colour, reviewers=["ann"], top=60)
    page = open_page(report, "cards", width=width, height=850, scheme=scheme)
    check_views(page, axe, VIEWS[1:-1])


@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (390, "light")])
def test_other_queues_have_no_serious_fault(axe, tmp_path, open_page, width, scheme):
    report = make_report(load(write_queued(tmp_path / "run")), tmp_path / "report.html", images=colour, top=10)
    page = open_page(report, "duplicates", width=width, height=850, scheme=scheme)
    for name, key in (("duplicates", "1"), ("outliers", "d")):
        page.evaluate("name => (location.hash = name)", name)
        page.wait_for_timeout(150)
        assert serious(page, axe) == [], name
        press(page, key, "ArrowLeft")
        assert serious(page, axe) == [], name
