"""The benchmark pages say what the raw results say."""

import pytest

from benchmarks import figures
from benchmarks.tables import pages


@pytest.mark.parametrize("path", sorted(pages.FOLDER.glob("*.md")), ids=lambda path: path.name)
def test_a_page_agrees_with_the_results(path):
    page = path.read_text()
    assert pages.rewritten(page) == page, "run python -m benchmarks.tables"


def test_every_table_has_one_place():
    found = [name for path in pages.FOLDER.glob("*.md") for name in pages.places_of(path.read_text())]
    assert sorted(found) == sorted(pages.TABLES)


@pytest.mark.parametrize("name", figures.FIGURES)
def test_a_figure_is_that_of_the_results(name):
    assert (figures.FOLDER / name).read_text() == figures.FIGURES[name](), "run python -m benchmarks.figures"
