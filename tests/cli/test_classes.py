"""``sgoif classes`` with classes that are many, unnamed, never given or never held out."""

import time
import tracemalloc

import numpy as np

import sgoif
from tests.cli.runs import answer, invoke, noisy, table, write_run


def test_ten_thousand_classes_take_seconds_and_no_dense_table(tmp_path):
    count = 10_000
    given = np.repeat(np.arange(count), 3)
    p = np.where(np.arange(len(given)) % 3 == 0, 0.9, 0.01)
    run = write_run(
        tmp_path / "run",
        table(p, given, (given + 7) % count, ids=np.arange(len(given))),
        names=[f"class {i}" for i in range(count)],
    )
    invoke("classes", run)
    tracemalloc.start()
    start = time.process_time()
    done = invoke("classes", run)
    seconds, (_, peak) = time.process_time() - start, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert done.exit_code == 0, done.stderr
    assert len(done.stdout.splitlines()) == count + 4 and "class 9999" in done.stdout
    # a dense table of classes squared has 800 MB; 1.6 s and 40 MB here, where looking up names took 22 s
    assert peak < 200e6 and seconds < 10, (peak, seconds)


def test_a_class_that_nobody_was_given_may_be_suggested(tmp_path):
    given = np.repeat([0, 1], 40)
    run = write_run(
        tmp_path / "run", table([0.9] * 80, given, np.where(given == 0, 9, 8)), names=[], held_out_per_class=[50] * 10
    )
    rows = {row["class"]: row["confused_with"] for row in answer("classes", run)["classes"]}
    assert (rows[0], rows[1]) == ("9", "8")


def test_numbers_of_classes_that_are_huge_take_no_memory(tmp_path):
    given = np.repeat([0, 2**31 - 1], 40)
    run = write_run(tmp_path / "run", table([0.9] * 80, given, given[::-1]), names=[], held_out_per_class=[50])
    rows = {row["class"]: row["confused_with"] for row in answer("classes", run)["classes"]}
    assert rows == {0: "2147483647", 2147483647: "0"}
    done = invoke("apply", run, "--relabel-from", "0.8", "--out", tmp_path / "m.csv")
    assert done.exit_code == 0, done.stderr


def test_a_class_without_a_number_of_held_out_examples_is_not_judged(tmp_path):
    run = write_run(tmp_path / "run", noisy((0.3, 0.3, 0.0, 0.0)), held_out_per_class=[50, 50])
    found = sgoif.load(run).class_issues().to_pydict()
    verdicts = dict(zip(found["name"], found["verdict"], strict=True))
    assert verdicts["cat"] == "mislabelled" and verdicts["bird"] == verdicts["fox"] == "too few to judge"
    told = {row["name"]: row["verdict"] for row in answer("classes", run)["classes"]}
    assert told == verdicts


def test_tables_of_a_run_name_classes_beside_their_numbers(tmp_path):
    run = sgoif.load(write_run(tmp_path / "run", noisy()))
    first = run.label_issues(top=1).to_pylist()[0]
    assert (first["given_label"], first["given_name"], first["suggested_name"]) == (0, "cat", "dog")
    shown = answer("issues", run.url, "--top", 1)["issues"][0]
    assert (shown["given_name"], shown["suggested_name"]) == ("cat", "dog")
    bare = sgoif.load(write_run(tmp_path / "bare", noisy(), names=[]))
    first = bare.label_issues(top=1).to_pylist()[0]
    assert first["given_label"] == 0 and first["given_name"] is None and first["suggested_name"] is None
    assert answer("issues", bare.url, "--top", 1)["issues"][0]["given_name"] is None
