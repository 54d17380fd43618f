"""Decisions of several people become one row per example of the run, whatever the type of its ids."""

import json
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sgoif.errors import SgoifError
from sgoif.files.tables import read_csv_rows
from sgoif.review.decisions import Decision
from sgoif.review.manifest import Loss, class_losses, group_losses, settle, write_manifest
from sgoif.review.merge import merge
from sgoif.store import RunFiles
from tests.cli.runs import NAMES, held_out, noisy, table, write_run


def says(reviewer, id, kind, *labels, given=0, **more):
    return Decision(str(id), given, kind, labels, reviewer=reviewer, **more)


def outcomes(*decisions, canaries=()):
    return {item.id: (item.action, item.labels) for item in merge(decisions, canaries).outcomes}


def test_a_strict_majority_wins_and_all_else_is_disputed():
    merged = merge(
        [
            *(says(who, "all", "relabel", 1) for who in "abc"),
            *(says(who, "most", kind, *labels) for who, kind, *labels in (("a", "drop"), ("b", "drop"), ("c", "keep"))),
            *(says(who, "half", kind) for who, kind in (("a", "drop"), ("b", "keep"))),
            *(says(who, "classes", "relabel", label) for who, label in (("a", 1), ("b", 2))),
            *(says(who, "order", "several", *labels) for who, *labels in (("a", 1, 2), ("b", 2, 1))),
        ]
    )
    assert {item.id: (item.action, item.labels) for item in merged.outcomes} == {
        "all": ("relabel", (1,)),
        "most": ("drop", ()),
        "half": ("unsure", ()),
        "classes": ("unsure", ()),
        "order": ("several", (1, 2)),
    }
    assert [item.id for item in merged.outcomes if item.is_disputed] == ["half", "classes"]
    assert merged.outcomes[1].reviewers == ("a", "b", "c")


def test_a_person_has_one_vote_and_canaries_have_none():
    assert outcomes(says("a", 1, "drop"), says("a", 1, "drop"), says("b", 1, "keep"))["1"] == ("unsure", ())
    assert outcomes(says("a", 1, "drop"), says("a", 1, "keep"), says("b", 1, "keep"))["1"] == ("keep", ())
    assert outcomes(says("a", 1, "drop"), says("a", 2, "drop"), canaries={("1", 0)}) == {"2": ("drop", ())}
    assert merge([says("a", 1, "drop")], {("1", 0): 3}).num_canaries == 1


def written(run, decisions, path, names=NAMES):
    with RunFiles(run) as files:
        settled = settle(files, merge(decisions))
        write_manifest(files, settled, path, names)
        return settled


DECISIONS = (
    says("ann", "img/000.png", "relabel", 1, note="=a dog", decided_at="2026-01-01T00:00:00.000Z", list_id="l1"),
    says("ben", "img/001.png", "drop"),
    says("ben", "img/002.png", "none"),
    says("ben", "img/003.png", "several", 0, 2, content="abc"),
    says("ben", "img/004.png", "unsure"),
    says("ben", "img/005.png", "keep"),
    says("ben", "held/004.png", "relabel", 3),
    says("ben", "img/006.png", "drop", given=2),
    says("ben", "img/6.png", "drop"),
)


def test_every_example_of_the_run_has_one_row(tmp_path):
    run = write_run(tmp_path / "run", noisy(), holdout=held_out(), trusted=False)
    settled = written(run, DECISIONS, tmp_path / "m.parquet")
    assert [item.id for item in settled.changed] == ["img/006.png"]
    assert [item.id for item in settled.strangers] == ["img/6.png"]
    found = pq.read_table(tmp_path / "m.parquet")
    rows = {row["id"]: row for row in found.to_pylist()}
    assert len(rows) == len(found) == 460
    first = rows["img/000.png"]
    assert first == {
        **dict.fromkeys(("labels", "content")),
        **{"id": "img/000.png", "given_label": 0, "given_name": "cat", "label": 1, "label_name": "dog"},
        **{"action": "relabel", "source": "train", "p_mislabeled": 0.98, "reviewers": "ann", "note": "=a dog"},
        "decided_at": "2026-01-01T00:00:00.000Z",
    }
    names = ("action", "label", "label_name", "labels")
    brief = [tuple(rows[f"img/00{i}.png"][name] for name in names) for i in range(7)]
    assert brief[1:4] == [("drop", None, None, None), ("none", None, None, None), ("several", 0, "cat", [0, 2])]
    assert brief[4:] == [(action, 0, "cat", None) for action in ("unsure", "keep", "unreviewed")]
    held = rows["held/004.png"]
    assert (held["action"], held["label"], held["label_name"], held["source"]) == ("relabel", 3, "fox", "holdout")
    assert rows["img/003.png"]["content"] == "abc"
    counts = json.loads(found.schema.metadata[b"sgoif.counts"])
    assert counts == settled.counts() and sum(counts.values()) == 460 and counts["relabel"] == 2
    assert json.loads(found.schema.metadata[b"sgoif.reviewers"]) == ["ann", "ben"]
    assert json.loads(found.schema.metadata[b"sgoif.lists"]) == ["l1"]
    assert found.schema.metadata[b"sgoif.run"].decode() == run


def test_csv_holds_the_same_and_an_older_file_stays_where_writing_fails(tmp_path, monkeypatch):
    run = write_run(tmp_path / "run", noisy(), holdout=held_out(), trusted=False)
    settled = written(run, DECISIONS, tmp_path / "m.csv")
    written(run, DECISIONS, tmp_path / "m.parquet")
    rows = [row for _, row in read_csv_rows(tmp_path / "m.csv", ["id"])]
    expected = pq.read_table(tmp_path / "m.parquet").to_pylist()
    assert [row["id"] for row in rows] == [row["id"] for row in expected]
    assert (rows[0]["note"], rows[0]["label"], rows[3]["labels"]) == ("=a dog", "1", "0|2")
    before = (tmp_path / "m.parquet").read_bytes()
    with RunFiles(run) as files:
        monkeypatch.setattr(files, "batches", lambda *_: iter([pa.table({"id": ["x"]})]))
        with pytest.raises(Exception, match="given_label"):
            write_manifest(files, settled, tmp_path / "m.parquet")
    assert (tmp_path / "m.parquet").read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["m.csv", "m.parquet", "run"]
    with RunFiles(run) as files, pytest.raises(SgoifError, match=r"must end in .parquet or .csv"):
        write_manifest(files, settled, tmp_path / "m.json")


def test_ids_keep_the_type_of_the_run(tmp_path):
    run = write_run(tmp_path / "run", table([0.9, 0.1], [0, 1], [1, 0], ids=np.array([7, 2**40])))
    written(run, [says("a", 2**40, "drop", given=1)], tmp_path / "m.parquet", names=())
    found = pq.read_table(tmp_path / "m.parquet")
    assert found["id"].to_pylist() == [7, 2**40] and found["action"].to_pylist() == ["unreviewed", "drop"]
    assert found["given_name"].to_pylist() == ["0", "1"]


def test_verified_hold_out_labels_are_left_alone(tmp_path):
    run = write_run(tmp_path / "run", noisy(), holdout=held_out(trusted=True))
    settled = written(run, [says("a", "held/000.png", "drop")], tmp_path / "m.parquet")
    assert len(settled.strangers) == 1 and pq.read_table(tmp_path / "m.parquet").num_rows == 400


def test_an_id_of_both_tables_is_the_training_examples(tmp_path):
    held = held_out(count=8, ids=np.arange(8))
    run = write_run(tmp_path / "run", table([0.9] * 8, [0] * 8, [1] * 8, ids=np.arange(8)), holdout=held, trusted=False)
    written(run, [says("a", 0, "drop"), says("a", 5, "drop", given=1)], tmp_path / "m.parquet")
    rows = pq.read_table(tmp_path / "m.parquet").to_pylist()
    dropped = [(row["id"], row["source"]) for row in rows if row["action"] == "drop"]
    assert dropped == [(0, "train"), (5, "holdout")] and len(rows) == 16


def test_classes_and_groups_that_lose_much_are_named(tmp_path):
    run = write_run(tmp_path / "run", noisy(per_class=100))
    ids = [f"img/{i:03d}.png" for i in range(400)]
    lost = [says("a", id, "relabel", 1) for id in ids[:21]] + [says("a", id, "drop", given=1) for id in ids[100:120]]
    with RunFiles(run) as files:
        settled = settle(files, merge([*lost, says("a", ids[30], "several", 0, 1)]))
        assert class_losses(files, settled) == [Loss(0, 21, 100)]  # more than 20%
    own = pa.table({"id": ids, "who": ["ann" if i < 50 else "ben" for i in range(400)]})
    assert group_losses(settled, own, "who") == [Loss("ann", 21, 50)]
