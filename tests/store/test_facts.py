"""A ``run.json`` of another shape is refused when a run is opened, with the field that is wrong."""

import json
from pathlib import Path

import pytest

from sgoif.errors import StoreError
from sgoif.store import RunFiles
from tests.cli.runs import invoke, noisy, write_run

WRONG = {
    "class_names": [3, {"a": 1}, [["x"]]],
    "held_out_per_class": ["x", [1.5], [-1], [None], [2**70]],
    "transition": [3, [3], [["x"]], {"a": 1}],
    "counters": [[], {"visits": "x"}],
    "plan": [3, []],
    "plan_changes": [{}, [3]],
    "overhead": ["x", {}],
    "faults": [3, {"x": "y"}],
    "nearly_same": ["x", -1, 2**70],
    "forecast": [3, {"step_share": "x"}],
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("facts") / "run", noisy())


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_a_fact_of_another_kind_is_named(run, tmp_path, name, value):
    info = json.loads(Path(run, "run.json").read_text())
    info["facts"][name] = value
    (tmp_path / "run.json").write_text(json.dumps(info))
    with pytest.raises(StoreError, match=rf"`facts\.{name}` must be .*, got"):
        RunFiles(tmp_path)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 5000 + "1" + "}" * 5000, '{"schema_version": 1, "attempts": []']
)
def test_deep_and_cut_documents_are_refused_in_words(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    done = invoke("info", tmp_path)
    assert done.exit_code == 2 and "run.json" in done.stderr and "sgoif itself" not in done.stderr


def test_levels_that_no_run_has_are_refused(run, tmp_path):
    info = json.loads(Path(run, "run.json").read_text())
    info["facts"]["own"] = json.loads("[" * 60 + "]" * 60)
    (tmp_path / "run.json").write_text(json.dumps(info))
    with pytest.raises(StoreError, match="nested too deeply"):
        RunFiles(tmp_path)
