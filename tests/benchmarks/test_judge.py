"""The judge's grid: groups that are apart, figures that are true on cases known by hand, replays of records."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pytest

from benchmarks import records
from benchmarks.judge import bars, grid, tables
from benchmarks.judge.cells import GROUPS, Cell
from benchmarks.judge.measure import Judgement, free_signals, mean_signals, measure, precision
from benchmarks.judge.observe import mean_over_time, mean_visits, normalise, observe
from benchmarks.judge.sets import thin
from benchmarks.tables import rows

DEVELOPMENT, REPORTED = GROUPS["development"], GROUPS["reported"]


def test_groups_share_no_seed_and_keep_to_their_size():
    assert {cell.seed for cell in DEVELOPMENT.trainings} == {0, 1}
    assert {cell.seed for cell in REPORTED.trainings} == {2, 3, 4}
    trainings, replays = (
        [cell for group in GROUPS.values() for cell in getattr(group, part)] for part in ("trainings", "replays")
    )
    assert len(trainings) == len({cell.name for cell in trainings}) <= 50
    assert len(replays) == len({cell.name for cell in replays}) <= 120


@pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS)
def test_what_is_watched_again_is_a_replay_of_a_recorded_training(group):
    assert set(group.watched) <= set(group.replays)
    assert {cell.base for cell in group.replays} == set(group.base)
    grids = [(Cell(**{name: item[name] for name in asdict(Cell())}), item["judge"]) for item in grid._grids(group)]
    assert {cell for cell, _ in grids} == set(group.replays)  # all are there for a judge that is named
    answered = {cell for cell, judges in grids if set(judges) & set(grid.ANSWERS)}
    assert answered == set(group.trainings)  # watch and audit answered no other


def test_figures_of_a_judgement_known_by_hand():
    clean = np.zeros(10, np.int64)
    given = clean.copy()
    given[:4] = 1
    score = np.array([0.9, 0.8, 0.1, np.nan, 0.7, *[0.0] * 5])
    found = measure(Judgement(score, np.nan_to_num(score) >= 0.5, 3.0, 2.0, 4.0, 0.123), given, clean)
    # found at places 1, 2, 4, and the one without a score last, at 10
    assert found["ap"] == pytest.approx(100 * (1 / 1 + 2 / 2 + 3 / 4 + 4 / 10) / 4)
    assert (found["flags"], found["right"], found["total"], found["holds"]) == (3, 2, 3.0, True)
    silent = measure(Judgement(score, score > 1, None, None, None, 0.0), given, given)
    assert (silent["ap"], silent["total"], silent["holds"], silent["right"]) == (None, None, None, 0)
    assert measure(Judgement(score, score > 1, 9.0, 5.0, 12.0, 0.0), given, clean)["holds"] is False


def test_free_signals_are_high_where_labels_are_wrong():
    wrong = np.array([True, False, False])
    told = {"margin": np.array([-1.0, 2.0, 3.0]), "loss": np.array([3.0, 0.1, np.nan])}
    record = {f"{who}_{name}": values for who in ("watch", "audit") for name, values in told.items()}
    given = np.array([0, 1, 1])
    mean = normalise(np.log(np.array([[0.1, 0.9], [0.3, 0.7], [0.2, 0.8]])))
    scores = {**free_signals(record), **mean_signals(mean, given)}
    assert len(scores) == 6 and all(precision(score, wrong) == pytest.approx(100) for score in scores.values())


def test_means_over_visits_and_over_time_known_by_hand():
    visits = np.log(np.array([[[0.5, 0.5], [0.2, 0.8]], [[0.9, 0.1], [0.4, 0.6]]], np.float64))  # [E, N, C]
    scored = np.array([[True, False], [True, False]])
    assert mean_visits(visits, scored)[0] == pytest.approx((visits[0, 0] + visits[1, 0]) / 2)
    assert np.isnan(mean_visits(visits, scored)[1]).all()
    looks = np.array([[[-1.0, -2.0]], [[-3.0, -4.0]]])
    start = -np.log(2)  # uniform; then linear to -1 at 0.5, to -3 at 2
    found = mean_over_time(looks, np.array([0.5, 2.0]))[0, 0]
    assert found == pytest.approx((0.5 * (start - 1) / 2 + 1.5 * (-1 - 3) / 2) / 2)


def make_record(count=6, held=150, classes=3):
    rng = np.random.default_rng(0)

    def logs(*shape):
        return normalise(rng.normal(size=(int(np.prod(shape)), classes))).reshape(*shape, classes)

    given, p = rng.integers(0, classes, count), rng.random(count)
    said = {"expected_errors": 2.0, "error_rate_low": 0.1, "error_rate_high": 0.5}
    facts = {"seconds": {"train and watch": 5.0, "bare": 2.0, "audit": 1.0}, "commit": "abc", "watch": said}
    silent = {**said, "expected_errors": None, "error_rate_low": None, "error_rate_high": None}
    answers = {f"{who}_{name}": p for who in ("watch", "audit") for name in ("p_mislabeled", "margin", "loss")}
    return {
        **{"given": given, "clean": np.zeros(count, np.int64), "final": logs(count), "visits": logs(2, count)},
        **{"held_given": rng.integers(0, classes, held), "held_clean": np.zeros(held, np.int64)},
        **{"held_final": logs(held), "looks": logs(8, held), "moments": np.arange(1, 9) / 4},
        **{"features": rng.normal(size=(count, 4)), "held_features": rng.normal(size=(held, 4))},
        **{"scored": np.ones((2, count), bool), **answers, "watch_flag": p >= 0.5, "audit_flag": p >= 0.5},
        "facts": np.array(json.dumps({**facts, "audit": silent})),
    }


def test_a_replay_changes_the_hold_out_and_nothing_else():
    record, cell = make_record(), Cell("digits", "sym-5")
    seen = {kind: observe(record, Cell("digits", "sym-5", holdout=kind)) for kind in tables.HOLDOUTS}
    assert cell == Cell("digits", "sym-5", holdout="hundred").base
    assert seen["trusted"]["trusted"] and not seen["given"]["trusted"]
    assert (seen["trusted"]["holdout_labels"] == 0).all()
    assert (seen["given"]["holdout_labels"] == record["held_given"]).all()
    assert len(seen["hundred"]["holdout_labels"]) == 100
    for kind, found in seen.items():
        assert found["views"].keys() == found["holdout_views"].keys()
        for name, view in found["views"].items():
            assert view == pytest.approx(seen["given"]["views"][name])
            held = found["holdout_views"][name]
            assert held == pytest.approx(seen["given"]["holdout_views"][name][: 100 if kind == "hundred" else None])
            assert np.exp(held).sum(1) == pytest.approx(1)
    last = record["looks"][-4:].mean(0)
    assert seen["given"]["holdout_views"]["last"] == pytest.approx(normalise(last))


def test_an_answer_is_read_as_it_was_given():
    record = make_record()
    found = grid.read_answer(record, "watch")
    assert (found.total, found.seconds) == (pytest.approx(record["watch_p_mislabeled"].sum()), 3.0)
    assert (found.low, found.high) == (pytest.approx(0.6), pytest.approx(3.0))
    silent = grid.read_answer(record, "audit")
    assert (silent.total, silent.low, silent.seconds) == (None, None, 1.0)
    assert (silent.score == record["audit_p_mislabeled"]).all()
    without = {**record, "audit_p_mislabeled": np.full(6, np.nan)}
    assert (grid.read_answer(without, "audit").score == -record["audit_margin"]).all()


def test_classes_thin_alike_in_training_set_and_hold_out():
    labels = np.tile(np.arange(3), 80)
    kept = thin(labels, 120)
    assert np.bincount(labels[kept[kept < 120]]).tolist() == [40, 9, 2]
    assert np.bincount(labels[kept[kept >= 120]]).tolist() == [40, 9, 2]


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes rows into a file of results that the tables read."""
    for module in (records, rows):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    return lambda lines: (tmp_path / "judge.jsonl").write_text("\n".join(map(json.dumps, lines)))


def line(cell, judge="watch", *, errors=100, ap=80.0, total=None, flags=0, right=0, holds=None):
    settings = {name: value for name, value in asdict(cell).items() if name != "seed"}
    span = (None, None) if total is None else (total / 2, 2 * total)
    report = {"total": total, "low": span[0], "high": span[1], "holds": holds, "flags": flags, "right": right}
    report["ap"] = ap if errors else None
    free = {"watch margin": 70.0 if errors else None, "audit loss": 75.0 if errors else None}
    known = {"settings": {**settings, "judge": judge}, "seed": cell.seed, "examples": 1_000, "errors": errors}
    return {**known, "report": report, "free": free}


def test_the_table_and_the_bars_of_rows_known_by_hand(write):
    first, second, third, *_ = [cell for cell in REPORTED.base if cell.noise != "clean"]
    silent, loud, *_ = [cell for cell in REPORTED.base if cell.noise == "clean"]
    write(
        [
            line(first, total=200.0, flags=50, right=45, holds=True),  # 5 ahead, twice the truth
            line(second, ap=70.0, total=201.0, flags=40, right=20, holds=False),  # 5 behind, more than twice
            line(third, ap=75.0, flags=19),  # as free; no total, few flags
            line(silent, errors=0),
            line(loud, errors=0, total=40.0, holds=False),
            line(DEVELOPMENT.base[0], total=900.0),
        ]
    )
    expected = "`watch` | 3, 2 | 75.0 | +0.0 | -5.0 | 1 | 2 of 3 | 1 of 2 | 4.0% | 70.0% | 21.7% | 1 of 3 |"
    assert tables.by_holdout().splitlines()[2:] == [f"| {name} | {expected}" for name in ("all", "as given")]
    assert len(tables.by_cell().splitlines()) == 2 + 5
    verdicts = [row.split(" | ")[1].rstrip(" |") for row in bars.bars().splitlines()[2:]]
    assert verdicts == [
        "+0.0: **missed**",
        f"1 of 3 ({second.name} -5.0): **missed**",
        "2 of 3: **missed**",
        "not run",
        "1 of 2: **missed**",
        "not run",
        "1 of 2: **missed**",
        f"1 of 2 ({second.name} 50%): **missed**",
        "22%: **missed**",
        "1 of 3: **missed**",
    ]
