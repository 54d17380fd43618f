"""Writing: what goes in comes out, memory is bounded, and no trouble reaches the training."""

import json
import logging
import shutil
import threading
import time
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sgoif.evidence import hash_ids
from sgoif.files.locations import Place
from sgoif.store import ParquetSink, RunFiles, StoreError, merge_evidence, next_attempt
from sgoif.store.writer import Pace
from tests.store.visits import batch, begin, expected_pairs, kill, pairs, store, write_steps

# what a careless reader of ids would stumble over
STRANGE = [
    "",
    "'; drop table visits; --",
    '"quoted"',
    "<script>alert(1)</script>",
    "日本語/猫.jpg",
    "a,b\nc\td",
    "🐈" * 3,
]


@pytest.fixture
def disk(monkeypatch):
    """A disk that fails so often to take a part, and before that waits for its gate; run.json still fits."""
    disk, write = SimpleNamespace(failures=0, gate=None), Place.write

    def write_or_fail(place, path, data):
        if path.endswith(".parquet"):
            if disk.gate is not None:
                disk.gate.wait(20)
            if disk.failures > 0:
                disk.failures -= 1
                raise OSError(28, "No space left on device")
        write(place, path, data)

    monkeypatch.setattr(Place, "write", write_or_fail)
    return disk


NUMBERS, TEXTS = st.integers(-(2**63), 2**63 - 1), st.one_of(st.text(max_size=20), st.sampled_from(STRANGE))


@given(
    ids=st.one_of(st.lists(NUMBERS, min_size=1, max_size=30), st.lists(TEXTS, min_size=1, max_size=30)),
    steps=st.integers(1, 3),
)
@example(ids=[*STRANGE, "x" * 10_000, "short"], steps=2)
@example(ids=["\udc80 undecodable", "a\0b"], steps=1)
@settings(max_examples=6)  # each is a run of its own
def test_ids_and_scores_come_back_as_given(tmp_path_factory, ids, steps):
    folder = tmp_path_factory.mktemp("run")
    sent = [batch(np.array(ids), step, seed=step) for step in range(steps)]
    files = store(folder, *sent)
    assert files.info["faults"] == {} and files.info["dropped_rows"] == 0
    found = files.table("visits").sort_by([("step", "ascending"), ("loss", "ascending")])
    # numpy ends strings at trailing NULs, and UTF-8 has no half surrogates
    plain = [i if isinstance(i, int) else i.rstrip("\0").encode("utf-8", "backslashreplace").decode() for i in ids]
    assert found["id"].to_pylist() == plain * steps
    assert files.sql("select id from visits order by step, loss")["id"].to_pylist() == plain * steps
    np.testing.assert_array_equal(found["id_hash"].to_numpy(), hash_ids(np.array(plain * steps)).view(np.int64))
    for name in ("harm", "worst_anchor", "confidence", "harm_std", "flags"):
        joined = np.concatenate([item.columns[name] for item in sent])
        np.testing.assert_array_equal(found[name].to_numpy(), joined.astype(np.float32), err_msg=name)
    np.testing.assert_array_equal(found["given_label"].to_numpy(), np.concatenate([b.given_labels for b in sent]))


def test_scores_that_are_no_numbers_become_null_and_infinities_stay(tmp_path):
    odd = np.array([np.nan, np.inf, -np.inf, 1e300])
    item = batch(range(4), harm=odd, worst_anchor=odd, flags=odd, loss=np.arange(4.0))
    del item.columns["probe_loss"]  # a signal that this training does not have
    asked = "select harm, worst_anchor, flags, probe_loss from visits order by loss"
    found = store(tmp_path, item).sql(asked).to_pydict()
    assert found == {
        "harm": [None, np.inf, -np.inf, np.inf],
        "worst_anchor": [-1] * 4,
        "flags": [2] * 4,
        "probe_loss": [None] * 4,
    }


def test_one_long_id_does_not_widen_the_others(tmp_path):
    sink = ParquetSink(tmp_path, pace=Pace(part_bytes=1 << 30))
    for step in range(50):  # 400 rows of numpy's width for 10 kB each would be 16 MB
        sink.write(batch([f"{step}-{i}" for i in range(7)] + ["y" * 10_000 if step == 25 else "z"], step))
    sink._finish("checkpoint")
    sink.close()
    assert (tmp_path / "visits/rank-00000/attempt-0000-part-000000.parquet").stat().st_size < 100_000


def test_ids_of_another_kind_are_refused_at_once(tmp_path):
    sink = begin(tmp_path, batch([1, 2]))
    with pytest.raises(StoreError, match="integers, but a block came with strings"):
        sink.write(batch(["a"], 1))
    sink.close()
    wide = np.array([2**63], np.uint64)
    for ids, said in ((["a"], "integers"), ([0.5], "float64"), (wide, "64 signed bits")):  # by the next attempt too
        with pytest.raises(StoreError, match=said):
            ParquetSink(tmp_path).write(batch(ids))


def test_parts_close_by_size_and_are_sorted_by_hash_in_several_row_groups(tmp_path):
    batches = (batch(np.arange(step * 4000, step * 4000 + 4000), step) for step in range(30))
    store(tmp_path, *batches, pace=Pace(part_bytes=2_000_000))
    names = sorted(tmp_path.glob("visits/rank-00000/*.parquet"))
    assert len(names) >= 3
    for name in names[:-1]:
        assert 1_000_000 < name.stat().st_size < 4_000_000
        file = pq.ParquetFile(name)
        hashes = file.read(columns=["id_hash"])["id_hash"].to_numpy()
        assert (np.diff(hashes) >= 0).all()
        assert file.num_row_groups >= 2
        # cut at the same edges in every part: no row group crosses the middle of the range
        place = file.schema_arrow.names.index("id_hash")
        for i in range(file.num_row_groups):
            statistics = file.metadata.row_group(i).column(place).statistics
            assert (statistics.min < 0) == (statistics.max < 0)


def test_run_json_says_what_ran_and_how_it_ended(tmp_path):
    sink = ParquetSink(tmp_path, facts={"seed": 3, "odd": float("nan"), "array": np.arange(2)})
    running = json.loads((tmp_path / "run.json").read_text())
    assert running["state"] == "running" and running["schema_version"] == 1 and running["id_kind"] is None
    write_steps(sink, range(3))
    sink.write_info({"trusted": True})
    answer = sink.checkpoint()
    assert answer == {"attempt": 0, "rank": 0, "step": 3, "parts": 1, "rows": 24, "complete": True}
    assert not RunFiles(tmp_path).is_finished
    sink.close()
    info = RunFiles(tmp_path).info
    assert info["state"] == "finished" and info["id_kind"] == "int" and info["next_step"] == 3
    assert info["facts"] == {"seed": 3, "odd": None, "array": [0, 1], "trusted": True}
    assert {"python", "numpy", "pyarrow", "torch", "sgoif"} <= info["libraries"].keys()
    assert info["hardware"]["cpu_count"] and info["attempts"][0]["start_step"] == 0


def test_a_sink_may_be_written_to_after_it_was_closed(tmp_path):
    sink = begin(tmp_path, range(2))
    sink.close()
    write_steps(sink, range(2, 4))
    sink.close()
    sink.close()
    assert pairs(RunFiles(tmp_path)) == expected_pairs(range(4))


def test_other_tables_keep_extra_columns_and_are_replaced_whole(tmp_path):
    sink = ParquetSink(tmp_path)
    sink.write_table("anchors", {"refresh_step": [4, 4], "anchor": [0, 1], "class": [0, 1], "tau": [0.4, 0.5]})
    sink.write_table("examples", {"id": ["a", "b"], "given_label": [1, 2], "annotator": ["x", None]})
    sink.write_table("examples", {"id": ["c"], "given_label": [3]})
    sink.checkpoint()
    files = RunFiles(tmp_path)
    assert files.sql("select id, given_label, annotator from examples order by id").to_pydict() == {
        "id": ["a", "b", "c"],
        "given_label": [1, 2, 3],
        "annotator": ["x", None, None],
    }
    assert files.table("anchors").column_names == files.sql("select * from anchors").column_names
    sink.close()
    again = ParquetSink(tmp_path, start_step=5)
    again.write_table("examples", {"id": ["d"]})
    assert sorted(RunFiles(tmp_path).table("examples")["id"].to_pylist()) == ["a", "b", "c"]
    again.close()
    files = RunFiles(tmp_path)
    assert files.table("examples")["id"].to_pylist() == ["d"]
    assert files.table("anchors").num_rows == 2  # a log: refresh 4 lies before the new start
    for sink, columns, said in (
        (again, {"given_label": [1]}, "needs a column 'id'"),
        (again, {"id": ["e", "f"], "given_label": [1]}, "one length"),
        (ParquetSink(tmp_path, rank=1), {"id": ["a"]}, "rank 0"),
    ):
        with pytest.raises(StoreError, match=said):
            sink.write_table("examples", columns)


def test_a_hold_out_may_have_ids_of_another_kind_than_the_training(tmp_path):
    sink = begin(tmp_path, batch(["a", "b"]))
    sink.write_table("holdout", {"id": [1, 2]})
    with pytest.raises(StoreError, match="strings, but a block came with integers"):
        sink.write_table("examples", {"id": [1]})
    with pytest.raises(StoreError, match="integers, but a block came with strings"):
        sink.write_table("holdout", {"id": ["h"]})
    sink.close()
    files = RunFiles(tmp_path)
    assert files.skipped == [] and sink.faults == {}
    found = [files.sql(f"select id from {table} order by 1")["id"].to_pylist() for table in ("visits", "holdout")]
    assert found == [["a", "b"], [1, 2]]


@pytest.mark.parametrize("keep, epochs", [("all", [0, 1, 2, 3]), ("last", [3]), ("none", [])])
def test_keep_visits(tmp_path, keep, epochs):
    files = store(tmp_path, range(20), keep_visits=keep)  # five steps an epoch
    assert files.sql("select distinct epoch from visits order by epoch")["epoch"].to_pylist() == epochs
    assert files.info["keep_visits"] == keep


def test_keep_last_leaves_the_epoch_before_one_that_was_not_ended_and_what_a_resume_needs(tmp_path):
    sink = begin(tmp_path, range(7), keep_visits="last")
    sink.checkpoint()  # in epoch 1
    write_steps(sink, range(7, 18))
    sink._finish("info")  # waits for the thread; then the process is killed, in epoch 3
    kill(sink)
    epochs = "select distinct epoch from visits order by epoch"
    assert RunFiles(tmp_path).sql(epochs)["epoch"].to_pylist() == [0, 1, 2]  # epoch 3 was not flushed
    files = store(tmp_path, range(7, 18), keep_visits="last", start_step=7)
    assert pairs(files) == expected_pairs(range(10, 18))


def test_ranks_write_files_of_their_own_and_rank_0_alone_run_json(tmp_path):
    attempt = next_attempt(tmp_path)
    sinks = [ParquetSink(tmp_path, rank=rank, attempt=attempt) for rank in range(3)]
    for step in range(9):
        write_steps(sinks[step % 3], [step])
    sinks[2].close()
    sinks[1].close()
    assert not RunFiles(tmp_path).is_finished
    sinks[0].close()
    assert len(list(tmp_path.glob("visits/rank-0000[012]/attempt-0000-part-000000.parquet"))) == 3
    assert pairs(RunFiles(tmp_path)) == expected_pairs(range(9))
    with pytest.raises(StoreError, match="has an attempt 0 already"):
        ParquetSink(tmp_path, attempt=0)
    assert next_attempt(tmp_path) == 1


def test_a_full_disk_never_raises_into_training_and_is_counted(tmp_path, disk, caplog):
    disk.failures = 10**9
    sink = ParquetSink(tmp_path, pace=Pace(part_bytes=20_000, retry_after_s=(0.0, 0.0), rest_s=1000.0))
    with caplog.at_level(logging.WARNING):
        write_steps(sink, range(400), size=50, num_examples=1000)
        answer = sink.checkpoint()
        sink.close()
    assert not answer["complete"] and answer["parts"] == 0
    assert sink.dropped_rows == 400 * 50
    assert sum(sink.faults.values()) >= 3 and all("No space left" in cause for cause in sink.faults)
    assert len([record for record in caplog.records if record.name.startswith("sgoif.store")]) == 1
    assert RunFiles(tmp_path).info["dropped_rows"] == 400 * 50


def test_a_short_outage_loses_nothing(tmp_path, disk):
    disk.failures = 2
    sink = begin(tmp_path, range(10), pace=Pace(retry_after_s=(0.0, 0.0)))
    assert sink.checkpoint()["complete"]
    assert sum(sink.faults.values()) == 2 and sink.dropped_rows == 0
    assert pairs(RunFiles(tmp_path)) == expected_pairs(range(10))


def test_a_malformed_block_is_dropped_alone(tmp_path):
    malformed = batch(range(4), 1, harm=np.zeros(7, np.float32))
    sink = begin(tmp_path, batch(range(4), 0), malformed, batch(range(4), 2))
    sink.close()
    assert sink.dropped_rows == 4 and sink.trouble.dropped_blocks == 1 and sink.num_rows == 8
    assert RunFiles(tmp_path).sql("select distinct step from visits order by 1")["step"].to_pylist() == [0, 2]


def test_the_queue_is_bounded_and_a_full_one_makes_training_wait(tmp_path, disk):
    disk.gate = threading.Event()
    sink = ParquetSink(tmp_path, pace=Pace(part_bytes=1000, queue_bytes=60_000, patience_s=20.0))
    threading.Timer(0.3, disk.gate.set).start()
    write_steps(sink, range(300), size=100, num_examples=1000)  # 3 MB
    sink.close()
    assert sink.waited_s > 0.2
    assert sink._queue.peak_bytes <= 60_000
    assert (sink.dropped_rows, sink.num_rows) == (0, 30_000)


def test_a_hanging_disk_costs_training_its_patience_once(tmp_path, disk):
    disk.gate = threading.Event()
    sink = ParquetSink(tmp_path, pace=Pace(part_bytes=1000, queue_bytes=60_000, patience_s=0.2, flush_s=0.2))
    write_steps(sink, range(300), size=100, num_examples=1000)
    assert not sink.checkpoint()["complete"]
    sink.close()
    assert sink.waited_s < 2 and 0 < sink.dropped_rows < 30_000
    disk.gate.set()  # lets the thread end


def test_unfinished_files_are_removed_by_the_next_writer_of_the_rank(tmp_path):
    left, other = (tmp_path / f"visits/rank-0000{rank}/.attempt-0000-part-000003.parquet.tmp" for rank in (0, 1))
    for name in (left, other):
        name.parent.mkdir(parents=True)
        name.write_bytes(b"half")
    ParquetSink(tmp_path).close()
    assert not left.exists() and other.exists()
    assert RunFiles(tmp_path).skipped == []


def test_a_folder_that_will_not_do_is_refused_before_the_first_step(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "run.json").write_text(json.dumps({"schema_version": 99, "attempts": []}))
    for url, options, said in (
        (tmp_path / "file", {}, "cannot write a run"),
        (tmp_path, {"keep_visits": "some"}, "keep_visits"),
        ("nosuch://bucket/run", {}, "nosuch"),
        (tmp_path / "later", {}, "schema version 99"),
    ):
        with pytest.raises(StoreError, match=said):
            ParquetSink(url, **options)


def test_a_script_that_ends_without_closing_loses_nothing(tmp_path):
    sink = begin(tmp_path, range(6))
    sink._at_exit()  # what the interpreter calls when the user's exception has ended the script
    files = RunFiles(tmp_path)
    assert pairs(files) == expected_pairs(range(6)) and not files.is_finished


def test_a_sink_that_was_thought_dead_leaves_the_run_to_its_successor(tmp_path):
    dead = begin(tmp_path, range(3))
    dead.checkpoint()
    write_steps(dead, range(3, 6))
    store(tmp_path, range(3, 8), start_step=3)
    dead.close()
    assert any("later attempt" in cause for cause in dead.faults)
    files = RunFiles(tmp_path)
    assert pairs(files) == expected_pairs(range(8)) and files.is_finished


def test_rows_are_on_disk_in_time_without_more_files(tmp_path):
    """A part that is not full is written, and replaced when it has grown."""
    sink = ParquetSink(tmp_path, pace=Pace(flush_every_s=0.1))
    for step in range(20):
        write_steps(sink, [step])
        time.sleep(0.02)
    until = time.monotonic() + 20
    while (RunFiles(tmp_path).info["next_step"] < 20 or sink.lost_rows) and time.monotonic() < until:
        time.sleep(0.05)
    files = RunFiles(tmp_path)
    assert pairs(files) == expected_pairs(range(20)) and not files.is_finished and sink.lost_rows == 0
    assert len(list(tmp_path.rglob("*.parquet"))) == 1
    write_steps(sink, range(20, 24))
    sink.close()
    files = RunFiles(tmp_path)
    assert pairs(files) == expected_pairs(range(24)) and len(files.parts("visits")) == 1
    assert sink.num_rows == 24 * 8 and sink.lost_rows == 0 and sink.faults == {}


def test_a_run_that_goes_on_waits_for_the_writer_that_was_left_unclosed(tmp_path):
    """Both write files of the same names, and one of them found its file moved away by the other."""
    first = begin(tmp_path, range(4))
    second = ParquetSink(tmp_path, start_step=2)
    assert not first._is_writing and first.lost_rows == 0
    write_steps(second, range(2, 6))
    second.close()
    files = RunFiles(tmp_path)
    assert pairs(files) == expected_pairs(range(6)) and files.is_finished and first.faults == second.faults == {}


def test_a_reader_that_holds_an_older_part_sees_all_rows_of_the_longer_one(tmp_path):
    sink = ParquetSink(tmp_path, pace=Pace(flush_every_s=0.0))
    write_steps(sink, range(2), size=5000, num_examples=40_000)
    sink._finish("info")
    until = time.monotonic() + 20
    while not (files := RunFiles(tmp_path)).parts("visits") and time.monotonic() < until:
        time.sleep(0.02)
    groups = files.parts("visits")[0].bounds
    write_steps(sink, range(2, 8), size=5000, num_examples=40_000)
    sink.close()
    assert groups is not None and len(groups[0]) < len(RunFiles(tmp_path).parts("visits")[0].bounds[0])
    seen = sum(bucket["n_visits"].sum() for bucket in merge_evidence(files, buckets=2))
    assert seen == 40_000


def test_deleted_parts_are_counted_as_lost(tmp_path, caplog):
    sink = begin(tmp_path / "run", range(5))
    sink.checkpoint()
    shutil.rmtree(tmp_path / "run")
    write_steps(sink, range(5, 8))
    assert not sink.checkpoint()["complete"]
    sink.close()
    files = RunFiles(tmp_path / "run")
    assert pairs(files) == expected_pairs(range(5, 8)) and files.is_finished
    assert files.info["dropped_rows"] == 40 and sink.dropped_rows == 40
    assert "deleted while it went on, with 40 rows" in str(files.info["faults"])
