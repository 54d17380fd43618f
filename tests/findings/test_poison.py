"""How far an example stands towards the queries: Fisher's discriminant by its definition, and what does not turn it."""

import numpy as np
import pytest

from sgoif.errors import SgoifError
from sgoif.findings.poison import RELATIVE_DAMPING, Contrast, poison_table


@pytest.fixture
def members():
    rng = np.random.default_rng(0)
    return 100 + rng.normal(size=(203, 6)) @ rng.normal(size=(6, 6))


def fisher(members, others):
    """By definition: 0 at the mean of the members; 1 where one of the others stands on a line drawn by the rest."""
    apart = others.mean(0) - members.mean(0)
    scatter = np.cov(members.T, bias=True) * len(members) + np.cov(others.T, bias=True) * len(others)
    covariance = scatter / (len(members) + len(others))
    damped = covariance + RELATIVE_DAMPING * np.trace(covariance) / members.shape[1] * np.eye(members.shape[1])
    direction = np.linalg.inv(damped) @ apart
    left_out = [np.delete(others, j, 0).mean(0) - members.mean(0) for j in range(len(others))]
    unit = np.mean(
        [(row - members.mean(0)) @ np.linalg.inv(damped) @ line for row, line in zip(others, left_out, strict=True)]
    )
    return lambda rows: ((rows - members.mean(0)) @ direction / unit).clip(0, 1)


def test_the_score_is_fishers_discriminant_between_class_and_queries(members):
    queries = members[:4] + 50
    contrast = Contrast.between(members, queries)
    expected = fisher(members, queries)
    assert (expected(members) < 0.5).all()  # nobody joins the queries
    np.testing.assert_allclose(contrast.score(members), expected(members), atol=1e-9)
    middle = members.mean(0)
    apart = queries.mean(0) - middle
    cosines = [(row - middle) @ apart / np.linalg.norm(row - middle) / np.linalg.norm(apart) for row in members]
    np.testing.assert_allclose(contrast.similarity(members), cosines, atol=1e-9)


def test_those_who_stand_with_the_queries_join_them(members):
    planted = members[:60] + 30
    queries = planted[:3] + 10  # of a kind of their own
    everyone = np.concatenate([members, planted])
    contrast = Contrast.between(everyone, queries)
    expected = fisher(members, np.concatenate([queries, planted]))
    np.testing.assert_allclose(contrast.score(everyone), expected(everyone), atol=1e-9)
    assert (contrast.score(everyone) >= 0.5).sum() == 60


def test_most_of_a_class_may_be_poisoned(members):
    everyone = np.concatenate([members[:40], members[40:] + 60])
    contrast = Contrast.between(everyone, members[:5] + 60)
    np.testing.assert_array_equal(contrast.score(everyone) >= 0.5, np.arange(203) >= 40)


def test_a_lone_query_is_the_unit_itself(members):
    query = members[:1] + 50
    assert Contrast.between(members, query).score(query).tolist() == pytest.approx([1.0])


def test_queries_that_share_nothing_are_measured_by_their_own_line():
    members = np.vstack([np.eye(4), -np.eye(4)])
    opposite = 20 * np.array([[1.0, 0.2, 0, 0], [-1.0, 0.2, 0, 0]])
    assert Contrast.between(members, opposite).score(opposite).tolist() == pytest.approx([1.0, 1.0])
    assert not (Contrast.between(members, opposite).score(members) >= 0.5).any()


def test_queries_like_the_class_are_refused():
    with pytest.raises(SgoifError, match="no difference"):
        Contrast.between(np.ones((5, 3)), np.ones((2, 3)))


def test_the_table_puts_the_most_suspicious_first():
    scores = {"score": np.array([0.1, 1.0, 0.5, 1.0]), "similarity": np.array([0.0, 0.8, 0.1, 0.9])}
    table = poison_table({"id": np.array(["a", "b", "c", "d"]), **scores}, top=3)
    assert table["id"].tolist() == ["d", "b", "c"]  # equal scores: the most similar
    assert table["is_suspect"].tolist() == [True, True, True]
    assert table["similarity"].tolist() == [0.9, 0.8, 0.1]
