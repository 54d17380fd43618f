"""The benchmark pages say what the raw results say."""

import json
from dataclasses import asdict

import pytest

from benchmarks import curriculum, faithfulness, figures, frozen_backends, peers, records
from benchmarks.rivals import compare
from benchmarks.tables import pages, rows
from benchmarks.trust import bars as trust_bars
from benchmarks.trust import tables as trust
from benchmarks.trust.cells import Cell


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
    def row(subject, library, method, **report):
        settings = {"part": "attributors", "subject": subject, "library": library, "method": method}
        return {"settings": settings, "report": {"lds_se": 0.01, "failed": 0, "cpu_s": 2.0, **report}}

    truth = {"exact": {"pearson": 1.0, "loo": 0.98, "lds": 0.92}}
    chosen = "gauss-newton, damping 0.01"
    lines = [
        {"settings": {"part": "convex"}, "report": {"bars": [{"bar": "x", "value": 0.5, "least": 0.9, "met": False}]}},
        {"settings": {"part": "mlp"}, "report": {"methods": [{"method": "dattri cg, default", "lds": 0.1}]}},
        row("mlp", "sgoif", "kfac", lds=0.1),
        row("mlp", "sgoif", "kfac", lds=0.3, failed=4),
        row("convex", "sgoif", "kfac", lds=0.7, pearson=0.8, loo=0.6, truth=truth),
        row("mlp", "sgoif", chosen, lds=0.43, truth={"ceiling": 0.81}),
        row("mlp", "dattri", "cg, regularization 0", lds=0.2),
        row("mlp", "dattri", "cg, regularization 0.1", lds=0.46),
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    found = faithfulness.faithfulness(str(file)).splitlines()
    assert found[2].endswith("| 1.000 | 0.980 | 0.920 | 0.810 |  |")
    assert found[3] == f"| sgoif | {chosen} |  |  |  | 0.430 ± 0.010 | - / 2 |"
    assert found[4] == "| sgoif | kfac | 0.800 | 0.600 | 0.700 ± 0.010 | 0.300 ± 0.010 (4 points failed) | 2 / 2 |"
    assert found[5].startswith("| dattri | cg, regularization 0.1 |")
    first, last = faithfulness.faithfulness_bars(str(file))
    assert first == ["B1", "x, at least 0.9", "0.500", "**missed**"]
    assert last[2:] == ["0.430", "**missed**"] and "regularization 0.1: 0.460" in last[1]


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes rows into a file of results that the tables read."""
    for module in (records, rows):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    return lambda name, lines: (tmp_path / name).write_text("\n".join(map(json.dumps, lines)))


def line(cell, method, report, *, seed=1, cpu="one", errors=50):
    settings = {**asdict(cell), "group": "reported", "method": method}
    known = {"seed": seed, "examples": 1_000, "errors": errors, "host": {"cpu": cpu}}
    return {"settings": settings, "report": report, **known}


def test_seconds_are_compared_on_one_processor(write):
    cell, known = Cell("cifar10", "sym-2"), (("fast", 8.0), ("fast", 6.0), ("slow", 20.0))
    write(
        "trust.jsonl",
        [line(cell, "pool", {"ours": {"ap": 90.0, "seconds": seconds}}, cpu=cpu) for cpu, seconds in known],
    )
    write("trust_rivals.jsonl", [line(cell, "rivals", {trust.BASE: {"ap": 90.0, "seconds": 2.0}}, cpu="fast")])
    assert trust.cost_ratios(trust.read_cells("pool")) == [("cifar10/sym-2", 6.0, 3.0)]


def mine(**more):
    return {"ours": {"total": 40.0, "num_flagged": 30, "left_after_relabelling": 10, "seconds": 5.0, **more}}


def test_trust_bars_say_what_was_missed(write):
    curve = [100.0] * 51 + [40.0] * 50
    rival = {"logistic, self_confidence": {"ap": 60.0, "recall_at_precision": curve, "seconds": 2.0}}
    pair, clean = Cell("digits", "pair-3", 0), Cell("digits", "clean", 0)
    of_pair = {"flag_recall": 50.0, "ece": 1.0}
    ours = [
        line(pair, "pool", mine(ap=75.0, flag_precision=80.0, **of_pair)),
        line(pair, "pool", mine(ap=55.0, flag_precision=40.2, **of_pair), seed=2),
        line(clean, "pool", mine(total=9.0, num_flagged=1, left_after_relabelling=1), errors=0),
    ]
    write("trust.jsonl", ours)
    write("trust_rivals.jsonl", [line(pair, "rivals", rival, seed=seed) for seed in (1, 2)])
    cells = [[part.strip() for part in row.split("|")] for row in trust_bars.bars().splitlines()[4:]]
    measured = {(row[1], row[2][:30]): (row[3], row[4]) for row in cells}
    for key, expected in {
        ("ranking", "AP not 1 below the best rival,"): ("1 of 1", "met"),
        ("ranking", "class pairs from 3%: 10 above "): ("0 of 1; not: digits/pair-3 (asks +10.0) 5.0", "**missed**"),
        ("ranking", "no seed more than 4 below it, "): ("1 of 2; not: digits/pair-3 seed 2 -5.0", "**missed**"),
        ("clean sets", "at most 0.2% of the labels fla"): ("1 of 1", "met"),
        ("clean sets", "at most 0.5% of the labels cla"): ("0 of 1; not: digits/clean 0.90%", "**missed**"),
        ("flags", "at least 50% right, every cell"): ("1 of 1", "met"),
        ("real errors", "AP among judged examples not b"): ("-", "not run"),
    }.items():
        assert measured[key] == expected
    assert measured["flags", "relabelling leaves no more err"][1] == "**missed**"
    assert "(50% against 70%)" in measured["flags", "recall not below that of clean"][0]  # 40 and 100 of cleanlab
    ranked = "| digits/pair-3 | 1, 2 | 50 | 65.0 | 60.0 (logistic, self_confidence) | +5.0 (worst -5.0) |"
    assert ranked in trust.ranking()


def test_the_fastest_peer_decides_in_wall_and_cpu_time(write):
    def took(**ratios):
        return {name: {"median_s": 0.5, "ratio": ratio} for name, ratio in {"sgoif": 1.0, **ratios}.items()}

    tasks = {
        "materialise": {"wall": took(vmap=1.5, BackPACK=1.1), "cpu": took(vmap=1.4, BackPACK=0.9)},
        "project": {"wall": took(vmap=1.2, BackPACK=3.0), "cpu": took(vmap=1.0, BackPACK=3.0)},
    }
    row = {"settings": {"part": "peers"}, "model": "vit", "peers": tasks, "refused": {"opacus": "no"}}
    write("contraction.jsonl", [row])
    first, second = peers.per_example().splitlines()[2:]
    assert first == "| small ViT, materialise | 500 / 500 | 1.50 / 1.40 | does not run | 1.10 / 0.90 | **missed** |"
    assert second.endswith("| met |")


def test_frozen_backends_have_a_line_each_and_a_cell_per_setting(write):
    common = {"split": "reported", "holdout": "trusted", "features": "standardised", "way": "audited"}
    found = (("identity", 1, 80.0), ("identity", 2, 90.0), ("kfac, 0.1", 1, 60.0), ("diagonal, 0.1", 1, 95.0))
    lines = []
    for backend, seed, ap in found:
        report = {name: {"ap": ap, "p@1%": 99.0} for name in frozen_backends.SIGNALS}
        what = {**common, "setting": "pair-20", "backend": backend}
        lines.append({"settings": what, "seed": seed, "report": report})
    write("frozen_backends.jsonl", lines)
    assert frozen_backends.frozen_backends().splitlines()[2:] == [
        "| audited, trusted | identity | 85.0 / 85.0 / 85.0 | 99.0 / 99.0 / 99.0 |",
        "|  | kfac, 0.1 | 60.0 / 60.0 / 60.0 | 99.0 / 99.0 / 99.0 |",
        "|  | diagonal, 0.1 | 95.0 / 95.0 / 95.0 | 99.0 / 99.0 / 99.0 |",
    ]


def test_accuracy_pairs_seeds_and_leaves_out_development(write):
    def row(method, seed, accuracy, split="reported"):
        settings = {"setting": "pair-20", "method": method, "split": split}
        return {"settings": settings, "seed": seed, "accuracy": accuracy, "cpu_s": 100.0 + seed, "by_class": [0.5] * 10}

    plain = [row("plain", 1, 0.70), row("plain", 2, 0.72)]
    write("curriculum.jsonl", [*plain, row("ours", 2, 0.77), row("ours", 0, 0.1, "development")])
    lines = curriculum.accuracy_table().splitlines()
    assert lines[2] == "| pair-20 (20%) | plain training | 71.0 (70.0, 72.0) |  |  |"
    assert lines[3].endswith("| 77.0 (77.0) | +5.0 | 1.00 |") and len(lines) == 4


def test_rivals_have_means_over_seeds_by_group(write):
    def row(rival, setting, seed, ap, group="label-free", examples=20_000):
        settings = {"rival": rival, "setting": setting, "dataset": "cifar10", "examples": examples, "epochs": 10}
        return {"settings": settings, "seed": seed, "group": group, "report": {"ap": ap}, "cost": 0.5}

    lines = [
        row("probe", "pair-20", 1, 80, "trusted"),
        row("AUM", "pair-20", 1, 30),
        row("AUM", "pair-20", 2, 40),
        row("AUM", "worst", 1, 70),
    ]
    write("rivals.jsonl", lines)
    assert compare.rivals_table().splitlines()[2:] == [
        "| given labels | AUM | 35.0 (30.0, 40.0) | 70.0 | 0.50 |",
        "| trusted hold-out | probe | 80.0 |  | 0.50 |",
    ]
    write("rivals.jsonl", [*lines, row("AUM", "worst", 2, 70, examples=2_000)])
    with pytest.raises(ValueError, match="mixes tiers on cifar10"):
        compare.rivals_table()
