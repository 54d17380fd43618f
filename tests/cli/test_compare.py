"""``sgoif compare``: findings are followed by id and label from one run to the next."""

import numpy as np
import pytest

from tests.cli.runs import answer, golden, invoke, noisy, table, write_run

OLD = {
    "stays": (0.9, 0),
    "cleared": (0.9, 0),
    "fixed": (0.9, 0),
    "gone": (0.9, 0),
    "swapped": (0.9, 0),
    "fine": (0.1, 1),
}
NEW = {
    "stays": (0.8, 0),
    "cleared": (0.2, 0),
    "fixed": (0.1, 1),
    "swapped": (0.7, 2),
    "fine": (0.6, 1),
    "added": (0.95, 3),
}


def rows(found, order=None):
    ids = sorted(found, reverse=order == "reversed")
    p, given = zip(*(found[ident] for ident in ids), strict=True)
    return table(p, given, (np.array(given) + 1) % 4, ids=ids)


def test_each_finding_is_resolved_remains_or_is_new(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    old, new = write_run("old", rows(OLD)), write_run("new", rows(NEW, "reversed"))
    document = answer("compare", old, new)
    kinds = {name: {row["id"]: row["how"] for row in found} for name, found in document["findings"].items()}
    assert kinds["resolved"] == {
        "cleared": "no longer doubted",
        "fixed": "relabelled",
        "gone": "gone",
        "swapped": "relabelled",
    }
    assert kinds["still"] == {"stays": "still flagged"}
    assert kinds["new"] == {"added": "new example", "swapped": "relabelled", "fine": "newly doubted"}
    assert (document["resolved"], document["still_flagged"], document["new"]) == (4, 1, 3)
    golden("compare.txt", invoke("compare", old, new, "--top", 2).stdout)


def test_a_run_compared_with_itself_shows_nothing_new(tmp_path):
    run = write_run(tmp_path / "run", noisy((0.3, 0.1, 0.0, 0.0)))
    document = answer("compare", run, run)
    assert (document["resolved"], document["still_flagged"], document["new"]) == (0, 40, 0)


def test_classes_are_matched_by_name_when_their_numbers_change(tmp_path):
    old = write_run(tmp_path / "old", table([0.9], [1], [0], ids=["x"]), names=["cat", "dog"])
    new = write_run(tmp_path / "new", table([0.9], [2], [1], ids=["x"]), names=["ant", "cat", "dog"])
    assert answer("compare", old, new)["still_flagged"] == 1


def test_numbers_and_texts_are_the_same_ids(tmp_path):
    old = write_run(tmp_path / "old", table([0.9, 0.1], [0, 1], [1, 0], ids=np.array([7, 8])))
    new = write_run(tmp_path / "new", table([0.9, 0.9], [0, 1], [1, 0], ids=["7", "8"]))
    document = answer("compare", old, new)
    assert (document["still_flagged"], document["new"]) == (1, 1)


def test_both_runs_need_probabilities(tmp_path):
    run = write_run(tmp_path / "run", noisy())
    bare = {name: column for name, column in noisy().items() if not name.startswith("p_mislabeled")}
    other = write_run(tmp_path / "other", bare)
    for pair in ((run, other), (other, run)):
        done = invoke("compare", *pair)
        assert done.exit_code == 2 and "other' was not calibrated" in done.stderr


@pytest.mark.parametrize("count", [200_000])
def test_many_rows_are_compared_in_seconds(tmp_path, count):
    rng = np.random.default_rng(0)
    ids = np.arange(count)
    p, later = rng.uniform(0, 0.52, count), rng.uniform(0, 0.52, count)
    old = write_run(tmp_path / "old", table(p, ids % 4, (ids + 1) % 4, ids=ids))
    new = write_run(tmp_path / "new", table(later, ids % 4, (ids + 1) % 4, ids=ids))
    document = answer("compare", old, new)
    was, now = p >= 0.5, later >= 0.5
    assert document["resolved"] == (was & ~now).sum()
    assert document["still_flagged"] == (was & now).sum()
    assert document["new"] == (now & ~was).sum()
