"""The benchmark pages say what the raw results say."""

import json
from dataclasses import asdict

import pytest

from benchmarks import faithfulness, figures
from benchmarks.tables import pages


@pytest.mark.parametrize("path", pages.pages(), ids=lambda path: path.name)
def test_a_page_agrees_with_the_results(path):
    page = path.read_text()
    assert pages.rewrite(page) == page, "run python -m benchmarks tables"


def test_every_table_has_one_place():
    found = [name for path in pages.pages() for name in pages.places_of(path.read_text())]
    assert sorted(found) == sorted(pages.tables())


@pytest.mark.parametrize("name", figures.FIGURES)
def test_a_figure_is_that_of_the_results(name):
    assert (figures.FOLDER / name).read_text() == figures.FIGURES[name](), "run python -m benchmarks tables"


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
    found = faithfulness.faithfulness(str(file)).splitlines()
    assert found[2].endswith("| 1.000 | 0.980 | 0.920 | 0.810 |  |")
    assert found[3] == f"| sgoif | {chosen} |  |  |  | 0.430 ± 0.010 | - / 2 |"
    assert found[4] == "| sgoif | kfac | 0.800 | 0.600 | 0.700 ± 0.010 | 0.300 ± 0.010 (4 points failed) | 2 / 2 |"
    assert found[5].startswith("| dattri | cg, regularization 0.1 |")
    first, last = faithfulness.faithfulness_bars(str(file))
    assert first == ["B1", "x, at least 0.9", "0.500", "**missed**"]
    assert last[2:] == ["0.430", "**missed**"] and "regularization 0.1: 0.460" in last[1]


def test_seconds_are_compared_on_one_processor(tmp_path, monkeypatch):
    from benchmarks import records
    from benchmarks.tables import rows
    from benchmarks.trust import tables as trust
    from benchmarks.trust.cells import Cell

    def line(method, cpu, name, seconds):
        settings = {**asdict(Cell("cifar10", "sym-2")), "group": "reported", "method": method}
        report = {name: {"ap": 90.0, "seconds": seconds}}
        known = {"settings": settings, "seed": 1, "examples": 5_000, "errors": 100, "host": {"cpu": cpu}}
        return json.dumps({**known, "report": report})

    ours = [line("pool", "fast", "ours", 8.0), line("pool", "fast", "ours", 6.0), line("pool", "slow", "ours", 20.0)]
    (tmp_path / "trust.jsonl").write_text("\n".join(ours))
    (tmp_path / "trust_rivals.jsonl").write_text(line("rivals", "fast", trust.BASE, 2.0))
    for module in (records, rows):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    assert trust.cost_ratios(trust.read_cells("pool")) == [("cifar10/sym-2", 6.0, 3.0)]


def test_trust_bars_say_what_was_missed(tmp_path, monkeypatch):
    from benchmarks import records
    from benchmarks.tables import rows
    from benchmarks.trust import bars as trust_bars
    from benchmarks.trust import tables as trust
    from benchmarks.trust.cells import Cell

    def line(cell, method, seed, report, errors):
        settings = {**asdict(cell), "group": "reported", "method": method}
        known = {"seed": seed, "examples": 1_000, "errors": errors, "host": {"cpu": "one"}}
        return json.dumps({"settings": settings, "report": report, **known})

    def mine(ap, **more):
        return {
            "ours": {"ap": ap, "total": 40.0, "num_flagged": 30, "left_after_relabelling": 10, "seconds": 5.0, **more}
        }

    curve = [100.0] * 51 + [40.0] * 50
    rival = {"logistic, self_confidence": {"ap": 60.0, "recall_at_precision": curve, "seconds": 2.0}}
    pair, clean = Cell("digits", "pair-3", 0), Cell("digits", "clean", 0)
    ours = [
        line(pair, "pool", 1, mine(75.0, flag_precision=80.0, flag_recall=50.0, ece=1.0), 50),
        line(pair, "pool", 2, mine(55.0, flag_precision=40.2, flag_recall=50.0, ece=1.0), 50),
        line(
            clean, "pool", 1, {"ours": {"total": 9.0, "num_flagged": 1, "left_after_relabelling": 1, "seconds": 5.0}}, 0
        ),
    ]
    (tmp_path / "trust.jsonl").write_text("\n".join(ours))
    (tmp_path / "trust_rivals.jsonl").write_text("\n".join(line(pair, "rivals", seed, rival, 50) for seed in (1, 2)))
    for module in (records, rows):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    found = {(cells[1], cells[2][:30]): cells for cells in map(_cells, trust_bars.bars().splitlines()[4:])}
    measured = {key: (cells[3], cells[4]) for key, cells in found.items()}
    assert measured["ranking", "AP not 1 below the best rival,"] == ("1 of 1", "met")
    assert measured["ranking", "class pairs from 3%: 10 above "] == (
        "0 of 1; not: digits/pair-3 (asks +10.0) 5.0",
        "**missed**",
    )
    assert measured["ranking", "no seed more than 4 below it, "] == (
        "1 of 2; not: digits/pair-3 seed 2 -5.0",
        "**missed**",
    )
    assert measured["clean sets", "at most 0.2% of the labels fla"] == ("1 of 1", "met")
    assert measured["clean sets", "at most 0.5% of the labels cla"] == ("0 of 1; not: digits/clean 0.90%", "**missed**")
    assert measured["flags", "at least 50% right, every cell"] == ("1 of 1", "met")
    assert measured["flags", "relabelling leaves no more err"][1] == "**missed**"
    assert "(50% against 70%)" in measured["flags", "recall not below that of clean"][0]  # 40 and 100 of cleanlab
    assert measured["real errors", "AP among judged examples not b"] == ("-", "not run")
    assert (
        "| digits/pair-3 | 1, 2 | 50 | 65.0 | 60.0 (logistic, self_confidence) | +5.0 (worst -5.0) |" in trust.ranking()
    )


def _cells(line):
    return [part.strip() for part in line.split("|")]
