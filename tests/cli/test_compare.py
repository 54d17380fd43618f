"""``sgoif compare``: findings are followed by id and label from one run to the next."""

import numpy as np
import pytest

from tests.cli.runs import (
    answer,
    golden,
    held_out,
    invoke,
    noisy,
    read_refusal,
    table,
    without_probabilities,
    write_run,
)

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
    assert document["runs"] == {"old": str(old), "new": str(new)}
    kinds = {n: {row["id"]: row["how"] for row in document["findings"][n]} for n in ("resolved", "still", "new")}
    assert kinds["resolved"] == {
        "cleared": "no longer doubted",
        "fixed": "relabelled",
        "swapped": "relabelled",
    }
    assert kinds["still"] == {"stays": "still flagged"}
    assert kinds["new"] == {"swapped": "relabelled", "fine": "newly doubted"}
    assert (document["resolved"], document["still_flagged"], document["new"]) == (3, 1, 2)
    assert (document["in_both"], document["only_in_old"], document["only_in_new"]) == (5, 1, 1)
    assert [row["id"] for row in document["findings"]["gone"]] == ["gone"]
    assert [row["id"] for row in document["findings"]["added"]] == ["added"]
    golden("compare.txt", invoke("compare", old, new, "--top", 1).stdout)


def test_classes_are_matched_by_name_when_their_numbers_change(tmp_path):
    old = write_run(tmp_path / "old", table([0.9], [1], [0], ids=["x"]), names=["cat", "dog"])
    new = write_run(tmp_path / "new", table([0.9], [2], [1], ids=["x"]), names=["ant", "cat", "dog"])
    assert answer("compare", old, new)["still_flagged"] == 1


def test_numbers_and_texts_are_the_same_ids(tmp_path):
    old = write_run(tmp_path / "old", table([0.9, 0.1], [0, 1], [1, 0], ids=np.array([7, 8])))
    new = write_run(tmp_path / "new", table([0.9, 0.9], [0, 1], [1, 0], ids=["7", "8"]))
    document = answer("compare", old, new)
    assert (document["still_flagged"], document["new"]) == (1, 1)
    document = answer("compare", new, new)
    assert (document["resolved"], document["still_flagged"], document["new"]) == (0, 2, 0)


def test_both_runs_need_probabilities(tmp_path):
    run = write_run(tmp_path / "run", noisy())
    other = write_run(tmp_path / "other", without_probabilities(noisy()))
    for pair in ((run, other), (other, run)):
        assert "other' has no probabilities" in read_refusal("compare", *pair)


@pytest.mark.parametrize("shared", [0, 5])
def test_runs_of_different_data_get_no_verdict(tmp_path, shared):
    ids = [f"a/{i}" for i in range(400)]
    other = ids[:shared] + [f"b/{i}" for i in range(400 - shared)]
    old = write_run(tmp_path / "old", noisy((0.3, 0.1, 0, 0), ids=ids))
    new = write_run(tmp_path / "new", noisy((0.0, 0.0, 0, 0), ids=other))
    done = invoke("compare", old, new)
    assert done.exit_code == 2 and not done.stdout
    assert f"{shared} of 400 ids in common" in done.stderr and "a/" in done.stderr
    done = invoke("check", new, "--max-new", 1000, "--against", old)
    assert done.exit_code == 2 and "ids in common" in done.stdout


def test_the_same_positions_in_other_data_get_no_verdict(tmp_path):
    rng = np.random.default_rng(0)
    old, new = (
        write_run(tmp_path / name, table(rng.uniform(0, 1, 400), labels, (labels + 1) % 4, ids=np.arange(400)))
        for name, labels in (("old", rng.integers(0, 4, 400)), ("new", rng.integers(0, 4, 400)))
    )
    assert "have another label" in read_refusal("compare", old, new)


def test_data_that_grew_is_compared_on_what_both_runs_have(tmp_path):
    ids = [f"img/{i}" for i in range(8000)]
    given = np.arange(8000) % 4
    old = write_run(tmp_path / "a", table(np.full(400, 0.9), given[:400], (given[:400] + 1) % 4, ids=ids[:400]))
    new = write_run(tmp_path / "b", table(np.full(8000, 0.9), given, (given + 1) % 4, ids=ids))
    document = answer("compare", old, new)
    assert (document["still_flagged"], document["new"], document["added"]) == (400, 0, 7600)
    done = invoke("check", new, "--max-new", 7599, "--against", old)
    assert done.exit_code == 1 and "7,600 newly flagged, 7,600 of them of new examples" in done.stdout


def test_an_example_that_the_other_run_held_out_is_not_gone(tmp_path):
    held = held_out(60)
    old = write_run(tmp_path / "old", noisy(), holdout=held, trusted=False)
    moved = table([0.1] * 60, held["given_label"], held["suggested_label"], ids=held["id"])
    rest = {name: np.concatenate([column[60:], moved[name]]) for name, column in noisy().items()}
    swapped = held | {name: noisy()[name][:60] for name in held.keys() & noisy().keys()}
    new = write_run(tmp_path / "new", rest, holdout=swapped, trusted=False)
    document = answer("compare", old, new)
    assert (document["in_both"], document["only_in_old"], document["only_in_new"]) == (460, 0, 0)
    assert document["still_flagged"] == 30 and document["gone"] == document["new"] == 0
    assert document["resolved"] == (held["p_mislabeled"] >= 0.5).sum() == 15
