"""A run killed at any moment, on disk and on S3: readable, resumed, nothing counted twice."""

import pytest

from benchmarks.s3 import local_s3
from benchmarks.store import kill_and_resume
from sgoif.store import ParquetSink, RunFiles, StoreError, merge_evidence, write_examples
from sgoif.store.writer import Pace
from tests.store.visits import begin, expected_pairs, kill, pairs, store, write_steps


def test_a_killed_run_is_readable_and_goes_on_from_its_checkpoint(tmp_path):
    # a benchmark kills 20 times
    seen = kill_and_resume(str(tmp_path / "run"), tmp_path / "state.json", kills=1, longest_s=0.5)
    assert seen["visits"] > 0


def test_what_a_resumed_run_repeats_is_not_counted_twice(tmp_path):
    first = begin(tmp_path, range(10))
    first.write_table("anchors", {"refresh_step": [0, 4, 8], "anchor": [0, 0, 0]})
    saved = first.checkpoint()["step"]
    write_steps(first, range(10, 14))
    first._finish("checkpoint")  # these reached the disk; the user's own checkpoint did not
    kill(first)
    assert pairs(RunFiles(tmp_path)) == expected_pairs(range(14))
    # resumed twice from the same checkpoint, and then from the start
    second = begin(tmp_path, range(10, 12), start_step=saved)
    second._finish("checkpoint")
    kill(second)
    assert pairs(RunFiles(tmp_path)) == expected_pairs(range(12))
    files = store(tmp_path, range(10, 20), start_step=saved)
    assert pairs(files) == expected_pairs(range(20))
    assert files.table("visits").num_rows == 160
    assert files.table("anchors")["refresh_step"].to_pylist() == [0, 4, 8]
    assert sum(bucket["n_visits"].sum() for bucket in merge_evidence(files, buckets=2)) == 160
    assert [item["start_step"] for item in files.info["attempts"]] == [0, 10, 10]
    write_examples(files)
    again = begin(tmp_path, range(2))
    again.checkpoint()
    files = RunFiles(tmp_path)
    assert pairs(files) == expected_pairs(range(2))
    assert files.table("anchors").num_rows == 0 and files.table("examples").num_rows == 0
    again.close()


@pytest.fixture(scope="module")
def bucket():
    pytest.importorskip("moto", reason="needs moto[server], an S3 on this machine")
    pytest.importorskip("s3fs", reason="needs s3fs")
    with local_s3() as url:
        yield url


def test_a_run_on_s3(bucket):
    url = f"{bucket}/some/run"
    with pytest.raises(StoreError, match=r"no run\.json"):
        RunFiles(url)
    sink = begin(url, range(6), pace=Pace(part_bytes=5_000))
    sink.checkpoint()
    write_steps(sink, range(6, 9))
    sink._finish("checkpoint")
    kill(sink)
    resumed = begin(url, range(6, 10), start_step=6)
    resumed.write_table("holdout", {"id": [1], "posterior": [[0.5, 0.5]]})
    resumed.close()
    assert resumed.faults == {}
    files = RunFiles(url)
    assert pairs(files) == expected_pairs(range(10)) and files.skipped == []
    assert files.table("visits").num_rows == 80
    assert write_examples(files) == 40
    assert files.sql("select sum(n_visits)::int as n from examples")["n"].to_pylist() == [80]


def test_an_s3_that_is_not_there_is_refused_before_the_first_step(bucket):
    with pytest.raises(StoreError, match="cannot write a run"):
        ParquetSink("s3://no-such-bucket/run", pace=Pace(retry_after_s=()))


@pytest.mark.slow
def test_a_run_on_s3_killed_at_any_moment(bucket, tmp_path):
    kill_and_resume(f"{bucket}/killed", tmp_path / "state.json", kills=3, longest_s=2.0)
