"""``sgoif duplicates`` shows copies, and says so where a run has nothing to compare."""

import numpy as np

from sgoif.evidence import SKETCH_COLUMNS
from tests.cli.runs import NAMES, NASTY, answer, read_output, read_refusal, table, write_run


def with_copies(path, groups=(0, 0, 1, 2, 3, 3), **options):
    rows = np.random.default_rng(0).integers(0, 2**62, (6, 4))[list(groups)]
    found = table([0.1] * 6, [0, 1, 2, 3, 2, 2], [1] * 6, **options)
    sketches = {name: rows[:, i] for i, name in enumerate(SKETCH_COLUMNS)}
    return write_run(path, found | sketches, nearly_same=25)


def test_one_pair_is_spoken_of_as_one(tmp_path):
    """Before, "1 pair of examples are the same or nearly"."""
    run = with_copies(tmp_path / "run", groups=(0, 0, 1, 2, 3, 4))
    assert read_output("duplicates", run).startswith("1 pair of examples is the same or nearly so; the labels differ")


def test_copies_with_differing_labels_come_first(tmp_path):
    run = with_copies(tmp_path / "run")
    lines = read_output("duplicates", run).splitlines()
    assert lines[0].startswith("2 pairs of examples are the same or nearly so; the labels differ in 1, and 0 have one")
    assert "img/000.png" in lines[3] and "cat and dog" in lines[3] and lines[3].rstrip().endswith("same")
    assert "both bird" in lines[4]
    document = answer("duplicates", run, "--top", 1)
    assert document["num_pairs"] == 2
    assert document["pairs"][0]["given_name"] == NAMES[0] and len(document["pairs"]) == 1


def test_pairs_are_written_as_csv(tmp_path):
    run = with_copies(tmp_path / "run", ids=[*NASTY[:2], *"abcd"])
    read_output("duplicates", run, "--csv", tmp_path / "pairs.csv")
    assert (tmp_path / "pairs.csv").read_text(encoding="utf-8-sig").splitlines()[0].startswith("id,other_id,")


def test_a_run_without_sketches_says_what_to_do(tmp_path):
    said = read_refusal("duplicates", write_run(tmp_path / "run", table([0.1] * 4, [0, 1, 2, 3], [1] * 4)))
    assert "no sketches" in said and "sgoif scan" in said
