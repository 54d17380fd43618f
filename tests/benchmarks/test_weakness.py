"""Weak features and wrong labels: cells as they were named, draws that repeat, figures and tables known by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks import records
from benchmarks.tables import rows
from benchmarks.weakness import tables
from benchmarks.weakness.cells import DEVELOPMENT, REPORTED
from benchmarks.weakness.draws import draw
from benchmarks.weakness.grid import Setup, examine
from benchmarks.weakness.judge import judge


def test_thirty_three_clean_and_thirty_seven_noisy_draws_are_reported():
    for group, clean, noisy in ((REPORTED, 33, 37), (DEVELOPMENT, 20, 21)):
        noises = [cell.noise for cell in group for _ in cell.seeds]
        assert noises.count("clean") == clean and len(noises) == clean + noisy
        assert len({(cell.data, cell.noise, cell.size) for cell in group}) == len(group)


@pytest.mark.parametrize("data", ["drawn-2", "drawn-2-rare", "drawn-5", "made-bent", "friedman", "moons", "wine"])
def test_a_draw_repeats_and_another_group_has_another_table(data):
    one, again = (draw(data, "sym-10", 0, 1, is_dev=True) for _ in range(2))
    assert (one.rows == again.rows).all() and (one.given == again.given).all()
    assert one.wrong.sum() == round(0.1 * len(one.given)) and one.given.max() < one.num_classes
    assert draw(data, "clean", 0, 1, is_dev=True).wrong.sum() == 0
    other = draw(data, "sym-10", 0, 1, is_dev=False)
    assert data == "wine" or not np.array_equal(one.rows, other.rows)


@pytest.mark.data
@pytest.mark.parametrize(
    "data, size, count, classes",
    [("fashion-pixels", 500, 500, 10), ("banking-20x60", 0, 1_180, 20), ("clinc-30x50", 0, 1_500, 30)],
)
def test_sets_have_their_sizes(data, size, count, classes):
    drawn = draw(data, "pair-10", size, 0, is_dev=True)
    assert drawn.rows.shape[0] == count and drawn.num_classes == len(np.unique(drawn.true)) == classes
    assert drawn.wrong.sum() == round(0.1 * count)


def test_right_labels_of_weak_features_are_flagged_without_the_rule_only():
    drawn = draw("drawn-2", "clean", 0, 1, is_dev=True)
    with_it, without = (judge(drawn.rows, drawn.given, 2, rule=rule) for rule in (True, False))
    assert (with_it.kind, with_it.finding.p, with_it.finding.total) == ("unknown", None, None)
    assert not with_it.finding.flagged.any() and with_it.finding.rate_range[0] == 0
    assert "between none and 30% may be wrong" in with_it.finding.reason
    assert without.kind == "counted" and without.finding.flagged.any() and without.finding.rate_range[0] > 0
    assert (np.argsort(with_it.finding.score) == np.argsort(without.finding.score)).all()  # the order stays
    assert (with_it.finding.rate_range[1], without.evidence) == (without.finding.rate_range[1], None)


def test_errors_of_strong_features_are_judged_alike():
    setup = {"data": "made-linear", "noise": "sym-3", "group": "development"}
    with_it, without = (examine(Setup(**setup, rule=rule)) for rule in (True, False))
    for name in ("ap", "num_flagged", "flags_right", "total"):
        assert with_it["report"][name] == without["report"][name]
    assert with_it["kind"] == "counted" and with_it["evidence"] > 50
    assert with_it["report"]["rate_range"]["holds"] and with_it["report"]["sure_wrongly"] == 0
    assert with_it["report"]["flags_right"] >= 55 and with_it["errors"] == 60


def test_tables_put_both_estimators_side_by_side(tmp_path, monkeypatch):
    def row(rule, noise, kind, flagged, right, between, total, group="reported"):
        errors = 10 if noise == "sym-10" else 0
        low, high = between or (0, 0)
        known = {"low": low, "high": high, "holds": low <= errors / 100 <= high}
        report = {"num_flagged": flagged, "flags_right": right, "sure": 4, "sure_wrongly": 1, "total": total}
        report |= ({"rate_range": known} if between else {}) | ({"ap": 80.0} if errors else {})
        settings = {"data": "wine", "noise": noise, "size": 0, "group": group, "rule": rule}
        facts = {"examples": 100, "errors": errors, "kind": kind, "evidence": 6.0 if rule else None}
        return {"settings": settings, "seed": 1, "report": report, **facts}

    lines = [
        row(True, "clean", "unknown", 0, 0, (0.0, 0.2), None),
        row(False, "clean", "counted", 7, 0, (0.05, 0.2), 8.0),
        row(True, "sym-10", "counted", 9, 8, (0.08, 0.2), 9.0),
        row(False, "sym-10", "counted", 9, 8, (0.08, 0.2), 9.0),
        row(True, "human", "none", 0, 0, None, None),  # not measured without
        row(True, "pair-3", "counted", 1, 1, (0.0, 1.0), 1.0, group="development"),
    ]
    for module in (records, rows):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    (tmp_path / "weakness.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert tables.totals().splitlines()[2:] == [
        "| clean, without the rule | 1 | 1 | 7 | - | - | 0 of 1 | - | 4 | 1 |",
        "| clean, with it | 1 | 0 | 0 | - | - | 1 of 1 | - | 4 | 1 |",
        "| noisy, without the rule | 1 | 1 | 9 | 8 | 10 | 1 of 1 | 80.0 | 4 | 1 |",
        "| noisy, with it | 1 | 1 | 9 | 8 | 10 | 1 of 1 | 80.0 | 4 | 1 |",
    ]
    claimed = "8.0 (5.0 to 20.0, missed) → no p (0.0 to 20.0)"
    assert tables.cells().splitlines()[2:] == [
        f"| wine/clean, seed 1 | 0.0 | cannot tell | +6.0 | {claimed} | 7 → 0 | - |",
        "| wine/sym-10, seed 1 | 10.0 | counted | +6.0 | 9.0 (8.0 to 20.0) | 9 (8) | 80.0 |",
    ]
