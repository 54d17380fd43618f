"""The trust grid: cells that are apart, draws that repeat, figures that are true on cases known by hand."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.trust.cells import DEVELOPMENT, REPORTED, SMALL, Cell, find_cells
from benchmarks.trust.draws import Draw, draw
from benchmarks.trust.measure import measure
from benchmarks.trust.rivals import Finding, find_all, make_folds


def test_at_most_sixty_reported_cells_and_none_is_tuned_on():
    names = [cell.name for cell in REPORTED]
    assert len(names) == len(set(names)) <= 60
    assert not {cell.data for cell in REPORTED} & {cell.data for cell in DEVELOPMENT}


def test_cells_are_found_by_the_beginning_of_their_name():
    assert {cell.data for cell in find_cells("reported", SMALL)} == set(SMALL)
    assert find_cells("development", ("nothing",)) == []


@pytest.mark.parametrize("noise", ["clean", "sym-5", "pair-20"])
def test_a_cell_and_a_seed_fix_the_draw(noise):
    cell = Cell("digits", noise, 0)
    one, again, other = draw(cell, 1), draw(cell, 1), draw(cell, 2)
    assert (one.given == again.given).all() and (one.rows == again.rows).all()
    assert one.wrong.sum() == round(cell.rate * len(one.given))
    assert noise == "clean" or (one.given != other.given).any()


def test_pair_noise_sends_each_class_to_one_other():
    found = draw(Cell("wine", "pair-20", 0), 1)
    assert set(zip(found.true[found.wrong], found.given[found.wrong], strict=True)) <= {(0, 1), (1, 2), (2, 0)}


def test_figures_of_a_finding_known_by_hand():
    true = np.zeros(100, np.int64)
    given = true.copy()
    given[:10] = 1
    drawn = Draw(np.zeros((100, 1), np.float32), given, true, 2)
    p = np.where(np.arange(100) < 8, 0.9, 0.1)
    p[20:22] = 0.8  # two false alarms
    found = measure(Finding(p, p >= 0.5, np.zeros(100, np.int64), p, 10.0, {"top 10%": (0.5, 0.9)}), drawn)
    assert found["flag_precision"] == pytest.approx(80) and found["flag_recall"] == pytest.approx(80)
    assert found["left_after_relabelling"] == 2
    assert found["missed"] == pytest.approx(20)
    assert found["intervals"]["top 10%"] == {"low": 0.5, "high": 0.9, "true": 0.8}
    # 8 at 0.9 all wrong, 2 at 0.8 none wrong, 90 at 0.1 of which 2 are wrong
    assert found["ece"] == pytest.approx(100 * (8 * 0.1 + 2 * 0.8 + 90 * abs(0.1 - 2 / 90)) / 100)


def test_a_clean_set_has_no_precision_but_counts_flags():
    labels = np.arange(20) % 2
    found = measure(Finding(np.zeros(20), np.arange(20) < 3), Draw(np.zeros((20, 1), np.float32), labels, labels, 2))
    assert "ap" not in found and found["num_flagged"] == 3 and found["flag_precision"] == 0


def test_rivals_find_planted_errors():
    cell = Cell("wine", "sym-10", 0)
    drawn = draw(cell, 1)
    found = find_all(drawn.rows, drawn.given, 3, make_folds(drawn.given, 1))
    assert "trees, self_confidence" in found and "neighbours" in found
    for name, item in found.items():
        assert measure(item, drawn)["ap"] > 60, name
