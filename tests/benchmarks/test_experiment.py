"""One runner for all: grids are products, and what is recorded is passed over."""

import json
from dataclasses import dataclass
from typing import Literal

import pytest

from benchmarks import __main__ as command
from benchmarks import context, records
from benchmarks.experiment import Experiment, option


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
