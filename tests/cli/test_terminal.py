"""Nothing that a run says can steer a terminal: escapes in its fields, names, ids and causes are written out."""

import json
import re
import unicodedata

import pytest

from sgoif.files.tables import write_csv_rows
from tests.cli.runs import held_out, invoke, noisy, write_run
from tests.cli.world import EVIL, FACTS, sketched

CUT = f"\ud800{EVIL}"  # half a character too, which JSON can hold and UTF-8 cannot
FIXED = {"state", "id_kind", "holdout_id_kind", "task"}  # another word there is refused, or another kind of run
OPEN = {"faults", "libraries", "overhead_by_part"}


def poison(value, key=None):
    """Put escapes behind every text, and into the names of what is not looked up by name."""
    if isinstance(value, dict):
        extra = {f"{CUT} {n}": CUT if isinstance(item, str) else item for n, item in enumerate(value.values())}
        return {name: poison(item, name) for name, item in value.items()} | (extra if key in OPEN else {})
    if isinstance(value, list):
        return [poison(item) for item in value]
    return value + CUT if isinstance(value, str) and key not in FIXED else value


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run whose every text has escapes in it, and tables of a user about it that have some too."""
    folder = tmp_path_factory.mktemp("evil")
    ids = [f"{i}{EVIL}" for i in range(400)]
    held = held_out(60, ids=[f"h{i}\x1b[31m" for i in range(60)])
    as_texts = {
        "plan_changes": [{"step": "3", "overhead": 0.1, "plan": {"stride": 4, "layers": ["fc"]}}],
    }
    facts = {**FACTS, **as_texts, "trusted": False}
    write_run(folder / "run", sketched(noisy(ids=ids)), holdout=held, names=["a", "b", "c", "d"], **facts)
    path = folder / "run" / "run.json"
    info = poison(json.loads(path.read_text()))
    info |= {"keep_visits": CUT, "created": CUT, "updated": CUT, "faults": {CUT: 2}}
    info["facts"] |= {"kind": CUT}
    path.write_text(json.dumps(info))
    (folder / "run" / "examples" / "rank-00000" / "edition-0000-part-999999.parquet").write_bytes(b"\x1b[31m")
    write_csv_rows(folder / "own.csv", ("id", "who\x1b[1m"), [(ident, f"x{EVIL}") for ident in ids])
    write_csv_rows(folder / "filled.csv", ("id", "verified_label"), [("h0\x1b[31m", f"a{EVIL}")])
    rows = [(ident, 0, "drop", f"ann{EVIL}", EVIL) for ident in ids[:3]] + [(EVIL, 0, "drop", f"ben{EVIL}", "")]
    write_csv_rows(folder / "decisions.csv", ("id", "given_label", "decision", "reviewer", "note"), rows)
    write_csv_rows(folder / "broken.csv", ("id", "given_label", "decision"), [(EVIL, f"7{EVIL}", f"what{EVIL}")])
    return folder


COMMANDS = [
    ["info", "run"],
    ["issues", "run"],
    ["issues", "run", "--class", "0"],
    ["issues", "run", "--class", CUT],
    ["issues", "run", "--by", "who\x1b[1m", "--table", "own.csv"],
    ["classes", "run"],
    ["duplicates", "run"],
    ["check", "run", "--max-error-rate", "1%", "--max-class-error-rate", "1%"],
    ["check", "run", "--max-new", "1", "--against", "run"],
    ["compare", "run", "run"],
    ["export", "run", "--to", "cleanlab", "--out", "x.csv"],
    ["holdout", "run", "--out", "verify.csv"],
    ["holdout", "run", "--filled", "filled.csv"],
    ["apply", "run", "--relabel-from", "0.9", "--out", "m.csv"],
    ["apply", "run", "decisions.csv", "--out", "m.csv"],
    ["apply", "run", "broken.csv", "--out", "m.csv"],
    ["report", "run", "--pictures", "none", "--out", "r.html", "--top", "5"],
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda command: " ".join(command).encode("unicode_escape").decode())
def test_no_command_passes_on_escapes_of_a_run(folder, monkeypatch, arguments):
    monkeypatch.chdir(folder)
    for form in ([], ["--json"]) if arguments[0] != "export" else ([],):
        done = invoke(*arguments, *form)
        assert done.exit_code in ((0,) if arguments[0] in ("compare", "export") else (0, 1, 2)), done.stderr
        said = done.stdout + done.stderr
        bad = {c for c in said if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
        assert not bad, (bad, said[:300])
        if form and done.stdout:
            json.loads(done.stdout)


def test_what_is_shown_of_a_run_tells_its_escapes(folder):
    shown = invoke("info", folder / "run").stdout
    assert re.search(r"created +(\\ud800)?\\x1b\]0;owned", shown) and "\\x9b31m" in shown
