"""``sgoif classes`` with classes that are many, unnamed, never given or never held out."""

import tracemalloc

import numpy as np

import sgoif
from tests.cli.runs import answer, noisy, read_output, table, write_run


def test_ten_thousand_classes_take_no_dense_table(tmp_path):
    count = 10_000
    given = np.repeat(np.arange(count), 3)
    p = np.where(np.arange(len(given)) % 3 == 0, 0.9, 0.01)
    examples = table(p, given, (given + 7) % count, ids=np.arange(len(given)))
    run = write_run(tmp_path / "run", examples, names=[f"class {i}" for i in range(count)])
    tracemalloc.start()
    shown = read_output("classes", run)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(shown.splitlines()) == count + 4 and "class 9999" in shown
    assert peak < 200e6, peak  # a dense table of classes squared has 800 MB; 40 MB here


def confusions(folder, given, suggested, held_out_per_class):
    """What each class is confused with where classes have no names and all labels are doubted."""
    found = table([0.9] * 80, given, suggested)
    run = write_run(folder / "run", found, names=[], held_out_per_class=held_out_per_class)
    return {row["class"]: row["confused_with"] for row in answer("classes", run)["classes"]}


def test_a_class_that_nobody_was_given_may_be_suggested(tmp_path):
    found = confusions(tmp_path, np.repeat([0, 1], 40), np.repeat([9, 8], 40), [50] * 10)
    assert (found[0], found[1]) == ("9", "8")


def test_numbers_of_classes_that_are_huge_take_no_memory(tmp_path):
    given = np.repeat([0, 2**31 - 1], 40)
    assert confusions(tmp_path, given, given[::-1], [50]) == {0: "2147483647", 2147483647: "0"}
    read_output("apply", tmp_path / "run", "--relabel-from", "0.8", "--out", tmp_path / "m.csv")


def test_a_class_without_a_number_of_held_out_examples_is_not_judged(tmp_path):
    run = write_run(tmp_path / "run", noisy((0.3, 0.3, 0.0, 0.0)), held_out_per_class=[50, 50])
    found = sgoif.load(run).class_issues().to_pydict()
    verdicts = dict(zip(found["name"], found["verdict"], strict=True))
    assert verdicts["cat"] == "mislabelled" and verdicts["bird"] == verdicts["fox"] == "too few to judge"
    told = {row["name"]: row["verdict"] for row in answer("classes", run)["classes"]}
    assert told == verdicts


def test_a_run_without_names_has_none_in_its_tables(tmp_path):
    bare = sgoif.load(write_run(tmp_path / "bare", noisy(), names=[]))
    first = bare.label_issues(top=1).to_pylist()[0]
    assert first["given_label"] == 0 and first["given_name"] is None and first["suggested_name"] is None
    assert answer("issues", bare.url, "--top", 1)["issues"][0]["given_name"] is None
