from __future__ import annotations

import numpy as np
import pytest

from sgoif.run import load
from tests.cli.runs import noisy, write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return load(write_run(tmp_path_factory.mktemp("shown") / "run", noisy()))


def test_a_run_shows_its_numbers_and_worst_classes(run):
    html = run._repr_html_()
    assert "wrong labels, an estimate" in html and "cat" in html


def test_pictures_in_a_grid(run):
    grid = run.show(images=lambda i: np.zeros((8, 8, 3), np.uint8), top=5)
    assert len(grid.ids) == 5 and grid._repr_html_().count("<img") == 5
    few = run.show(["img/003.png"], images=lambda i: None)
    assert few.ids == ("img/003.png",) and "<img" not in few._repr_html_()


def test_texts_and_rows_in_a_grid(run):
    evil = "<img src=x onerror=alert(1)>\nשלום"
    html = run.show(images=lambda i: evil, top=3)._repr_html_()
    assert "<img" not in html and html.count("&lt;img src=x") == 3 and html.count('dir="auto"') == 3
    rows = run.show(images=lambda i: {"age": 31.0, "job": None}, top=2)._repr_html_()
    assert rows.count("age: 31\njob: (missing)") == 2


@pytest.fixture
def notebook():
    """What a notebook's kernel is, as far as showing goes."""
    shells = pytest.importorskip("IPython.core.interactiveshell", reason="IPython is not installed")
    shell = shells.InteractiveShell.instance()
    shell.display_formatter.active_types = ["text/html", "text/plain"]
    yield lambda value: shell.display_formatter.format(value)[0]
    shells.InteractiveShell.clear_instance()


def test_label_issues_show_themselves_in_a_notebook_and_are_a_plain_table_elsewhere(run, request):
    assert run.label_issues(top=3).schema.metadata is None
    notebook = request.getfixturevalue("notebook")
    table = run.label_issues(top=3)
    html = notebook(table)["text/html"]
    assert html.count("<tr>") == 4 and "looks like" in html and "cat" in html
    assert "text/html" not in notebook(table.replace_schema_metadata(None))
