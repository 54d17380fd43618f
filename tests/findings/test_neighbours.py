"""Neighbours: the nearest examples are those of a full comparison, and harm is ordered as exact gradients order it."""

import numpy as np
import pytest

from sgoif.errors import SgoifError
from sgoif.evidence import LIKENESS_COLUMNS
from sgoif.findings.neighbours import find_harmed_holdout, has_likeness, nearest_examples
from sgoif.tables import MemoryTables


def random_words(count, seed=0):
    return np.random.default_rng(seed).integers(-(2**63), 2**63 - 1, (count, 4), dtype=np.int64)


def columns(words, ids=None, **more):
    count = len(words)
    table = {"id": np.arange(count) if ids is None else np.asarray(ids), "given_label": np.arange(count) % 7}
    return table | dict(zip(LIKENESS_COLUMNS, words.T, strict=True)) | more


def ask(words, ids, **settings):
    return nearest_examples(MemoryTables({"examples": columns(words)}).sql, ids, **settings)


def all_bits(words):
    bits = np.bitwise_count((words[:, None] ^ words[None]).view(np.uint64)).sum(2).astype(int)
    np.fill_diagonal(bits, 999)
    return bits


@pytest.mark.parametrize("slice_size", [8192, 100, 7])
def test_neighbours_are_those_of_a_full_comparison(monkeypatch, slice_size):
    monkeypatch.setattr("sgoif.findings.neighbours._SLICE", slice_size)
    monkeypatch.setattr("sgoif.findings.neighbours._ASKED", 3)
    words, asked = random_words(600), [5, 599, 0, 77]
    found = ask(words, asked, count=4)
    assert found.column_names == ["id", "other_id", "given_label", "bits", "rank"]
    assert found["id"].to_pylist() == np.repeat(asked, 4).tolist()
    assert found["rank"].to_pylist() == [1, 2, 3, 4] * 4
    bits = all_bits(words)
    for row in found.to_pylist():
        assert bits[row["id"], row["other_id"]] == row["bits"] == np.sort(bits[row["id"]])[row["rank"] - 1]
        assert row["given_label"] == row["other_id"] % 7


def test_an_example_is_not_its_own_neighbour_among_many_equal_ones():
    words = np.repeat(random_words(1), 50, axis=0)
    found = ask(words, range(50), count=6)
    assert len(found) == 300
    assert all(row["id"] != row["other_id"] and row["bits"] == 0 for row in found.to_pylist())


def test_examples_without_likeness_are_neither_asked_nor_found():
    words, names = random_words(10), np.array([f"it's/{i}.png" for i in range(10)])
    words[3] = 0
    sql = MemoryTables({"examples": columns(words, names)}).sql
    found = nearest_examples(sql, [names[2], names[3], "unknown"], count=20)
    assert set(found["id"].to_pylist()) == {names[2]}
    assert set(found["other_id"].to_pylist()) == set(names) - {names[2], names[3]} and len(found) == 8
    assert len(nearest_examples(sql, [])) == 0


def test_of_too_many_examples_a_sample_is_looked_through():
    words = random_words(4000)
    found = ask(words, range(40), count=30, most=1000)
    others = set(found["other_id"].to_pylist())
    assert others == set(ask(words, range(40), count=30, most=1000)["other_id"].to_pylist())
    everyone = ask(words, [0], count=3999, most=1000)
    assert 850 < len(everyone) < 1150  # binomial: 1000 ± 27
    assert others <= set(everyone["other_id"].to_pylist()) | {0}


def test_a_run_without_likeness_says_what_to_do():
    bare = MemoryTables({"examples": {"id": np.arange(3), "given_label": np.zeros(3, int)}})
    empty = MemoryTables({"examples": columns(np.zeros((3, 4), np.int64))})
    for tables in (bare, empty):
        assert not has_likeness(tables.sql)
        for question in (nearest_examples, find_harmed_holdout):
            with pytest.raises(SgoifError, match="Watch, audit or scan again"):
                question(tables.sql, [1])
    assert has_likeness(MemoryTables({"examples": columns(random_words(3))}).sql)


def harm_tables(suggested, p_given, posterior, held_labels, words):
    posterior = np.fromiter((np.asarray(row, np.float32) for row in posterior), object, len(posterior))
    count = len(words) - len(posterior)
    examples = columns(words[:count], suggested_label=np.asarray(suggested), p_given=np.asarray(p_given, float))
    held = columns(words[count:], [f"h{i}" for i in range(len(posterior))], posterior=posterior)
    return MemoryTables({"examples": examples, "holdout": held | {"given_label": np.asarray(held_labels)}})


def test_who_is_harmed_is_worked_out_by_hand():
    words = np.repeat(random_words(1), 5, axis=0)  # all alike: the cosine is one
    tables = harm_tables(
        [1, -1], [0.2, np.nan], [[0.1, 0.7, 0.2], [0.9, 0.05, 0.05], [0.3, 0.3, 0.4]], [1, 0, 2], words
    )
    found = find_harmed_holdout(tables.sql, [0, 1]).to_pylist()
    # 0 is given class 0 and might be 1: it harms h0, of class 1, by 0.8 · ((0.1 - 0) - (0.7 - 1)); it helps h1
    assert [(row["id"], row["other_id"], row["rank"]) for row in found] == [(0, "h0", 1)]
    assert found[0]["harm"] == pytest.approx(0.8 * 0.4)
    assert found[0]["given_label"] == 1


def test_harm_is_that_of_a_step_at_the_head_with_features_as_alike_as_their_signs():
    rng, given, suggested = np.random.default_rng(0), np.arange(4), [1, 2, 3, 0]
    p_given = np.array([0.1, 0.5, 0.9, 0.3])
    words, posterior, labels = random_words(12), rng.dirichlet(np.ones(4), 8), rng.integers(0, 4, 8)
    delta = posterior - np.eye(4)[labels]
    likeness = (1 + np.cos(np.pi * all_bits(words)[:4, 4:] / 256)) / 2
    expected = -(1 - p_given)[:, None] * likeness * (delta[:, suggested] - delta[:, given]).T
    tables = harm_tables(suggested, p_given, posterior, labels, words)
    found = find_harmed_holdout(tables.sql, given, count=8).to_pylist()
    assert len(found) == (expected > 0).sum()
    for row in found:
        mine = expected[row["id"]]
        assert row["harm"] == pytest.approx(mine[int(row["other_id"][1:])], rel=1e-5)
        assert row["harm"] == pytest.approx(np.sort(mine)[-row["rank"]], rel=1e-5)


def test_a_run_that_judged_no_hold_out_has_an_empty_answer():
    words = random_words(4)
    examples = columns(words, suggested_label=np.ones(4, int), p_given=np.full(4, 0.5))
    for tables in ({"examples": examples}, {"examples": examples, "holdout": {"id": np.arange(2)}}):
        found = find_harmed_holdout(MemoryTables(tables).sql, [1, 2])
        assert found.column_names == ["id", "other_id", "given_label", "harm", "rank"]
        assert len(found) == 0
