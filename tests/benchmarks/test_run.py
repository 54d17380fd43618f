from __future__ import annotations

from benchmarks import run
from benchmarks.tables.pages import TABLES


def test_every_table_of_the_page_says_how_it_is_made():
    watched = dict.fromkeys(("calibration", "signals", "persistence", "ablations"), "label_noise")
    several = ("curriculum", "multilabel", "ood", "poison", "scale", "shift", "trust", "unlearning", "verify")
    parted = {name: part for part in several for name in TABLES if name.startswith(f"{part}_")}
    made_by_others = {**watched, **parted, "frozen_calibration": "frozen_noise"}
    made_from_all = {"bars"}
    assert {made_by_others.get(name, name) for name in TABLES.keys() - made_from_all} <= set(run.TABLES)


def test_a_command_that_fails_is_told(capsys, monkeypatch):
    monkeypatch.setattr(run, "TABLES", {"none": run.Table("nothing", "benchmarks.nowhere", "benchmarks.nowhere")})
    assert run.main(["--only", "none"]) == 1
    assert "No module named" in capsys.readouterr().out


def test_what_lacks_a_library_is_passed_over(capsys, monkeypatch):
    table = run.Table("nothing", "benchmarks.nowhere", "benchmarks.nowhere", needs=("no_such_library",))
    monkeypatch.setattr(run, "TABLES", {"none": table})
    assert run.main(["--only", "none"]) == 0
    assert "needs no_such_library" in capsys.readouterr().out
