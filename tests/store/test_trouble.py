"""Disks that fill up, runs that cannot be joined, attempts that die early: what is lost is counted, nothing twice."""

import resource
import threading
import time
from contextlib import contextmanager

import pytest

from sgoif.files.locations import Place
from sgoif.store import ParquetSink, RunFiles, next_attempt
from sgoif.store.writer import DeferredSink, Pace
from tests.store.visits import batch, begin, expected_pairs, kill, pairs, store, write_steps


@contextmanager
def no_room(limit=100_000):
    """The kernel refuses to write files beyond a size, as it does on a full disk; run.json still fits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_is_full_for_a_while(tmp_path, caplog):
    sink = ParquetSink(tmp_path, pace=Pace(retry_after_s=(0.0,), rest_s=0.0))
    with no_room():
        write_steps(sink, range(20), size=100, num_examples=2000)
        assert not sink.checkpoint()["complete"]
    assert list(tmp_path.rglob(".*.tmp")) == []  # half a part would keep the disk full
    write_steps(sink, range(20, 40), size=100, num_examples=2000)
    assert sink.checkpoint()["complete"]
    sink.close()
    assert pairs(RunFiles(tmp_path)) == expected_pairs(range(20, 40), size=100, num_examples=2000)
    info = RunFiles(tmp_path).info
    assert info["dropped_rows"] == 2000 and sum(info["faults"].values()) == 2 and info["state"] == "finished"
    assert sink.is_finished
    assert len([record for record in caplog.records if "the training goes on" in record.message]) == 1


def test_what_an_attempt_lost_is_still_told_after_a_resume(tmp_path):
    first = ParquetSink(tmp_path, pace=Pace(retry_after_s=(), rest_s=0.0))
    with no_room():
        write_steps(first, range(20), size=100, num_examples=2000)
        first.checkpoint()
    kill(first)
    store(tmp_path, range(20, 25), start_step=20)
    info = RunFiles(tmp_path).info
    assert info["dropped_rows"] == 2000 and sum(info["faults"].values()) == 1
    assert store(tmp_path).info["dropped_rows"] == 0  # from the start: nothing of that is left


def test_an_attempt_that_died_before_rank_0_had_entered_it_counts_for_nothing(tmp_path):
    first = begin(tmp_path, range(4))
    first.checkpoint()
    kill(first)
    early = begin(tmp_path, range(2, 9), rank=1, attempt=next_attempt(tmp_path), start_step=2, pace=Pace(part_bytes=1))
    early.checkpoint()
    kill(early)
    assert pairs(RunFiles(tmp_path)) == expected_pairs(range(4))
    assert next_attempt(tmp_path) == 2
    assert pairs(store(tmp_path, range(4, 6), attempt=next_attempt(tmp_path), start_step=4)) == expected_pairs(range(6))


def test_an_overdue_checkpoint_is_not_waited_for_again(tmp_path, monkeypatch):
    gate, write = threading.Event(), Place.write
    sink = ParquetSink(tmp_path, pace=Pace(flush_s=0.5))
    monkeypatch.setattr(Place, "write", lambda *given: gate.wait(20) and write(*given))
    write_steps(sink, range(3))
    begun = time.monotonic()
    answers = [sink.checkpoint()["complete"] for _ in range(20)]
    assert time.monotonic() - begun < 10 * 0.5 and answers == [False] * 20
    assert sink.lost_rows == 24  # as far as anybody knows by now
    gate.set()
    sink.close()
    assert sink.lost_rows == 0


def test_a_run_that_cannot_be_joined_is_tried_again_and_what_it_missed_is_counted(tmp_path, monkeypatch):
    sink = DeferredSink(tmp_path / "run")
    (tmp_path / "run").write_text("in the way")
    sink.write(batch(range(8), 0))
    sink.write(batch(range(8), 1))
    assert sum(sink.trouble.faults.values()) == 1  # tried once, the second step did not wait for it
    (tmp_path / "run").unlink()
    monkeypatch.setattr(sink, "_resting_until", 0.0)  # a minute later
    sink.write(batch(range(8), 2))
    sink.close()
    assert sink.is_finished and RunFiles(tmp_path / "run").info["dropped_rows"] == 16
    assert RunFiles(tmp_path / "run").sql("select distinct step from visits")["step"].to_pylist() == [2]


def test_torchrun_s_restarts_are_told(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "3")
    assert store(tmp_path).info["attempts"][0]["restarts"] == 3


@pytest.mark.parametrize("failures", [1, 10**9])
def test_the_last_word_in_run_json_is_tried_again(tmp_path, monkeypatch, failures):
    sink = begin(tmp_path, range(3), pace=Pace(retry_after_s=(0.0, 0.0)))
    sink.checkpoint()
    left, write = [failures], Place.write

    def failing(place, path, data):
        if left[0]:
            left[0] -= 1
            raise OSError("500 Internal Server Error")
        write(place, path, data)

    monkeypatch.setattr(Place, "write", failing)
    sink.close()
    assert sink.is_finished == (failures == 1) == (RunFiles(tmp_path).info["state"] == "finished")
