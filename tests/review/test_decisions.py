"""Decisions survive the way through a file, and mistakes in it are told with their line."""

import re

import pytest

from sgoif.errors import SgoifError
from sgoif.review.decisions import Decision, by_example, find_past, latest, read_decisions, write_decisions

NAMES = ["cat", "dog", "bird", "7"]


def test_columns_are_those_that_the_page_writes(tmp_path):
    path = tmp_path / "decisions.csv"
    when = "2026-01-02T03:04:05.000Z"
    item = Decision("=1", 0, "several", (1, 2), "a, b", "Ann", when, "abc", "l1", "cat", "dog|bird")
    write_decisions([item], path)
    assert path.read_text().splitlines() == [
        "id,given_label,given_name,decision,label,label_name,note,reviewer,decided_at,content,list",
        """'=1,0,cat,several,1|2,dog|bird,"a, b",Ann,2026-01-02T03:04:05.000Z,abc,l1""",
    ]
    assert read_decisions(path, NAMES, 4) == [item]


def read(tmp_path, text):
    path = tmp_path / "ann.csv"
    path.write_text(text, encoding="utf-8")
    return read_decisions(path, NAMES, 4)


def test_files_edited_by_hand_are_understood(tmp_path):
    found = read(
        tmp_path,
        "id;given_label;given_name;decision;label;label_name;extra\n"
        "a;0;cat; Relabel ;;DOG;x\n"
        "b;0;cat;relabel;2.0;cat;\n"  # the number counts
        "c;;cat;several;;dog|bird;\n"
        "d;0;;relabel;bird;;\n"
        "e;0;cat;drop;1;dog;\n"  # what belongs to no class is passed over
        "f;0;cat;;;;\n"  # not decided
        "g;1;dog;relabel;1;;\n"  # to what it is
        "h;0;cat;relabel;3;;\n",  # the number, though a class is called 7
    )
    assert {item.id: item.answer for item in found} == {
        **{id: ("relabel", (label,)) for id, label in (("a", 1), ("b", 2), ("d", 2), ("h", 3))},
        **{"c": ("several", (1, 2)), "e": ("drop", ()), "g": ("keep", ())},
    }
    assert [item.given_label for item in found] == [0] * 5 + [1, 0] and {item.reviewer for item in found} == {"ann"}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("a,0,remove,", "a decision is one of keep, relabel, drop, unsure, several, none, got 'remove'"),
        ("a,9,keep,", "there is no class '9'; there are cat, dog, bird, 7"),
        ("a,0,relabel,", "relabel needs a class"),
        ("a,0,relabel,wolf", "there is no class 'wolf'"),
        ("a,0,several,1", "several needs at least two classes"),
        ("a,0,several,1|1", "several needs at least two classes"),
    ],
)
def test_mistakes_are_told_with_their_line(tmp_path, row, said):
    with pytest.raises(SgoifError, match=rf"line 3 of .*{re.escape(said)}"):
        read(tmp_path, f"id,given_label,decision,label\nb,0,keep,\n{row}\n")


def test_a_file_must_be_one_of_decisions(tmp_path):
    with pytest.raises(SgoifError, match="no column given_label and no decision"):
        read(tmp_path, "id,label\na,1\n")
    with pytest.raises(SgoifError, match="is no file"):
        read_decisions(tmp_path / "none.csv", NAMES, 4)


def test_the_last_decision_of_a_person_counts(tmp_path):
    found = read(
        tmp_path,
        "id,given_label,decision,reviewer,decided_at\n"
        "a,0,keep,ann,2026-01-02T10:00:00Z\n"
        "a,0,drop,ann,2026-01-02T09:59:59.5+00:00\n"  # earlier, though below
        "a,1,drop,ann,2026-01-01T00:00:00Z\n"  # of another label
        "a,0,drop,ben,2026-01-01T00:00:00Z\n"
        "b,0,keep,ann,02/01/2026 10:00\n"  # a spreadsheet's; order decides
        "b,0,drop,ann,02/01/2026 09:00\n",
    )
    assert [(item.id, item.given_label, item.reviewer, item.decision) for item in found] == [
        ("a", 0, "ann", "keep"),
        ("a", 1, "ann", "drop"),
        ("a", 0, "ben", "drop"),
        ("b", 0, "ann", "drop"),
    ]
    assert found[0].decided_at == "2026-01-02T10:00:00.000Z"
    assert latest([found[0], found[0]]) == [found[0]]


def test_a_decision_is_find_past_while_label_and_picture_are_the_same():
    early = Decision("7", 0, "keep", decided_at="2026-01-01T00:00:00.000Z", content="x")
    late = Decision("7", 0, "drop", decided_at="2026-01-02T00:00:00.000Z", content="y", reviewer="ben")
    known = by_example([late, early])
    assert find_past(known, 7, 0, "x") == early
    assert find_past(known, 7, 0, "") == late
    assert find_past(known, 7, 0, "z") is None
    assert find_past(known, 7, 1, "x") is None
    assert find_past(known, "8", 0, "x") is None
    assert find_past(by_example([Decision("7", 0, "keep")]), 7, 0, "x") is not None
