import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgoif.errors import SgoifError
from sgoif.evidence import Evidence

SIGNALS, CLASSES = ("harm", "worst"), 7
SUMS = ("sum_c", "sum_c2", "sum_cx", "sum_cx2", "sum_c_raw")


def random_visits(seed, count, num_rows=9):
    rng = np.random.default_rng(seed)
    values = np.clip(3 * rng.standard_normal((count, len(SIGNALS))), -6, 6)
    values[rng.random(values.shape) < 0.05] = np.nan
    values[rng.random(values.shape) < 0.05] = np.inf
    confidence = rng.random((count, len(SIGNALS))) * (rng.random((count, 1)) < 0.8)
    return {
        "rows": rng.integers(0, num_rows, count),
        "values": values,
        "confidence": confidence,
        "suggested": rng.integers(-1, CLASSES, count),
        "raw": 100 * rng.standard_normal(values.shape),
    }


def gather(visits, parts, num_rows=9):
    evidence = Evidence(SIGNALS, CLASSES, num_rows=num_rows)
    for part in parts:
        evidence.add(**{name: column[part] for name, column in visits.items()})
    return evidence


def assert_same(one, other):
    np.testing.assert_array_equal(one.column("num_visits"), other.column("num_visits"))
    for name in SUMS:  # float64 sums of at most 100 terms below 600
        np.testing.assert_allclose(one.column(name), other.column(name), rtol=1e-12, atol=1e-11, err_msg=name)
    np.testing.assert_array_equal(one.votes.keys, other.votes.keys)
    np.testing.assert_array_equal(one.votes.counts, other.votes.counts)


@given(seed=st.integers(0, 2**31), count=st.integers(1, 100), cuts=st.integers(0, 5))
def test_any_order_and_any_split_of_the_visits_gives_the_same_evidence(seed, count, cuts):
    visits = random_visits(seed, count)
    rng = np.random.default_rng(seed + 1)
    order = rng.permutation(count)
    parts = np.split(order, np.sort(rng.integers(0, count + 1, cuts)))
    whole, resumed = gather(visits, [np.arange(count)]), Evidence(SIGNALS, CLASSES)
    assert_same(whole, gather(visits, parts))
    resumed.load_state_dict(whole.state_dict())
    assert_same(whole, resumed)


def test_statistics_match_their_definitions():
    visits = random_visits(5, 400, num_rows=3)
    evidence = gather(visits, [np.arange(400)], num_rows=0)
    evidence.reserve(4)  # the last row is not visited
    assert np.isnan(evidence.mean()[3]).all() and evidence.column("num_visits")[3] == 0
    for row in range(3):
        mine = visits["rows"] == row
        assert evidence.column("num_visits")[row] == mine.sum()
        for column, name in enumerate(SIGNALS):
            here = mine & np.isfinite(visits["values"][:, column])
            c, x = visits["confidence"][here, column], visits["values"][here, column]
            mean = np.average(x, weights=c)
            variance = np.average((x - mean) ** 2, weights=c)
            n = c.sum() ** 2 / (c**2).sum()
            assert evidence.mean(name)[row] == pytest.approx(mean)
            assert evidence.effective_visits(name)[row] == pytest.approx(n)
            assert evidence.standard_error(name)[row] == pytest.approx(np.sqrt(variance * n / (n - 1) / n))


def test_visits_without_confidence_count_and_add_nothing():
    evidence = Evidence(SIGNALS, CLASSES)
    evidence.add([0, 0], [[5.0, 5.0], [1.0, 2.0]], confidence=[0.0, 0.5], suggested=[2, 4])
    assert evidence.column("num_visits").tolist() == [2]
    assert evidence.mean().tolist() == [[1.0, 2.0]]
    assert evidence.suggested_label().labels.tolist() == [[4, -1, -1]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rows": [0], "values": [[1.0]]}, "shape"),
        ({"rows": [-1], "values": [[1.0, 1.0]]}, "counted from 0"),
        ({"rows": [0], "values": [[1.0, 1.0]], "confidence": 1.5}, r"\[0, 1\]"),
        ({"rows": [0], "values": [[1.0, 1.0]], "confidence": np.nan}, r"\[0, 1\]"),
        ({"rows": [0], "values": [[1.0, 1.0]], "suggested": [CLASSES]}, "classes in"),
    ],
)
def test_mistakes_are_named(arguments, message):
    with pytest.raises(SgoifError, match=message):
        Evidence(SIGNALS, CLASSES).add(**arguments)


def test_names_that_are_not_there_are_refused():
    with pytest.raises(SgoifError, match="no signal"):
        Evidence(["harm"], 2).mean("worst")
    with pytest.raises(SgoifError, match="no column"):
        Evidence(["harm"], 2).column("sum")


def test_a_vote_weighs_as_much_as_the_largest_confidence_of_its_visit():
    evidence = Evidence(SIGNALS, CLASSES)
    evidence.add([0, 0, 0], np.zeros((3, 2)), confidence=[[1.0, 0.0], [0.4, 0.4], [0.3, 0.3]], suggested=[2, 4, 4])
    assert evidence.suggested_label().labels[0, :2].tolist() == [2, 4]
