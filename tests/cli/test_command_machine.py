"""Commands fed with damaged inputs, in any order: an answer or a sentence, and nothing else is touched.

``SGOIF_TRACES`` sets how many traces there are, ``SGOIF_TRACE_SEED`` repeats one draw of them.
"""

import contextlib
import hashlib
import json
import os
import shutil
import signal
import unicodedata
import warnings
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from sgoif.files.tables import read_csv_rows
from tests.cli.runs import invoke
from tests.cli.world import damage_bytes, damage_document, damage_folder, damage_table, make_templates, write_decisions

TRACES = int(os.environ.get("SGOIF_TRACES", "40"))
LIMIT_S = 60  # of one command, on a machine that does other things too
SETTINGS = settings(
    max_examples=TRACES,
    stateful_step_count=8,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate, Phase.shrink),
)
RUNS = st.sampled_from(["run"] * 8 + ["old", "numbered", "unfinished", "photos", "nowhere"])
TABLES = st.sampled_from(["own.csv", "own.parquet", "decisions.csv", "photos", "nowhere.csv"])
DECISIONS = st.sampled_from(
    ["decisions.csv", "decisions.csv", "made.csv", "made.csv", "labels.json", "filled.csv", "run"]
)
templates = None


@pytest.fixture(scope="module", autouse=True)
def templates_folder(tmp_path_factory):
    global templates
    templates = tmp_path_factory.mktemp("templates")
    make_templates(templates)


class Commands(RuleBasedStateMachine):
    """Damages inputs and asks commands about them."""

    def __init__(self):
        super().__init__()
        self.before = os.getcwd()
        self.folder = Path(os.environ["SGOIF_MACHINE_FOLDER"])
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(templates, self.folder, symlinks=True)
        os.chdir(self.folder)

    def teardown(self):
        os.chdir(self.before)

    # what is damaged

    @initialize(data=st.data(), kind=st.sampled_from(["nothing", "document", "document", "table", "table", "rows"]))
    def damage_first(self, data, kind):
        if kind == "document":
            damage_document(data.draw, self.folder / "run" / "run.json")
        elif kind == "table":
            damage_table(data.draw, data.draw(st.sampled_from(sorted((self.folder / "run").rglob("*.parquet")))))
        elif kind == "rows":
            write_decisions(data.draw, self.folder / "made.csv")

    @rule(data=st.data(), name=st.sampled_from(["run", "run", "old", "numbered"]))
    def damage_run(self, data, name):
        damage_document(data.draw, self.folder / name / "run.json")

    @rule(data=st.data(), name=st.sampled_from(["run", "run", "old", "numbered"]))
    def damage_part(self, data, name):
        parts = sorted((self.folder / name).rglob("*.parquet"))
        if parts:
            damage_table(data.draw, data.draw(st.sampled_from(parts)))

    @rule(data=st.data())
    def make_decisions(self, data):
        write_decisions(data.draw, self.folder / "made.csv")

    @rule(data=st.data(), name=st.sampled_from(["decisions.csv", "own.csv", "filled.csv"]))
    def damage_rows(self, data, name):
        damage_bytes(data.draw, self.folder / name)

    @rule(data=st.data())
    def damage_answers(self, data):
        damage_document(data.draw, self.folder / "labels.json")

    @rule(data=st.data())
    def damage_photos(self, data):
        damage_folder(data.draw, self.folder / "photos")

    # what is asked

    @rule(run=RUNS, as_json=st.booleans())
    def info(self, run, as_json):
        self.ask("info", run, *_json(as_json))

    @rule(run=RUNS, how=st.sampled_from(["", "--json", "csv", "parquet", "class", "min_p", "by"]), table=TABLES)
    def issues(self, run, how, table):
        out = {"csv": "out.csv", "parquet": "out.parquet"}.get(how)
        options = {
            "--json": ["--json"],
            "csv": ["--csv", out],
            "parquet": ["--parquet", out],
            "class": ["--class", "cat"],
            "min_p": ["--min-p", "0.3", "--top", "0"],
            "by": ["--by", "who", "--table", table],
        }.get(how, [])
        self.ask("issues", run, *options, out=out)

    @rule(run=RUNS, as_json=st.booleans())
    def classes(self, run, as_json):
        self.ask("classes", run, *_json(as_json))

    @rule(run=RUNS, out=st.sampled_from([None, "out.csv"]))
    def duplicates(self, run, out):
        self.ask("duplicates", run, *([] if out is None else ["--csv", out]), out=out)

    @rule(run=RUNS, against=RUNS, with_new=st.booleans(), as_json=st.booleans())
    def check(self, run, against, with_new, as_json):
        more = ["--max-new", "3", "--against", against] if with_new else []
        limits = ["--max-error-rate", "5%", "--max-class-error-rate", "5%"]
        files = ["--summary", "out.md", "--junit", "out.xml"]
        self.ask("check", run, *limits, *more, *files, *_json(as_json), out=("out.md", "out.xml"))

    @rule(old=RUNS, new=RUNS, as_json=st.booleans())
    def compare(self, old, new, as_json):
        self.ask("compare", old, new, *_json(as_json))

    @rule(
        run=RUNS,
        files=st.lists(DECISIONS, max_size=2),
        end=st.sampled_from(["csv", "parquet", "txt"]),
        auto=st.booleans(),
    )
    def apply(self, run, files, end, auto):
        options = ["--relabel-from", "0.9", "--by", "who", "--table", "own.csv"] if auto else []
        self.ask("apply", run, *files, "--out", f"out.{end}", *options, out=f"out.{end}")

    @rule(
        run=RUNS,
        to=st.sampled_from(["cleanlab", "label-studio", "paper"]),
        end=st.sampled_from(["csv", "parquet", "json"]),
    )
    def export(self, run, to, end):
        out = (f"out.{end}", "out.xml") if to == "label-studio" else f"out.{end}"
        self.ask("export", run, "--to", to, "--images", "photos", "--out", f"out.{end}", out=out)

    @rule(run=RUNS, how=st.sampled_from(["out", "page", "filled", "made"]))
    def holdout(self, run, how):
        options, out = {
            "out": (["--out", "out.csv", "--size", "9"], "out.csv"),
            "page": (["--page", "out.html", "--size", "5"], "out.html"),
            "filled": (["--filled", "filled.csv", "--verified", "out.csv"], "out.csv"),
            "made": (["--filled", "made.csv", "--verified", "out.csv"], "out.csv"),
        }[how]
        self.ask("holdout", run, *options, out=out)

    @rule(
        run=RUNS,
        decisions=st.sampled_from([None, "decisions.csv", "made.csv"]),
        pictures=st.sampled_from(["none", "embed"]),
    )
    def report(self, run, decisions, pictures):
        options = ["--images", "photos"] if pictures == "embed" else []
        options += [] if decisions is None else ["--decisions", decisions]
        self.ask("report", run, "--top", "5", "--pictures", pictures, "--out", "out.html", *options, out="out.html")

    def ask(self, *args, out=()):
        """Run a command and look at all that it may have done."""
        named = (out,) if isinstance(out, str) else out or ()
        for name in named:
            (self.folder / name).unlink(missing_ok=True)
        files = fingerprint(self.folder)
        with warnings.catch_warnings(), time_limit(LIMIT_S):
            warnings.simplefilter("ignore")
            done = invoke(*args)
        look(args, done)
        after = fingerprint(self.folder)
        written = {name for name in after if name not in files}
        assert {name.split("/")[0] for name in written} <= {*named, ".sgoif-cache"}, (args, written)
        assert {name: after.get(name) for name in files} == files, (args, "an input was changed")
        if done.exit_code == 0:
            assert not named or written, (args, "nothing was written")
            for name in written:
                open_result(self.folder / name)
        return done


def look(args, done):
    """Hold what a command said against what all of them promise."""
    said = done.stdout + done.stderr
    assert done.exit_code in (0, 1, 2), (args, done.exit_code, done.stderr)
    assert done.exit_code != 1 or args[0] == "check", args
    assert "Traceback" not in said, args
    steering = {c for c in said if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    assert not steering, (args, steering, said[:500])
    if done.exit_code == 2 and args[0] != "check":  # which tells why it could not judge where it tells its verdict
        lines = done.stderr.strip().splitlines()
        errors = [line for line in lines if line.startswith("Error: ")]  # a run that goes on is told above it
        assert errors == lines[-1:] and len(errors[0]) > 20, (args, done.stderr)
    if "--json" in args and done.exit_code != 2:
        json.loads(done.stdout)


def open_result(path):
    """Open a file that a command has written."""
    if path.suffix == ".csv":
        list(read_csv_rows(path, ["id"]))
    elif path.suffix == ".parquet":
        pq.read_table(path)
    elif path.suffix == ".json":
        json.loads(path.read_text())
    elif path.suffix == ".html":
        assert "</html>" in path.read_text()[-200:].lower()
    else:
        assert path.read_bytes()


def fingerprint(folder):
    """Hashes of all files, and where links lead to."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_file():
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


@contextlib.contextmanager
def time_limit(seconds):
    def stop(*_):
        raise AssertionError(f"a command has not ended after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _json(as_json):
    return ["--json"] if as_json else []


def test_commands_answer_or_refuse_in_words_whatever_they_are_given(tmp_path, monkeypatch):
    monkeypatch.setenv("SGOIF_MACHINE_FOLDER", str(tmp_path / "world"))
    chosen = os.environ.get("SGOIF_TRACE_SEED")
    machine = Commands if chosen is None else seed(int(chosen))(Commands)
    run_state_machine_as_test(machine, settings=SETTINGS)


@settings(SETTINGS, max_examples=max(TRACES // 20, 1), phases=(Phase.generate,))
@given(data=st.data())
def _scan_anything(data):
    """Scan a damaged folder or table, and ask about the run where there is one."""
    world = Commands()
    try:
        kind = data.draw(st.sampled_from(["folder", "table", "features", "features"]))
        for _ in range(data.draw(st.integers(0, 3))):
            if kind == "table":
                damage_table(data.draw, world.folder / "data.parquet")
            elif kind == "folder":
                damage_folder(data.draw, world.folder / "photos")
            else:
                damage_bytes(data.draw, world.folder / "features.npy")
        source = "data.parquet" if kind == "table" else "photos"
        options = ["--features", "features.npy"] if kind == "features" else ["--backbone", "tests.colours:backbone"]
        done = world.ask("scan", source, "--out", "scanned", *options, out="scanned")
        if done.exit_code == 0:
            for command in ("info", "issues", "classes", "duplicates"):
                world.ask(command, "scanned")
    finally:
        world.teardown()


def test_scans_answer_or_refuse_in_words_whatever_they_are_given(tmp_path, monkeypatch):
    monkeypatch.setenv("SGOIF_MACHINE_FOLDER", str(tmp_path / "world"))
    chosen = os.environ.get("SGOIF_TRACE_SEED")
    (_scan_anything if chosen is None else seed(int(chosen))(_scan_anything))()
