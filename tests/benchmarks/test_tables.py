"""The benchmark pages say what the raw results say."""

import json

import pytest

from benchmarks import figures
from benchmarks.tables import faithfulness as table
from benchmarks.tables import pages


@pytest.mark.parametrize("path", pages.pages(), ids=lambda path: path.name)
def test_a_page_agrees_with_the_results(path):
    page = path.read_text()
    assert pages.rewritten(page) == page, "run python -m benchmarks.tables"


def test_every_table_has_one_place():
    found = [name for path in pages.pages() for name in pages.places_of(path.read_text())]
    assert sorted(found) == sorted(pages.TABLES)


@pytest.mark.parametrize("name", figures.FIGURES)
def test_a_figure_is_that_of_the_results(name):
    assert (figures.FOLDER / name).read_text() == figures.FIGURES[name](), "run python -m benchmarks.figures"


def test_faithfulness_joins_subjects_and_says_what_was_missed(tmp_path):
    def line(subject, library, method, **report):
        settings = {"part": "attributors", "subject": subject, "library": library, "method": method}
        return {"settings": settings, "report": {"lds_se": 0.01, "failed": 0, "cpu_s": 2.0, **report}}

    truth = {"exact": {"pearson": 1.0, "loo": 0.98, "lds": 0.92}}
    chosen = "gauss-newton, damping 0.01"
    rows = [
        {"settings": {"part": "convex"}, "report": {"bars": [{"bar": "x", "value": 0.5, "least": 0.9, "met": False}]}},
        {"settings": {"part": "mlp"}, "report": {"methods": [{"method": "dattri cg, default", "lds": 0.1}]}},
        line("mlp", "sgoif", "kfac", lds=0.1),
        line("mlp", "sgoif", "kfac", lds=0.3, failed=4),
        line("convex", "sgoif", "kfac", lds=0.7, pearson=0.8, loo=0.6, truth=truth),
        line("mlp", "sgoif", chosen, lds=0.43, truth={"ceiling": 0.81}),
        line("mlp", "dattri", "cg, regularization 0", lds=0.2),
        line("mlp", "dattri", "cg, regularization 0.1", lds=0.46),
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows))
    found = table.faithfulness(str(file)).splitlines()
    assert found[2].endswith("| 1.000 | 0.980 | 0.920 | 0.810 |  |")
    assert found[3] == f"| sgoif | {chosen} |  |  |  | 0.430 ± 0.010 | - / 2 |"
    assert found[4] == "| sgoif | kfac | 0.800 | 0.600 | 0.700 ± 0.010 | 0.300 ± 0.010 (4 points failed) | 2 / 2 |"
    assert found[5].startswith("| dattri | cg, regularization 0.1 |")
    first, last = table.faithfulness_bars(str(file))
    assert first == ["B1", "x, at least 0.9", "0.500", "**missed**"]
    assert last[2:] == ["0.430", "**missed**"] and "regularization 0.1: 0.460" in last[1]
