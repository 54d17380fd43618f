"""The gallery shows what was looked at and found wrong, and nothing else."""

import pytest

from benchmarks.gallery import LOOKED_AT, PAGE, PICTURES, Find, choose_wrong, count_verdicts, fill, write_texts

VERDICTS = {"3": "wrong", "5": "right", "8": "arguable"}
FINDS = [Find("3", "cat", "dog", 0.9), Find("5", "dog", "cat", 0.8), Find("8", "cat", "fox", 0.7)]


def test_only_wrong_labels_are_shown():
    assert [find.id for find in choose_wrong(FINDS, VERDICTS)] == ["3"]
    assert count_verdicts(FINDS, VERDICTS) == (
        "Of the first 3 findings, 1 labels are wrong, 1 are arguable and 1 are right."
    )


def test_a_find_that_was_not_looked_at_stops_it():
    with pytest.raises(SystemExit, match=r"look at these(.|\n)*4: cat -> dog"):
        choose_wrong([*FINDS, Find("4", "cat", "dog", 0.6)], VERDICTS)


def test_texts_become_rows_between_the_markers():
    rows = write_texts(FINDS[:1], ["", "", "", "a | b"])
    page = fill("x\n<!-- gallery set -->\nold\n<!-- end -->\ny\n", {"set": rows})
    assert "old" not in page and "| a \\| b | `cat` | `dog` |" in page and page.endswith("<!-- end -->\ny\n")


def test_the_page_agrees_with_the_verdicts():
    page = PAGE.read_text()
    for verdicts in LOOKED_AT.values():
        finds = [Find(id, "", "", 0.0) for id in verdicts]
        assert count_verdicts(finds, verdicts) in page
    wrong = sum(verdict == "wrong" for verdict in LOOKED_AT["clinc150"].values())
    assert page.partition("<!-- gallery clinc150 -->")[2].count("| `") == 2 * wrong
    assert PICTURES.stat().st_size <= 150_000
