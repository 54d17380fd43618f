"""Nothing that a run says can steer a terminal: escapes in its fields, names, ids and causes are written out."""

import json
import re
import unicodedata

import numpy as np
import pytest

from sgoif.evidence.sketch import SKETCH_COLUMNS
from sgoif.files.tables import write_csv_rows
from tests.cli.runs import held_out, invoke, noisy, write_run

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\n\x7f\u202e\ud800evil"
FIXED = {"state", "id_kind", "holdout_id_kind", "task"}  # another word there is refused, or another kind of run


def poison(value, key=None):
    """Put escapes behind every text, and into the names of what is not looked up by name."""
    if isinstance(value, dict):
        extra = {f"{EVIL} {n}": EVIL if isinstance(item, str) else item for n, item in enumerate(value.values())}
        return {name: poison(item, name) for name, item in value.items()} | (extra if key in OPEN else {})
    if isinstance(value, list):
        return [poison(item) for item in value]
    return value + EVIL if isinstance(value, str) and key not in FIXED else value


OPEN = {"faults", "libraries", "overhead_by_part"}
FACTS = {
    "head": "fc",
    "path": "backbone",
    "calibration_error": "none",
    "faults": {"RuntimeError": 3},
    "overhead": 0.1,
    "overhead_by_part": {"solve": 0.1},
    "counters": {"steps": 10, "visits": 400, "visits_not_judged": 3, "refreshes": 2},
    "plan": {"stride": 2, "layers": ["fc"], "observe_every": 3, "examples_per_refresh": 4, "refresh_every": 5},
    "plan_changes": [{"step": "3", "overhead": 0.1, "plan": {"stride": 4, "layers": ["fc"]}}],
    "forecast": {"step_share": 0.1, "batch_size": "32"},
    "holdout_cleaning": {"clean": True, "reason": "x"},
    "num_not_judged": 3,
    "unreadable": 2,
    "transition": np.full((4, 4), 0.25).tolist(),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where a run lies whose every text has escapes in it."""
    tmp_path = tmp_path_factory.mktemp("evil")
    examples = noisy(ids=[f"{i}{EVIL.replace(chr(0xD800), '')}" for i in range(400)])
    sketches = np.random.default_rng(0).integers(0, 2**62, (400, len(SKETCH_COLUMNS)))
    sketches[1] = sketches[0]
    examples |= {name: sketches[:, i] for i, name in enumerate(SKETCH_COLUMNS)}
    held = held_out(60, ids=[f"h{i}\x1b[31m" for i in range(60)])
    write_run(
        tmp_path / "run", examples, holdout=held, names=["a", "b", "c", "d"], trusted=False, nearly_same=25, **FACTS
    )
    path = tmp_path / "run" / "run.json"
    info = poison(json.loads(path.read_text()))
    info |= {"keep_visits": EVIL, "created": EVIL, "updated": EVIL, "faults": {EVIL: 2}}
    info["facts"] |= {"kind": EVIL}
    path.write_text(json.dumps(info))
    (tmp_path / "run" / "examples" / "rank-00000" / "edition-0000-part-999999.parquet").write_bytes(b"\x1b[31m")
    return tmp_path


@pytest.fixture
def run(folder, monkeypatch):
    monkeypatch.chdir(folder)
    return "run"


def assert_harmless(text):
    bad = {c for c in text if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    assert not bad, (bad, text[:300])
    assert not [byte for byte in text.encode() if byte < 0x20 and byte != 0x0A]


COMMANDS = [
    ["info"],
    ["issues"],
    ["issues", "--class", "0"],
    ["issues", "--class", EVIL],
    ["issues", "--by", "who\x1b[1m", "--table", "own.csv"],
    ["classes"],
    ["duplicates"],
    ["check", "--max-error-rate", "1%", "--max-class-error-rate", "1%"],
    ["check", "--max-new", "1", "--against", "run"],
    ["holdout", "--out", "verify.csv"],
    ["holdout", "--filled", "filled.csv"],
    ["apply", "--relabel-from", "0.9", "--out", "m.csv"],
    ["apply", "decisions.csv", "--out", "m.csv"],
    ["apply", "broken.csv", "--out", "m.csv"],
    ["report", "--pictures", "none", "--out", "r.html", "--top", "5"],
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda command: " ".join(command).encode("unicode_escape").decode())
@pytest.mark.parametrize("as_json", [False, True])
def test_no_command_passes_on_escapes_of_a_run(run, arguments, as_json):
    write_csv_rows(
        "own.csv", ("id", "who\x1b[1m"), [(f"{i}{EVIL.replace(chr(0xD800), '')}", f"x{EVIL}") for i in range(400)]
    )
    write_csv_rows("filled.csv", ("id", "verified_label"), [("h0\x1b[31m", f"a{EVIL}")])
    evil = EVIL.replace("\ud800", "")
    rows = [(f"{i}{evil}", 0, "drop", f"ann{evil}", evil) for i in range(3)] + [(evil, 0, "drop", f"ben{evil}", "")]
    write_csv_rows("decisions.csv", ("id", "given_label", "decision", "reviewer", "note"), rows)
    write_csv_rows("broken.csv", ("id", "given_label", "decision"), [(evil, f"7{evil}", f"what{evil}")])
    command, *rest = arguments
    done = invoke(command, run, *rest, *(["--json"] if as_json else []))
    assert done.exit_code in (0, 1, 2), done.stderr
    assert_harmless(done.stdout + done.stderr)
    if as_json and done.stdout:
        json.loads(done.stdout)


def test_two_runs_are_compared_and_exported_without_escapes(run):
    for arguments in (["compare", run, run], ["export", run, "--to", "cleanlab", "--out", "x.csv"]):
        done = invoke(*arguments)
        assert done.exit_code == 0, done.stderr
        assert_harmless(done.stdout + done.stderr)


def test_what_is_shown_of_a_run_tells_its_escapes(run):
    shown = invoke("info", run).stdout
    assert re.search(r"created +\\x1b\]0;owned", shown) and "\\x9b31m" in shown
