import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgoif.errors import SgoifError
from sgoif.evidence import IdIndex
from sgoif.evidence.votes import VoteCounts

texts = st.text("aZ0 \té中😀", max_size=6)


@given(batches=st.one_of(st.lists(st.lists(st.integers(-(2**63), 2**63 - 1))), st.lists(st.lists(texts))))
def test_rows_follow_first_appearance_like_a_dict(batches):
    index, known = IdIndex(), {}
    for batch in batches:
        expected = [known.setdefault(value, len(known)) for value in batch]
        assert index.add(batch).tolist() == expected
    assert len(index) == len(known)
    assert index.ids.tolist() == list(known)
    if known:
        assert index.rows(list(known)).tolist() == list(range(len(known)))


def test_data_frames_give_object_columns():
    assert IdIndex().add(np.array(["b", "a"], dtype=object)).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("ids", "message"),
    [([1.5], "integers or strings"), ([[1]], "vector"), (np.array([2**63], dtype=np.uint64), "64 signed bits")],
)
def test_ids_that_are_none(ids, message):
    with pytest.raises(SgoifError, match=message):
        IdIndex().add(ids)


def test_types_are_not_mixed_and_given_ids_are_unique():
    with pytest.raises(SgoifError, match="integers, but was given strings"):
        IdIndex([1, 2]).rows(["1"])
    with pytest.raises(SgoifError, match="'a' comes more than once"):
        IdIndex(["b", "a", "a"])


@given(seed=st.integers(0, 2**31), num_classes=st.sampled_from([2, 5, 20_000]), count=st.integers(0, 80))
def test_votes_match_a_dense_count(seed, num_classes, count):
    rng = np.random.default_rng(seed)
    rows, classes = rng.integers(0, 6, count), rng.integers(0, min(num_classes, 50), count)
    dense = np.zeros((6, num_classes), dtype=int)
    np.add.at(dense, (rows, classes), 1)
    votes = VoteCounts(num_classes)
    votes.add(rows, classes)
    best = np.argsort(-dense, axis=1, kind="stable")[:, :3]  # equal counts: the smaller class
    counts = np.take_along_axis(dense, best, axis=1)
    found = votes.top(6, top=3)
    np.testing.assert_array_equal(found.counts[:, : best.shape[1]], counts)
    np.testing.assert_array_equal(found.labels[:, : best.shape[1]], np.where(counts > 0, best, -1))
    np.testing.assert_array_equal(found.total, dense.sum(1))


def test_votes_need_a_class_for_each_row():
    with pytest.raises(SgoifError, match="one length"):
        VoteCounts(3).add([0], [1, 2])
