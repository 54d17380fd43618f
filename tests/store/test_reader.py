"""Reading: SQL in place, and files that are damaged, foreign or of another time."""

import json
import shutil
from pathlib import Path

import duckdb
import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st

from sgoif.errors import SgoifError
from sgoif.files.locations import Place
from sgoif.store import ParquetSink, RunFiles, StoreError, merge_evidence
from sgoif.tables import MemoryTables
from tests.store.visits import batch, begin, expected_pairs, pairs, store, write_steps

FIXTURE = Path(__file__).resolve().parents[1] / "fixtures" / "run_v1"
FIRST = "visits/rank-00000/attempt-0000-part-000000.parquet"


@pytest.fixture
def run(tmp_path):
    """Two parts, of steps 0-4 and 5-9."""
    sink = begin(tmp_path / "run", range(5))
    sink.checkpoint()
    write_steps(sink, range(5, 10))
    sink.close()
    return tmp_path / "run"


def test_sql_with_parameters_over_all_tables(run):
    files = RunFiles(run)
    assert files.sql("select count(*) as n from visits where step >= $first", first=5)["n"].to_pylist() == [40]
    for table in ("visits", "holdout", "anchors", "examples"):
        assert files.sql(f"select * from {table}").schema.names == files.table(table).schema.names
        assert files.sql(f"select * from {table}").schema.types == files.table(table).schema.types
    joined = files.sql("select count(*) as n from visits v left join examples e on v.id_hash = e.id_hash")
    assert joined["n"].to_pylist() == [80]


@pytest.mark.parametrize(
    "query, message",
    [
        ("select * from frame", "frame"),
        ("copy visits to 'out.csv'", "one SELECT"),
        ("create table t as select 1", "one SELECT"),
        ("select 1; drop view visits", "one SELECT"),
        ("select nothing from visits", "nothing"),
        ("select * from examples_of", "examples_of"),
        ("selec", "syntax error"),
        ("", "one SELECT"),
        ("select cast('x' as integer)", "Conversion Error"),
        ("select * from visits where step = $missing", "missing|prepared parameter"),
    ],
)
def test_a_query_that_is_wrong_or_would_write_is_refused(run, query, message):
    frame = pa.table({"a": [1]})  # noqa: F841 - a local variable is no table
    with pytest.raises(StoreError, match=message):
        RunFiles(run).sql(query)


def test_a_folder_name_with_signs_that_mean_something_elsewhere(tmp_path):
    folder = tmp_path / "lr=0.1" / "run [1]*?'s #2::x %20"
    files = store(folder, range(3))
    assert pairs(files) == expected_pairs(range(3))
    assert "lr" not in files.sql("select * from visits").column_names


@pytest.mark.parametrize("length", [0, 3, 11, 100, 0.5, 0.99])
def test_a_truncated_part_is_skipped_and_named(run, length):
    data = (run / FIRST).read_bytes()
    (run / FIRST).write_bytes(data[: int(length if length >= 1 else length * len(data))])
    files = RunFiles(run)
    assert pairs(files) == expected_pairs(range(5, 10))
    assert [item.path for item in files.skipped] == [FIRST] and files.skipped[0].reason
    assert files.table("visits").num_rows == 40


def test_a_part_that_vanishes_or_rots_after_opening_is_skipped(run):
    files = RunFiles(run)
    assert len(files.parts("visits")) == 2
    data = bytearray((run / FIRST).read_bytes())
    data[4:3000] = bytes(2996)  # pages, not the footer
    (run / FIRST).write_bytes(bytes(data))
    assert pairs(files) == expected_pairs(range(5, 10))
    assert [item.path for item in files.skipped] == [FIRST]
    files = RunFiles(run)
    assert len(files.parts("visits")) == 2
    (run / FIRST).unlink()
    assert pairs(files) == expected_pairs(range(5, 10))


def test_foreign_files_are_no_parts(run):
    here = (run / FIRST).parent
    (here / "notes.txt").write_text("mine")
    (here / ".attempt-0000-part-000009.parquet.tmp").write_bytes(b"half")
    pq.write_table(pa.table({"id": [1]}), here / "attempt-0000-part-000009.parquet")
    other = pq.read_table(run / FIRST).replace_schema_metadata({"sgoif.schema_version": "2"})
    pq.write_table(other, here / "attempt-0000-part-000010.parquet")
    text = pq.read_table(run / FIRST)
    text = text.set_column(0, "id", pa.array(["x"] * len(text)))
    pq.write_table(text, here / "attempt-0000-part-000011.parquet")
    files = RunFiles(run)
    assert pairs(files) == expected_pairs(range(10))
    reasons = {item.path[-9:-8]: item.reason for item in files.skipped}
    assert len(reasons) == 3
    assert "not given" in reasons["9"] and "version is 2" in reasons["0"] and "string, not int64" in reasons["1"]


@given(seed=st.integers(0, 2**32 - 1), changes=st.integers(1, 40))
@settings(max_examples=12)
def test_fuzzed_parts_never_crash_the_reader(tmp_path_factory, seed, changes):
    rng = np.random.default_rng(seed)
    folder = tmp_path_factory.mktemp("fuzz") / "run"
    shutil.copytree(FIXTURE, folder)
    part = sorted(folder.glob("visits/*/*.parquet"))[0]
    data = np.frombuffer(part.read_bytes(), np.uint8).copy()
    low = 0 if seed % 2 else len(data) - 6000  # all over the file, or in the footer
    data[rng.integers(low, len(data), changes)] = rng.integers(0, 256, changes, dtype=np.uint8)
    part.write_bytes(data.tobytes())
    files = RunFiles(folder)
    total = files.sql("select count(*) as n, sum(harm) as total from visits")["n"].to_pylist()[0]
    assert 0 <= total <= 2**31
    assert files.table("visits").num_rows >= 0
    for bucket in merge_evidence(RunFiles(folder)):
        assert len(bucket["id"]) >= 0


@pytest.mark.parametrize(
    "text, message",
    [
        (None, "no run.json"),
        ("{", "not valid JSON"),
        ("[1]", "names no schema_version"),
        ('{"trusted": true}', "names no schema_version"),
        ('{"schema_version": 2}', "schema version 2, this sgoif reads version 1: open it with"),
        ('{"schema_version": 1}', "damaged"),
        ('{"schema_version": 1, "attempts": [{"attempt": 0}], "id_kind": null}', "damaged"),
        ('{"schema_version": 1, "attempts": [], "id_kind": "float"}', "damaged"),
    ],
)
def test_what_is_no_run_is_refused_with_a_reason(tmp_path, text, message):
    if text is not None:
        (tmp_path / "run.json").write_text(text)
    with pytest.raises(StoreError, match=message):
        RunFiles(tmp_path)


def test_a_file_a_missing_folder_and_an_unknown_protocol_are_refused(run):
    for url in (run / "run.json", run / "nothing", "nosuch://bucket/run", ""):
        with pytest.raises(StoreError):
            RunFiles(url)
    with pytest.raises(StoreError, match="no table 'people'"):
        RunFiles(run).table("people")


def test_a_run_killed_before_its_first_part_is_empty_and_readable(tmp_path):
    ParquetSink(tmp_path)
    files = RunFiles(tmp_path)
    assert files.sql("select * from visits").num_rows == 0 and not files.is_finished
    assert sum(len(bucket["id"]) for bucket in merge_evidence(files)) == 0


def test_the_fixture_of_schema_version_1_loads(tmp_path):
    files = RunFiles(FIXTURE)
    facts = json.loads((FIXTURE / "run.json").read_text())["facts"]
    assert files.info["schema_version"] == 1 and files.is_finished and files.skipped == []
    counts = {table: files.table(table).num_rows for table in ("visits", "holdout", "anchors", "examples")}
    assert counts == facts["rows"]
    # attempt 1 began at step 6: what attempt 0 had written from there on must not come back
    assert files.sql("select attempt, min(step) a, max(step) b from visits group by 1 order by 1").to_pydict() == {
        "attempt": [0, 1],
        "a": [0, 6],
        "b": [5, 11],
    }
    top = files.sql("select id, harm from visits order by harm desc limit 1").to_pylist()[0]
    assert top["id"] == facts["top"]["id"] and top["harm"] == pytest.approx(facts["top"]["harm"])
    merged = {key: value for bucket in merge_evidence(files) for key, value in zip(bucket["id"], bucket["harm"])}
    stored = files.sql("select id, harm from examples")
    assert merged == pytest.approx(dict(zip(stored["id"].to_pylist(), stored["harm"].to_pylist())), nan_ok=True)


@pytest.mark.parametrize(
    "query",
    [
        "select * from read_csv('{file}')",
        "select * from read_text('{file}')",
        "select * from '{file}'",
        "select * from glob('{folder}/*')",
        "select v.id from visits v, read_csv('{file}') c",
        "select id from visits where id in (select column0 from read_csv('{file}'))",
        "with t as (select * from read_parquet('{folder}/other.parquet')) select * from t, examples",
        "select * from read_parquet('{run}/visits/../../other.parquet')",
    ],
)
def test_a_query_reads_no_other_files(tmp_path, query):
    """Of a run of somebody else, in a folder with characters that have a meaning in patterns."""
    files = store(tmp_path / "r*[n]'s", range(3))
    (tmp_path / "secret.csv").write_text("a,b\n1,2\n")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    run = str(tmp_path / "r*[n]'s").replace("'", "''")
    asked = query.format(file=tmp_path / "secret.csv", folder=tmp_path, run=run)
    for _ in range(2):  # before and after the tables were opened
        with pytest.raises(StoreError, match=r"refused|failed"):
            files.sql(asked)
        assert files.sql("select count(*) as n from visits")["n"].to_pylist() == [24]
    for change in ("set enable_external_access = true", "set allowed_directories = ['/']"):
        with pytest.raises(duckdb.Error):
            files._connect().execute(change)


def test_a_query_over_tables_in_memory_reads_no_files(tmp_path):
    (tmp_path / "secret.csv").write_text("a,b\n1,2\n")
    tables = MemoryTables({"examples": {"id": np.arange(3)}})
    assert tables.sql("select sum(id)::int as n from examples where id > $least", least=0)["n"].to_pylist() == [3]
    with pytest.raises(SgoifError, match="refused"):
        tables.sql(f"select * from read_csv('{tmp_path / 'secret.csv'}')")


def test_a_query_that_needs_more_than_memory_still_spills(tmp_path):
    store(tmp_path, *(batch(np.arange(10_000 * step, 10_000 * (step + 1)), step) for step in range(20)))
    files = RunFiles(tmp_path, memory_limit="30MB")
    query = "select count(*) as n from (select id, harm, loss, margin, row_number() over (order by harm) from visits)"
    assert files.sql(query)["n"].to_pylist() == [200_000]


@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.string(), pa.float64(), pa.list_(pa.int64())])
def test_a_part_whose_columns_are_of_other_types_is_named_and_passed_over(tmp_path, kind):
    store(tmp_path, range(3))
    (path,) = (tmp_path / "visits").rglob("*.parquet")
    table = pq.read_table(path)
    place = table.column_names.index("id_hash")
    foreign = table.set_column(place, pa.field("id_hash", kind), pa.nulls(len(table), kind))
    pq.write_table(foreign, path.with_name("attempt-0000-part-000007.parquet"))
    versioned = table.replace_schema_metadata({"sgoif.schema_version": "9" * 5000})
    pq.write_table(versioned, path.with_name("attempt-0000-part-000008.parquet"))
    files = RunFiles(tmp_path)
    assert files.sql("select count(*) as n from visits")["n"].to_pylist() == [24]
    assert [item.path[-9:-8] for item in files.skipped] == ["7", "8"]
    assert "id_hash" in files.skipped[0].reason and "schema version" in files.skipped[1].reason


class Plain(MemoryFileSystem):
    """A filesystem that shows files that are half written, and that DuckDB does not know."""

    protocol = "plain"


def test_files_of_a_plain_filesystem_are_written_beside_and_moved(monkeypatch):
    place = Place(Plain(), "/plain/run", "plain://run")
    for module in ("reader", "writer"):
        monkeypatch.setattr(f"sgoif.store.{module}.place_of", lambda url: place)
    found = store(place.url, range(3)).table("visits", ["id", "step"]).to_pydict()
    assert sorted(zip(found["id"], found["step"])) == sorted(expected_pairs(range(3)))
    assert not [path for path in place.fs.find("/plain") if path.endswith(".tmp")]
    place.fs.rm("/plain", recursive=True)


def test_a_query_reads_no_other_objects_of_a_registered_filesystem():
    fs = fsspec.filesystem("memory")
    fs.pipe_file("/confined/secret.csv", b"a,b\n1,2\n")
    store("memory://confined/run", range(2))
    files = store("memory://confined/run", range(2, 3), start_step=2)
    assert pairs(files) == expected_pairs(range(3))
    for place in ("memory://confined/secret.csv", "/etc/hostname", "/etc/passwd"):
        with pytest.raises(StoreError, match=r"refused|failed"):
            files.sql(f"select * from read_csv('{place}')")
    fs.rm("/confined", recursive=True)
