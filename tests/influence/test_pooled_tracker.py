"""One direction of a head with many classes: the steps of Richardson's iteration without its products."""

import pytest
import torch

from sgoif.gradients.contractions import dots
from sgoif.influence import PooledTracker, Tracker
from sgoif.linalg import Dense, DiagonalKronecker, Richardson, follow_top_eigenpairs
from sgoif.records import BlockShape, GradientRows

OUTPUTS, INPUTS = 9, 12
SHAPE = BlockShape(1, OUTPUTS, INPUTS, False)
GENERATOR = torch.Generator().manual_seed(0)


def positive(values, seed=0):
    """A matrix with the given eigenvalues."""
    generator = torch.Generator().manual_seed(seed)
    turned = torch.linalg.qr(torch.randn(len(values), len(values), generator=generator, dtype=torch.float64)).Q
    return (turned * torch.as_tensor(values, dtype=torch.float64)) @ turned.mT


def operator(values, seed=0):
    left = torch.rand(1, OUTPUTS, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.1
    return DiagonalKronecker(left, positive(values, seed)[None])


def gradient(seed=0):
    generator = torch.Generator().manual_seed(100 + seed)
    return {"fc": torch.randn(1, 1, OUTPUTS, INPUTS, generator=generator, dtype=torch.float64)}


def trackers(leak=50):
    like = {"dtype": torch.float64}
    pooled = PooledTracker("fc", SHAPE, leak_horizon=leak, **like)
    whole = Tracker({"fc": SHAPE}, 1, solver=Richardson(leak_horizon=leak), **like)
    return pooled, whole


def take(tracker, seed, values, steps):
    """What happens from one refresh to the next."""
    tracker.use_operator(operator(values, seed))
    tracker.retarget(gradient(seed))
    return tracker.advance(steps)


# the largest eigenvalues and an isotropic rest, so that a rank of 4 is exact
STRUCTURED = [8.0, 4.0, 2.0, 1.0] + [0.25] * 8


@pytest.mark.parametrize(("rank", "values"), [(128, torch.linspace(0.1, 3, INPUTS).tolist()), (4, STRUCTURED)])
@pytest.mark.parametrize("leak", [50, None])
def test_steps_are_those_of_the_whole_direction(rank, values, leak, monkeypatch):
    monkeypatch.setattr("sgoif.influence.pooled_tracker.RANK", rank)
    monkeypatch.setattr("sgoif.linalg.subspace._COLD_STEPS", 60)
    pooled, whole = trackers(leak)
    for seed, steps in enumerate([7, 1, 20]):
        exact = operator(values, seed)
        pooled.__dict__["_is_based"] = False  # a cold start for another matrix, so that the subspace is exact
        path, residuals = take(pooled, seed, values, steps)
        # its step size comes from a power iteration: that of the exact eigenvalue is put in its place
        largest = exact.left.max() * torch.as_tensor(max(values))
        monkeypatch.setattr("sgoif.linalg.richardson.follow_lambda_max", lambda *_, at=largest: (at.double(), None))
        truth, expected = take(whole, seed, values, steps)
        for point, column in zip(path, truth, strict=True):
            torch.testing.assert_close(pooled.dense(point).flatten(), column[:, 0], rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(residuals, expected, rtol=1e-7, atol=1e-9)


def test_products_are_those_of_the_direction_that_each_batch_met():
    pooled, _ = trackers()
    path, _ = take(pooled, 0, STRUCTURED, 5)
    batches = []
    for point in (path[0], path[3], path[3], path[4]):
        a, b = (torch.randn(6, 1, n, 1, generator=GENERATOR, dtype=torch.float64) for n in (INPUTS, OUTPUTS))
        batches.append((GradientRows("fc", a, b), point))
    found = pooled.dots(batches)
    expected = torch.cat([dots(rows, torch.cat([pooled.dense(at), gradient()["fc"]])) for rows, at in batches])
    torch.testing.assert_close(found, expected)


def test_a_state_goes_on_to_the_bit():
    one, _ = trackers()
    take(one, 0, STRUCTURED, 5)
    other, _ = trackers()
    other.load_state_dict(one.state_dict())
    for tracker in (one, other):
        tracker.use_operator(operator(STRUCTURED, 1))
    assert torch.equal(one.advance(3)[1], other.advance(3)[1])
    assert torch.equal(take(one, 2, STRUCTURED, 2)[1], take(other, 2, STRUCTURED, 2)[1])


def test_a_gradient_that_is_no_number_is_forgotten_with_the_direction():
    pooled, _ = trackers()
    take(pooled, 0, STRUCTURED, 5)
    pooled.retarget({"fc": torch.full((1, 1, OUTPUTS, INPUTS), float("nan"), dtype=torch.float64)})
    _, residuals = pooled.advance(2)
    assert residuals.isinf().all() and pooled.resets.item() == 1
    _, residuals = take(pooled, 1, STRUCTURED, 40)
    assert residuals[-1] < 0.5 and pooled.directions["fc"].isfinite().all() and pooled.resets.item() == 1


def test_another_structure_is_refused():
    from sgoif.errors import SgoifError

    with pytest.raises(SgoifError, match="diagonal Kronecker"):
        trackers()[0].use_operator(Dense(torch.eye(3)))


def test_the_largest_eigenvalues_are_followed():
    values = 2.0 ** -torch.arange(40, dtype=torch.float64)
    matrix = positive(values)
    found = follow_top_eigenpairs(matrix, 6)
    torch.testing.assert_close(found.values.flip(0), values[:6], rtol=1e-4, atol=0)
    torch.testing.assert_close(found.rest, values[6:].mean(), rtol=1e-3, atol=0)
    moved = matrix + 1e-3 * positive(torch.rand(40, generator=GENERATOR), seed=1)
    followed = follow_top_eigenpairs(moved, 6, found.vectors)
    exact = torch.linalg.eigvalsh(moved).flip(0)[:6]
    torch.testing.assert_close(followed.values.flip(0), exact, rtol=1e-4, atol=1e-6)
    whole = follow_top_eigenpairs(matrix, 99)
    torch.testing.assert_close((whole.vectors * whole.values) @ whole.vectors.mT, matrix)
