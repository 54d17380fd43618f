"""Components of the paper, each one switch of ``Method``: what it computes against dense float64, and that it acts.

Γ (Eq. 3) from the ends of the spectrum, the Neumann series with adaptive order (Eq. 9), sketch-PCG (Algorithm 1,
line 6).
"""

import numpy as np
import pytest
import torch

import sgoif
from sgoif.errors import SgoifError
from sgoif.influence import GateSettings
from sgoif.training import engine as engines
from tests.training.loops import data, fresh, train, watch

SOLVERS = ("direct", "neumann", "cg")


def watched(epochs=3, **settings):
    train_set, holdout = data(apart=1.0)
    model = fresh()
    monitor = watch(model, holdout, **settings)
    train(model, train_set, monitor, epochs=epochs)
    assert monitor.faults == {}
    return monitor


def dense_parts(engine):
    """The damped curvature and the anchors' gradients as matrices."""
    matrix = engine.curvature.operator().to_dense()
    goal = torch.cat([engine.anchors.gradients[name].flatten(1) for name in engine.spaces], 1).mT
    return matrix, goal


def columns_of(engine):
    found = engine.directions()
    return torch.cat([found[name].flatten(1) for name in engine.spaces], 1).mT


@pytest.mark.parametrize("solver", SOLVERS)
def test_directions_solved_at_a_refresh_are_those_of_the_dense_inverse(solver):
    engine = watched(solver=solver).engine
    matrix, goal = dense_parts(engine)
    left = (goal - matrix @ columns_of(engine)).norm(dim=0) / goal.norm(dim=0)
    assert (left < {"direct": 1e-10, "neumann": 0.9, "cg": 1e-3}[solver]).all()
    reading = engine.reading
    if solver != "direct":  # what is left is what the gate sees
        torch.testing.assert_close(reading.residual, left, rtol=1e-6, atol=1e-9)
    assert (reading.confidence > 0.99).all() == (solver != "neumann")


def test_a_neumann_series_goes_on_from_refresh_to_refresh():
    short, long = (watched(solver="neumann", epochs=epochs).engine.reading.residual.mean() for epochs in (1, 12))
    assert long < 0.5 * short


@pytest.mark.parametrize("gate", [GateSettings(gamma_power=1.0, beta_power=0.0), "paper"])
def test_the_condition_number_comes_from_the_ends_of_the_spectrum(gate):
    engine = watched(gate=gate, planned_steps=12).engine
    values = torch.linalg.eigvalsh(dense_parts(engine)[0])
    true, found = values[-1] / values[0], engine.reading.gamma
    assert 0.5 * true < found <= true * (1 + 1e-6)  # Ritz values lie inside the spectrum
    tau = engine.reading.tau
    if gate == "paper":
        torch.testing.assert_close(tau, 0.4 * engine.reading.beta * found.to(tau))


def test_each_switch_changes_the_scores():
    plain = watched().close().visits
    for settings in (
        {"solver": "neumann"},
        {"solver": "cg"},
        {"solver": "direct"},
        {"weighting": "confidence"},
        {"leak_horizon": None},
        {"refine_below": 0.9},
        {"curvature": "diagonal"},
    ):
        found = watched(**settings).close().visits
        assert not np.array_equal(found["harm"], plain["harm"]), settings
    bent = watched(temperature=2.0).close().visits
    np.testing.assert_allclose(bent["harm_std"], np.tanh(plain["harm_std"] / 2), rtol=1e-5)
    assert np.array_equal(bent["harm"], plain["harm"])
    for gate in (GateSettings(gamma_power=0.5), GateSettings(beta_power=0.5), "linear", "none", "moving-average"):
        found = watched(gate=gate).close().visits
        assert not np.array_equal(found["confidence"], plain["confidence"]), gate


@pytest.mark.parametrize(
    "settings",
    [{"solver": "neumann"}, {"solver": "cg"}, {"gate": GateSettings(gamma_power=0.5)}, {"refine_below": 0.9}],
)
def test_a_run_goes_on_where_it_stood(settings):
    train_set, holdout = data(apart=1.0)
    model = fresh()
    first = watch(model, holdout, **settings)
    train(model, train_set, first, epochs=2)
    second = watch(model, holdout, **settings)
    second.load_state_dict(first.state_dict())
    torch.testing.assert_close(columns_of(second.engine), columns_of(first.engine), rtol=0, atol=0)
    for name in ("residual", "tau", "confidence", "gamma"):
        mine, theirs = getattr(second.engine.reading, name), getattr(first.engine.reading, name)
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
    torch.testing.assert_close(second.engine.gate._condition, first.engine.gate._condition, rtol=0, atol=0)


@pytest.mark.parametrize("classes", [4, 70, 3000])
def test_directions_of_low_confidence_are_refined_by_conjugate_gradients(classes, monkeypatch):
    """Algorithm 1, line 6: after a refresh those below the threshold solve the system, the others are as tracked."""
    if classes > 4:
        monkeypatch.setattr(engines, "MANY_CLASSES", 3)  # four classes, treated as so many would be
    if classes > 70:
        monkeypatch.setattr(engines, "ALL_UP_TO", 3)
    plain, refined = watched(epochs=4).engine, watched(epochs=4, refine_below=1.0).engine
    assert plain.pooled == (classes > 4)
    matrix, goal = dense_parts(refined)
    left = [(goal - matrix @ columns_of(engine)).norm(dim=0) / goal.norm(dim=0) for engine in (plain, refined)]
    assert (left[1] < 0.5 * left[0]).all()
    assert (refined.refinements > 0).all() and (plain.refinements == 0).all()


def test_numbers_out_of_range_are_refused():
    with pytest.raises(SgoifError, match="refine_below is a confidence"):
        sgoif.Method(refine_below=0.5, solver="direct")
    with pytest.raises(SgoifError, match="refine_below is a confidence"):
        sgoif.Method(refine_below=1.5)
    with pytest.raises(SgoifError, match="temperature must be positive"):
        sgoif.Method(temperature=0.0)
