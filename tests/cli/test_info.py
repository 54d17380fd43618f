"""``sgoif info``: runs that finished, were killed, resumed or damaged."""

import re
from pathlib import Path

import sgoif
from sgoif.store import ParquetSink
from tests.cli.runs import answer, golden, invoke, noisy, read_output, read_refusal, write_run
from tests.store.visits import batch, kill

FIXTURE = Path(__file__).parents[1] / "fixtures" / "run_v1"


def masked(text):
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:+]+", "TIME", text)
    text = re.sub(r"(versions +).*", r"\1VERSIONS", text)
    return re.sub(r"(hardware +).*", r"\1HARDWARE", text)


def test_a_finished_run_is_described(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan = {"refresh_every": 20, "examples_per_refresh": 256, "layers": [], "rank": 16, "stride": 1, "observe_every": 5}
    write_run(
        "run",
        noisy(),
        counters={"steps": 100, "visits": 4000, "refreshes": 5, "visits_not_judged": 250},
        plan=plan,
        plan_changes=[{"step": 60, "overhead": 0.14, "plan": {**plan, "refresh_every": 40}}],
        overhead=0.081,
        overhead_by_part={"scoring": 0.05, "curvature": 0.01, "refresh": 0.021},
        faults={"LinalgError: singular": 2},
        head="fc",
    )
    golden("info.txt", masked(read_output("info", "run")))
    document = answer("info", "run")
    assert document["is_finished"] and document["rows"]["examples"] == 400
    assert document["faults"]["training"] == {"LinalgError: singular": 2}


def test_rows_that_were_not_scored_and_warnings_are_named(tmp_path):
    run = write_run(
        tmp_path / "run",
        noisy(),
        visits_refused={"the label is no class": 12},
        visits_lost={"MemoryError: no room": 48},
        warnings={"batch_positions": "the ids of all 20 steps were\x1b[31m 0..7"},
    )
    shown = " ".join(invoke("info", run).stdout.split())
    assert "visits refused 12: the label is no class" in shown and "visits lost 48: MemoryError: no room" in shown
    assert "warning the ids of all 20 steps were" in shown and "\x1b" not in shown


def write_visits(folder, end):
    """Four steps of eight examples by a process that ended somehow."""
    sink = ParquetSink(folder)
    for step in range(4):
        sink.write(batch([f"id{i}" for i in range(8)], step, 0, seed=step))
    end(sink)
    kill(sink)
    return folder


def test_a_killed_run_is_told_from_a_finished_one(tmp_path):
    run = write_visits(tmp_path / "run", ParquetSink.checkpoint)
    shown = read_output("info", run)
    assert "running or killed" in shown and "at step 4" in shown
    document = answer("info", run)
    assert not document["is_finished"] and document["rows"] == {**document["rows"], "visits": 32, "examples": 0}
    for command in (["issues"], ["classes"], ["check", "--max-error-rate", "2%"]):
        done = invoke(command[0], run, *command[1:])
        assert done.exit_code == 2
        assert "still running or was killed" in done.stdout + done.stderr


def test_a_run_that_was_not_closed_says_so_and_how_to_add_it_up(tmp_path, caplog):
    url = write_visits(tmp_path / "run", ParquetSink.end)
    said = " ".join(read_output("info", url).split())
    assert "ended without monitor.close()" in said and "32 on disk" in said and "sgoif close" in said
    run = sgoif.load(url)
    assert "ended without monitor.close()" in caplog.text and "It has 32 visits." in caplog.text
    assert run.info["state"] == "unclosed" and len(run.visits["id"]) == 32
    said = read_refusal("issues", url)
    assert "ended without monitor.close()" in said and f"sgoif close {url}" in said
    read_output("close", url)
    read_output("issues", url)
    assert len(sgoif.load(url).table["id"]) == 8


def test_damaged_parts_are_named_and_the_rest_is_shown(tmp_path):
    run, part = write_run(tmp_path / "run", noisy()), "examples/rank-00000/edition-0001-part-000001.parquet"
    (tmp_path / "run" / part).write_bytes(b"PAR1 nothing more" * 9)
    document = answer("info", run)
    assert document["rows"]["examples"] == 400
    assert [item["path"] for item in document["skipped_parts"]] == [part]
    assert "skipped part" in read_output("info", run)


def test_every_released_version_of_a_run_can_be_read():
    document = answer("info", FIXTURE)
    assert [item["start_step"] for item in document["attempts"]] == [0, 6]
    assert document["rows"]["visits"] == 96  # those that the second attempt repeats are not counted twice
    assert document["summary"]["is_calibrated"] is False
    shown = read_output("issues", FIXTURE)
    assert "日本語" in shown and '<b>"bird"</b>.png' in shown
