"""The benchmarks page says what the raw results say."""

from benchmarks import figures, tables


def test_the_page_agrees_with_the_results():
    page = tables.PAGE.read_text()
    assert tables.rewritten(page) == page, "run python -m benchmarks.tables"


def test_the_figure_is_that_of_the_results():
    assert (figures.FOLDER / "residual.svg").read_text() == figures.residual_and_confidence(), "run benchmarks.figures"
