"""A ``run.json`` of another shape is refused when a run is opened, with the field that is wrong."""

import json
from pathlib import Path

import pytest

from sgoif.errors import StoreError
from sgoif.store import RunFiles, info
from tests.cli.runs import invoke, noisy, write_run

FACTS = {
    "class_names": [3, {"a": 1}, [["x"]]],
    "held_out_per_class": ["x", [1.5], [-1], [None], [2**70]],
    "transition": [3, [3], [["x"]], {"a": 1}],
    "counters": [[], {"visits": "x"}],
    "plan": [3, []],
    "plan_changes": [{}, [3]],
    "overhead": ["x", {}],
    "faults": [3, {"x": "y"}],
    "nearly_same": ["x", -1, 2**70],
}
WRONG = [
    *((rf"`facts\.{name}` must be .*, got", {"facts": {name: value}}) for name in FACTS for value in FACTS[name]),
    *(("attempts", {"attempts": [{"attempt": number, "start_step": 0}]}) for number in ("0", 10**30, True)),
    ("attempts", {"attempts": [{"attempt": 0, "start_step": -1}]}),
    ("dropped_blocks", {"dropped_blocks": "many"}),
    ("facts", {"facts": [1]}),
    ("overhead", {"facts": {"overhead": float("nan")}}),
    ("nested too deeply", {"facts": {"own": json.loads("[" * 60 + "]" * 60)}}),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("facts") / "run", noisy())


@pytest.mark.parametrize(("said", "change"), WRONG)
def test_what_is_of_another_kind_is_named(run, tmp_path, said, change):
    (tmp_path / "run.json").write_text(json.dumps(json.loads(Path(run, "run.json").read_text()) | change))
    with pytest.raises(StoreError, match=said):
        RunFiles(tmp_path)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 5000 + "1" + "}" * 5000, '{"schema_version": 1, "attempts": []']
)
def test_deep_and_cut_documents_are_refused_in_words(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    done = invoke("info", tmp_path)
    assert done.exit_code == 2 and "run.json" in done.stderr and "sgoif itself" not in done.stderr


def test_a_document_larger_than_any_of_a_run_is_refused(run, monkeypatch):
    monkeypatch.setattr(info, "_MOST_BYTES", 100)
    with pytest.raises(StoreError, match="bytes, which no run's has"):
        RunFiles(run)
