"""One runner for all: options are made of settings, grids are products, and what is recorded is passed over."""

import json
from dataclasses import dataclass
from typing import Literal

import pytest

from benchmarks import __main__ as command
from benchmarks import context, experiment, models, records
from benchmarks.experiment import Entry, Experiment, option


@dataclass(frozen=True, kw_only=True)
class Settings:
    kind: Literal["a", "b"] = "a"
    method: str = option("plain", ["plain", "plain, twice"])
    size: int = 10
    rate: float | None = None
    careful: bool = True
    seed: int = 1


SAMPLE = Experiment(
    name="sample",
    settings=Settings,
    run=lambda settings: {"doubled": 2 * settings.size},
    full=({"kind": ("a", "b"), "seed": (1, 2)}, {"kind": "b", "size": 100}),
    small={"size": 1},
    unrecorded=("seed", "careful"),
)


@pytest.fixture(autouse=True)
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    yield tmp_path
    context.use()


def read(results):
    return [json.loads(line) for line in (results / "sample.jsonl").read_text().splitlines()]


def test_without_options_everything_is_measured_and_what_is_recorded_is_passed_over(results):
    assert command.run(SAMPLE, ["--save"]) == 0
    rows = read(results)
    assert [(row["settings"]["kind"], row["settings"]["size"], row["seed"]) for row in rows] == [
        *(("a", 10, 1), ("b", 10, 1), ("a", 10, 2), ("b", 10, 2), ("b", 100, 1))
    ]
    assert set(rows[0]["settings"]) == {"kind", "method", "size", "rate"} and rows[0]["doubled"] == 20
    command.run(SAMPLE, ["--save"])
    assert len(read(results)) == 5
    command.run(SAMPLE, ["--save", "--again", "--kind", "a"])
    assert len(read(results)) == 7


def test_options_choose_among_the_grids_and_replace_what_none_has(capsys):
    command.run(SAMPLE, ["--size", "100"])
    assert capsys.readouterr().out == "sample: doubled 200\n"
    command.run(
        SAMPLE, ["--method", "plain,plain, twice", "--seed", "7", "--size", "10", "--rate", "none,0.5", "--kind", "b"]
    )
    assert capsys.readouterr().out.splitlines() == [
        "sample, method plain, rate None: doubled 20",
        "sample, method plain, rate 0.5: doubled 20",
        "sample, method plain, twice, rate None: doubled 20",
        "sample, method plain, twice, rate 0.5: doubled 20",
    ]


@pytest.mark.parametrize("wrong", [["--kind", "c"], ["--size", "many"], ["--careful", "perhaps"], ["--none"]])
def test_a_wrong_option_is_refused(wrong, capsys):
    with pytest.raises(SystemExit):
        command.run(SAMPLE, wrong)
    assert wrong[0] in capsys.readouterr().err


def test_a_width_is_written_only_where_it_is_not_the_usual_one(results):
    command.run(SAMPLE, ["--small", "--save", "--width", "2"])
    assert read(results)[0]["settings"]["width"] == 2
    assert models.ResNet9().head.in_features == 256
    context.use()
    assert models.ResNet9().head.in_features == 128
    command.run(SAMPLE, ["--small", "--save"])
    assert "width" not in read(results)[1]["settings"]


def test_a_run_may_yield_rows_of_its_own_settings(results, capsys):
    def run(settings):
        for part in ("x", "y"):
            yield {"settings": {"part": part}, "value": settings.size}

    several = Experiment(
        name="sample", settings=Settings, run=run, small={}, summarise=lambda rows: f"rows {len(rows)}"
    )
    command.run(several, ["--small", "--save"])
    assert [row["settings"] for row in read(results)] == [{"part": "x"}, {"part": "y"}]
    assert capsys.readouterr().out.splitlines()[-1] == "rows 2"


def test_a_tier_tells_what_failed_and_passes_over_what_cannot_run(capsys, monkeypatch):
    monkeypatch.setattr(command, "load", {"poison": SAMPLE, "lacking": LACKING, "large": LARGE}.__getitem__)
    assert command.main(["tier", "S", "--only", "poison"]) == 1  # the true one has no small slice
    assert "poison: failed" in capsys.readouterr().out
    assert command.run_tier("S", ["lacking", "large"], 1) == 0
    assert capsys.readouterr().out.splitlines() == [
        "lacking: passed over, needs no_such_library",
        "large: passed over, has no small slice",
    ]


LACKING = Experiment(name="lacking", settings=Settings, run=dict, small={}, needs=("no_such_library",))
LARGE = Experiment(name="large", settings=Settings, run=dict)


def test_an_experiment_is_found_by_its_name(monkeypatch):
    monkeypatch.setattr(experiment, "EXPERIMENTS", {"none": Entry("benchmarks.poison", "nothing")})
    with pytest.raises(LookupError, match="no Experiment called 'none'"):
        experiment.load("none")


def test_the_list_imports_no_experiment(capsys):
    assert command.main(["list"]) == 0
    assert "which training examples taught a bad prediction" in capsys.readouterr().out
