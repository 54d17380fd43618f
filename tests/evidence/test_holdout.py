import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgoif.errors import SgoifError
from sgoif.evidence import SIGNALS, Holdout, Snapshot, crossfit
from sgoif.evidence.crossfit import cross_fitted_signals
from sgoif.evidence.holdout import softmax
from tests.evidence.worlds import random_holdout


def labels_to_try(holdout, most=64):
    """All of few classes; of many the given one and the five that are most probable besides."""
    labels, classes = holdout.labels, holdout.num_classes
    if classes <= most:
        return np.tile(np.arange(classes), (len(labels), 1))
    others = holdout.snapshots[0].logits.copy()
    others[np.arange(len(labels)), labels] = -np.inf
    return np.column_stack([labels, np.argsort(-others, axis=1)[:, :5]])


def gradient(p, a, label):
    return np.outer(p - np.eye(len(p))[label], a)


def share_below(own, flipped):
    """The chance that an own label looks less harmful than a flip: one half is no promise."""
    return np.mean(own[:, None] < flipped[None, :])


def test_scores_promise_nothing_where_there_is_nothing():
    """Where an example is scored by directions that it helped to make, own labels are below flips in 99 of 100."""
    rng = np.random.default_rng(0)
    snapshot = Snapshot(rng.normal(size=(120, 400)), np.zeros((120, 3)))
    holdout = Holdout(rng.integers(0, 3, 120), rng.integers(0, 2, 120), 3, [snapshot])
    found = cross_fitted_signals(holdout, labels_to_try(holdout)).values
    is_own = np.arange(3) == holdout.labels[:, None]
    for name in ("own", "worst", "harm"):
        value = found[:, :, SIGNALS.index(name)]
        assert abs(share_below(value[is_own], value[~is_own]) - 0.5) < 0.1, name


@pytest.mark.parametrize("seed", range(3))
def test_what_an_example_scores_does_not_depend_on_its_own_holdout_label(seed):
    holdout, i = random_holdout(seed), 11
    labels = holdout.labels.copy()
    labels[i] = (labels[i] + 1) % 4
    one, other = (
        cross_fitted_signals(replace(holdout, labels=which), labels_to_try(holdout)).values
        for which in (holdout.labels, labels)
    )
    np.testing.assert_array_equal(one[i], other[i])
    mates = holdout.fold == holdout.fold[i]  # nor do its fold-mates' scores; the other fold's do
    np.testing.assert_array_equal(one[mates], other[mates])
    assert not np.array_equal(one[~mates], other[~mates])


def _take(full, rows):
    return Snapshot(full.features[rows], full.logits[rows], full.output_inverse, full.solved_features[rows], rows)


def direction(holdout, snapshot, v, makers, weights):
    """The definition, one example at a time, through the dense Kronecker product."""
    p, mine = softmax(snapshot.logits), [j for j in makers if holdout.labels[j] == v]
    mean = sum(weights[j] * gradient(p[j], snapshot.features[j], v) for j in mine) / sum(weights[j] for j in mine)
    right, *_ = np.linalg.lstsq(snapshot.features, snapshot.solved_features)  # A⁻¹, which snapshots do not keep
    return (np.kron(snapshot.output_inverse, right) @ mean.reshape(-1)).reshape(mean.shape)


@given(seed=st.integers(0, 2**31))
def test_cross_fitted_signals_match_their_definitions(seed):
    holdout = random_holdout(seed, num_snapshots=2)
    weights = 0.2 + 0.8 * np.random.default_rng(seed).random(len(holdout))
    found = cross_fitted_signals(holdout, labels_to_try(holdout), weights)
    i, assigned = 5, 2
    expected = {name: [] for name in SIGNALS}
    makers = np.flatnonzero(holdout.fold != holdout.fold[i])
    for snapshot in holdout.snapshots:
        z, a, p = snapshot.logits[i], snapshot.features[i], softmax(snapshot.logits)[i]
        expected["loss"].append(-np.log(p[assigned]))
        expected["margin"].append(z[assigned] - np.delete(z, assigned).max())
        expected["p_given"].append(p[assigned])
        plain = replace(snapshot, output_inverse=np.eye(4), solved_features=snapshot.features)
        for suffix, used in (("", snapshot), ("_identity", plain)):
            g = gradient(p, a, assigned)
            influence = np.array([-np.sum(direction(holdout, used, v, makers, weights) * g) for v in range(4)])
            expected["harm" + suffix].append(influence.mean())
            expected["own" + suffix].append(influence[assigned])
            expected["worst" + suffix].append(np.delete(influence, assigned).max())
            if not suffix:
                influence[assigned] = -np.inf
                last_worst = influence.argmax()
    for column, name in enumerate(SIGNALS):
        np.testing.assert_allclose(found.values[i, assigned, column], np.mean(expected[name]), rtol=1e-8, err_msg=name)
    assert found.worst_anchor[i, assigned] == last_worst


@given(seed=st.integers(0, 2**31))
def test_the_dual_form_equals_the_directions(seed):
    holdout = random_holdout(seed, m=60, num_classes=6)
    weights = np.random.default_rng(seed).random(len(holdout)) + 0.2
    dense = cross_fitted_signals(holdout, labels_to_try(holdout), weights)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crossfit, "DENSE_CLASSES", 5)
        tried = labels_to_try(holdout, most=5)
        selected = cross_fitted_signals(holdout, tried, weights)
    assert (tried[:, 0] == holdout.labels).all()
    assert (np.sort(tried, axis=1) == np.arange(6)).all()
    expected = np.take_along_axis(dense.values, tried[:, :, None], axis=1)
    worst = [SIGNALS.index("worst"), SIGNALS.index("worst_identity")]
    rest = [column for column in range(len(SIGNALS)) if column not in worst]
    np.testing.assert_allclose(selected.values[:, :, rest], expected[:, :, rest], rtol=1e-7, atol=1e-9)
    # The least probable class is no anchor there; where it is not the worst one, the two agree.
    least = softmax(holdout.snapshots[0].logits).argmin(axis=1)
    same = np.take_along_axis(dense.worst_anchor, tried, axis=1) != least[:, None]
    np.testing.assert_allclose(selected.values[same][:, worst[0]], expected[same][:, worst[0]], rtol=1e-7, atol=1e-9)
    np.testing.assert_array_equal(
        selected.worst_anchor[same], np.take_along_axis(dense.worst_anchor, tried, axis=1)[same]
    )


def test_a_thousand_classes_need_no_direction_per_class():
    holdout = random_holdout(0, m=2_000, num_classes=1_000, num_inputs=65)
    tracemalloc.start()
    found = cross_fitted_signals(holdout, labels_to_try(holdout))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.values.shape == (2_000, 6, len(SIGNALS))
    assert np.isfinite(found.values[:, :, SIGNALS.index("harm")]).all()
    # Directions would take 1000 x 1000 x 65 doubles, 520 MB; all influences of all examples 16 GB.
    assert peak < 250e6


def test_chunks_do_not_matter(monkeypatch):
    holdout = random_holdout(3)
    whole = cross_fitted_signals(holdout, labels_to_try(holdout))
    monkeypatch.setattr(crossfit, "_CHUNK", 40)
    np.testing.assert_allclose(cross_fitted_signals(holdout, labels_to_try(holdout)).values, whole.values, rtol=1e-12)


def test_snapshots_may_see_a_part_of_the_holdout():
    holdout = random_holdout(4, m=40)
    (full,) = holdout.snapshots
    rows = np.arange(0, 40)[::-1][:24]
    part = _take(full, rows)
    found = cross_fitted_signals(replace(holdout, snapshots=[part]), labels_to_try(holdout)).values
    small = Holdout(holdout.labels[rows], holdout.fold[rows], 4, [replace(part, rows=None)])
    np.testing.assert_allclose(found[rows], cross_fitted_signals(small, labels_to_try(small)).values, rtol=1e-10)
    assert np.isnan(found[np.setdiff1d(np.arange(40), rows)]).all()


def test_a_class_missing_from_a_fold_is_no_anchor_there():
    holdout = random_holdout(5)
    keep = ~((holdout.labels == 3) & (holdout.fold == 0))
    (full,) = holdout.snapshots
    snapshot = replace(_take(full, keep), rows=None)
    part = Holdout(holdout.labels[keep], holdout.fold[keep], 4, [snapshot])
    found = cross_fitted_signals(part, labels_to_try(part))
    scored_without = part.fold == 1
    assert not (found.worst_anchor[scored_without] == 3).any()
    assert np.isnan(found.values[scored_without, 3, SIGNALS.index("own")]).all()
    assert np.isfinite(found.values[:, :, SIGNALS.index("harm")]).all()
    assert np.isfinite(found.values[:, :, SIGNALS.index("worst")]).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": np.full(40, 4)}, "labels must lie"),
        ({"fold": np.zeros(40, dtype=int)}, "both folds"),
        ({"fold": np.zeros(39, dtype=int)}, "one length"),
        ({"num_classes": 5}, "logits"),
        ({"snapshots": []}, "a snapshot"),
    ],
)
def test_mistakes_are_named(change, message):
    with pytest.raises(SgoifError, match=message):
        replace(random_holdout(), **change)


def test_weights_are_checked():
    holdout = random_holdout()
    with pytest.raises(SgoifError, match=">= 0"):
        cross_fitted_signals(holdout, labels_to_try(holdout), np.full(40, -1.0))
