"""The command line as a whole: options, exit codes, errors, pipes and terminals."""

import contextlib
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import typer
from rich.cells import cell_len
from rich.text import Text

import sgoif
from sgoif.cli import info as info_command
from sgoif.cli.main import app
from tests.cli.runs import bare, command, golden, invoke, noisy, read_output, spawn, write_run


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "run", noisy())


GROUP = typer.main.get_command(app)


def test_commands_and_their_options_are_those_that_were_approved():
    lines = []
    for name, found in sorted(GROUP.commands.items()):
        options = sorted(option for item in found.params for option in item.opts if option[0] == "-")
        lines.append(f"{name}: {' '.join(options)}")
    golden("options.txt", "\n".join(lines) + "\n")


@pytest.mark.parametrize("path", ["docs/cli.md", "docs/github-actions-check.yml"])
def test_pages_name_only_commands_and_options_that_there_are(path):
    text = (Path(__file__).parents[2] / path).read_text(encoding="utf-8").replace("\\\n", " ")
    found = re.findall(r"\bsgoif ((?:-h|--help|--version|--debug)|[a-z]+)((?: [^`\n|]*)?)", text)
    used = [(name, rest) for name, rest in found if name in GROUP.commands]
    assert len(used) > 3
    for name, rest in used:
        known = {option for item in GROUP.commands[name].params for option in item.opts} | {"--help", "--debug"}
        assert set(re.findall(r"(?<!\S)--[a-z-]+", rest)) <= known, (name, rest)


def test_help_is_shown_without_arguments_and_names_every_command():
    shown = read_output()
    assert all(f" {command} " in shown for command in GROUP.commands)
    assert "Usage: sgoif issues" in read_output("issues", "--help")
    assert read_output("--version") == f"sgoif {sgoif.__version__}\n"


def test_help_imports_nothing_heavy_by_itself():
    program = """
import sys, sgoif
before = set(sys.modules)
from sgoif.cli.main import app
app(["--help"], standalone_mode=False)
print(sorted({"pyarrow", "duckdb", "sgoif.store", "sgoif.run"} & (set(sys.modules) - before)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=bare(), timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["issues", "nowhere"], "is no run: it has no run.json"),
        (["issues"], "Missing argument 'RUN'"),
        (["issues", "x", "--tpo", "3"], "No such option"),
        (["find", "x"], "No such command 'find'"),
        (["issues", "x", "--top", "many"], "--top"),
        (["issues", "x", "--csv", "a", "--json"], "choose one of"),
        (["issues", "x", "--by", "a"], "go together"),
        (["info", "x", "--json=3"], "--json"),
        (["holdout", "x"], "choose one of --page"),
        (["scan"], "name the DATA"),
        (["scan", "--config", "none.yaml"], "No such file"),
        (["bench", "--model", "nothing"], "module:factory"),
        (["bench", "--model", "json:loads"], "called without arguments"),
        (["bench", "--model", "no.such:thing"], "cannot be found"),
        (["bench", "--model", "torch.nn:ReLU", "--input", "a"], "--input takes the shape"),
    ],
)
def test_a_mistake_is_one_line_on_standard_error(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = invoke(*arguments)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert said in done.stderr and done.stderr.startswith("Error: ") and done.stderr.count("\n") == 1


def test_a_traceback_is_shown_on_request(tmp_path, monkeypatch):
    assert "Traceback" not in invoke("issues", tmp_path).stderr
    assert "Traceback" in invoke("issues", tmp_path, "--debug").stderr
    monkeypatch.setenv("SGOIF_DEBUG", "1")
    assert "Traceback" in invoke("issues", tmp_path).stderr


@pytest.mark.parametrize("error", [ZeroDivisionError("division by zero"), EOFError("No data left in file")])
def test_an_error_of_our_own_is_told_apart(run, monkeypatch, error):
    """The end of a file too, which is no interrupt."""

    def fail(*_, **__):
        raise error

    monkeypatch.setattr(info_command, "open_run", fail)
    done = invoke("info", run)
    assert done.exit_code == 3 and "interrupted" not in done.stderr
    assert f"an error in sgoif itself, {type(error).__name__}: {error}" in done.stderr and "--debug" in done.stderr


def test_a_process_ends_with_the_same_codes_and_json_alone_on_standard_output(run):
    done = spawn("check", run, "--max-class-error-rate", "2%", "--json")
    assert done.returncode == 1 and json.loads(done.stdout)["exit_code"] == 1
    assert done.stderr == ""


def test_a_pipe_that_closes_early_ends_a_command_quietly(run):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        command("issues", run, "--json"), stdout=writer, stderr=subprocess.PIPE, timeout=120, env=bare()
    )
    os.close(writer)
    assert done.returncode == 141 and done.stderr == b""


def test_pipes_get_no_colour_and_no_cut(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    long = "folder/" + "x" * 200 + ".png"
    done = invoke("issues", write_run(tmp_path / "long", noisy(ids=[f"{i}{long}" for i in range(400)])))
    assert done.stdout.count(long) == 50 and "\x1b" not in done.stdout


def test_a_terminal_without_unicode_is_written_to_all_the_same(tmp_path, monkeypatch):
    run = write_run(tmp_path / "run", noisy(), names=["猫", "dog", "bird", "fox"])
    for arguments in (["issues", run, "--top", "1"], ["issues", run, "--top", "1", "--json"]):
        written = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
        assert app(arguments, standalone_mode=False) == 0
        sys.stdout.flush()
        text = written.getvalue().decode("ascii")
        if "--json" in arguments:
            assert json.loads(text)["issues"][0]["given_name"] == "猫"
        else:
            assert r"\u732b -> dog" in text


@pytest.mark.parametrize("width", [80, 140])
def test_no_line_is_wider_than_the_terminal(tmp_path, width, monkeypatch):
    ids, names = [f"{i:03d}/" + "日本" * 1700 for i in range(400)], ["n" * 90, *"abc"]
    long = write_run(tmp_path / "long", noisy(ids=ids), names=names)
    other = write_run(tmp_path / "other", noisy((0.0, 0.3, 0.0, 0.0), ids=ids), names=names)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    for arguments in (["issues", long, "--top", "3"], ["classes", long], ["info", long], ["compare", other, long]):
        text = terminal(arguments, monkeypatch)
        lines = [Text.from_ansi(line).plain.rstrip() for line in text.splitlines()]
        assert max(cell_len(line) for line in lines) <= width, arguments
        assert "\x1b[1m" in text and ("…" in text or arguments[0] == "info")


def test_an_interrupt_ends_quietly(tmp_path):
    (tmp_path / "slow.py").write_text(
        "import time\nfrom pathlib import Path\n\ndef model():\n    Path('begun').touch()\n    time.sleep(60)\n"
    )
    process = subprocess.Popen(
        command("bench", "--model", "slow:model"),
        cwd=tmp_path,
        env=bare(),
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored by what a shell runs behind its back
    )
    end = time.monotonic() + 60
    while not (tmp_path / "begun").exists() and time.monotonic() < end and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130 and "Traceback" not in errors


def terminal(arguments, monkeypatch):
    """What a command writes to a terminal."""
    master, slave = pty.openpty()
    pieces = []

    def read():
        with contextlib.suppress(OSError):  # the other end was closed
            while piece := os.read(master, 65536):
                pieces.append(piece)

    reader = threading.Thread(target=read)
    reader.start()
    with monkeypatch.context() as patched, open(slave, "w", encoding="utf-8") as screen:
        patched.setattr(sys, "stdout", screen)
        assert app(arguments, standalone_mode=False) == 0
    reader.join(timeout=30)
    os.close(master)
    return b"".join(pieces).decode()
