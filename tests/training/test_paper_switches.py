"""Components of the paper, each one switch of ``Method``: what it computes against dense float64, and that it acts.

Γ (Eq. 3) from the ends of the spectrum, weights (Eq. 5), the Neumann series with adaptive order (Eq. 9), the subspace
(Eq. 10), sketch-PCG with its triggers and the replacement of anchors (Algorithm 1, line 6). All of it together is in
``test_paper_algorithm.py``.
"""

from functools import cache
from itertools import combinations

import numpy as np
import pytest
import torch

import sgoif
from sgoif.distributed import SingleProcess
from sgoif.errors import SgoifError
from sgoif.influence import GateSettings, score
from sgoif.training import engine as engines
from sgoif.training.refinement import ScoreRecord
from sgoif.training.replacement import Replacement
from tests.training.loops import arrays, data, fresh, train, train_watched, watch

SOLVERS = ("direct", "neumann", "cg")
POWERS = GateSettings(beta_power=1.0, gamma_power=1.0)
TIGHT = sgoif.Plan(refresh_every=2, examples_per_refresh=16, observe_every=1, early_steps=0)


@cache
def watched(epochs=3, **settings):
    """The monitor of a training with these settings; one for all tests, which only read it."""
    monitor = train_watched(epochs=epochs, apart=1.0, **settings)
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
    plain_and_refined = plain["harm"], watched(refine_below=0.9).close().visits["harm"]
    for settings in (
        {"solver": "neumann"},
        {"solver": "cg"},
        {"solver": "direct"},
        {"weighting": "confidence"},
        {"leak_horizon": None},
        {"refine_below": 0.9},
        {"refine_below": 0.9, "sketch_rank": 0},
        {"subspace": 3},
        {"replace_every": 2},
        {"gram_below": 0.9},
        {"curvature": "diagonal"},
    ):
        found = watched(**settings).close().visits
        others = plain_and_refined if "sketch_rank" in settings else plain_and_refined[:1]
        assert not any(np.array_equal(found["harm"], other) for other in others), settings
    bent = watched(temperature=2.0).close().visits
    np.testing.assert_allclose(bent["harm_std"], np.tanh(plain["harm_std"] / 2), rtol=1e-5)
    assert np.array_equal(bent["harm"], plain["harm"])
    for gate in (GateSettings(gamma_power=0.5), GateSettings(beta_power=0.5), "linear", "none", "moving-average"):
        found = watched(gate=gate).close().visits
        assert not np.array_equal(found["confidence"], plain["confidence"]), gate


@pytest.mark.parametrize(
    "settings",
    [
        {"solver": "neumann"},
        {"solver": "cg"},
        {"gate": GateSettings(gamma_power=0.5)},
        {"refine_below": 0.9},
        {"method": sgoif.Method.paper(subspace=3)},
    ],
)
def test_a_run_goes_on_where_it_stood(settings):
    first = watched(epochs=2, **settings)
    second = watch(first.model, data(apart=1.0)[1], **settings)
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
    train_anew = watched.__wrapped__
    plain, refined = train_anew(epochs=4).engine, train_anew(epochs=4, refine_below=1.0).engine
    assert plain.pooled == (classes > 4)
    matrix, goal = dense_parts(refined)
    left = [(goal - matrix @ columns_of(engine)).norm(dim=0) / goal.norm(dim=0) for engine in (plain, refined)]
    assert (left[1] < 0.5 * left[0]).all()
    assert (refined.refinement.count > 0).all() and (plain.refinement.count == 0).all()


def test_a_subspace_speeds_the_directions_up_and_comes_back_from_a_checkpoint():
    """Eq. 10: with the dominant directions solved exactly, the step follows the next eigenvalue."""
    plain, helped = (watched(curvature="fisher", subspace=rank, epochs=4).engine for rank in (None, 12))
    assert helped.tracker.step_size > 2 * plain.tracker.step_size
    assert (helped.reading.residual < 0.9 * plain.reading.residual).all()
    assert helped.tracker.basis.shape == (28, 12) and plain.tracker.basis is None
    stale = watched(curvature="fisher", subspace=12, subspace_every=100, epochs=4).engine
    assert stale.reading.residual.isfinite().all()  # a basis of the first refresh does no harm
    assert not torch.equal(stale.tracker.basis, helped.tracker.basis)


@pytest.mark.parametrize("settings", [{"replace_every": 2}, {"gram_below": 1.0}])
def test_replaced_anchors_are_counted_and_those_of_other_classes_are_not(settings):
    """Algorithm 1, line 6: by period T_a, and where the Gram matrix of the directions is nearly singular."""
    run = watched(epochs=4, **settings)
    assert (run.engine.replacement.count > 0).any() and (watched().engine.replacement.count == 0).all()
    assert int(run.engine.replacement.count.sum()) <= run.refreshes  # one of four classes at a time
    replacement = Replacement(3, every=1)  # the second class has no anchor
    chosen = replacement.choose(torch.tensor([0.9, 0.0, 0.1]), torch.eye(3), torch.tensor([True, False, True]))
    assert chosen.tolist() == [False, False, True] and replacement.count.tolist() == [0, 0, 1]


def test_one_anchor_for_many_classes_is_not_replaced_and_that_is_said(monkeypatch, caplog):
    monkeypatch.setattr(engines, "MANY_CLASSES", 3)
    engine = watched.__wrapped__(replace_every=2, gram_below=0.9).engine
    assert engine.pooled and not engine.replacement.is_on
    assert "no anchor is replaced" in caplog.text


def test_what_is_low_is_refined_only_for_a_reason():
    low, large, uncertain = (
        watched(epochs=4, refine_below=1.0, refine_if=reason).engine.refinement.count.sum()
        for reason in ("low", "large", "uncertain")
    )
    assert 0 < large < low and 0 < uncertain <= low  # a few dozen scores leave every mean uncertain


def test_the_record_of_scores_finds_large_and_uncertain_directions():
    alone = SingleProcess()
    record = ScoreRecord(2, dtype=torch.float64)
    record.add(torch.randn(4000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    record = record.begin_again()
    record.add(torch.tensor([[10.0, 0.1], [9.0, -0.1], *[[9.5, 0.0]] * 60], dtype=torch.float64))
    assert record.gives_reason("large", alone).tolist() == [True, False]
    assert record.gives_reason("uncertain", alone).tolist() == [False, True]
    n, log_term = 62, np.log(3 / 0.05)
    values = np.array([10.0, 9.0, *[9.5] * 60])
    expected = np.sqrt(2 * values.var() * log_term / n) + 3 * 1.0 * log_term / n
    assert record.half_width()[0].item() == pytest.approx(expected)
    fair = ScoreRecord(300, dtype=torch.float64)  # of mean zero, which every interval covers
    fair.add(12 * torch.rand(200, 300, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 6)
    assert (fair.mean.abs() <= fair.half_width()).all()


def test_weights_of_the_paper_have_the_confidence_twice():
    equal, paper = (watched(weighting=name) for name in ("equal", "paper"))
    confidence = paper.engine.reading.confidence
    rows = torch.randn(5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = score(rows, torch.zeros(5, dtype=torch.long), confidence, weighting="paper").harm
    torch.testing.assert_close(found, -(rows * confidence.square() / confidence.sum()).sum(1))
    assert not np.array_equal(equal.close().visits["harm"], paper.close().visits["harm"])


def test_the_table_of_anchors_has_all_five_error_terms_and_what_was_done(tmp_path):
    method = sgoif.Method.paper(subspace=4, refine_below=1.0, refine_if="low", replace_every=2)
    table = arrays(watched(epochs=4, method=method, out=str(tmp_path / "run")).close().anchors())
    late = table["refresh_step"] == table["refresh_step"].max()
    for name in ("residual", "confidence", "curvature_gap", "coverage", "drift"):
        assert np.isfinite(table[name][late]).all(), name
    assert table["drift"][late].max() > 0
    assert table["refinements"].max() > 0 and table["replacements"].max() > 0


SWITCHES = {
    "curvature": ("kfac", "diagonal", "fisher", "lowrank", "identity"),
    "solver": ("richardson", *SOLVERS),
    "leak_horizon": (800.0, None),
    "gate": ("relative", "linear", "paper", "moving-average", "ramp", "none", POWERS),
    "weighting": ("equal", "confidence", "paper"),
    "temperature": (None, 1.0),
    "refine_below": (None, 0.9),
    "refine_if": ("low", "large", "uncertain"),
    "sketch_rank": (16, 0),
    "subspace": (None, 3),
    "replace_every": (None, 2),
    "gram_below": (None, 0.5),
    "probe": (True, False),
    "layers": ("auto", ("conv", "norm")),
}
TRACKED = {"refine_below", "subspace", "replace_every", "gram_below"}


def is_allowed(settings):
    asked = {name for name in TRACKED & settings.keys() if settings[name] is not None}
    return settings.get("solver", "richardson") == "richardson" or not asked


def switch_combinations():
    """Few settings of all switches that have every allowed pair of values among them."""
    single = [(name, value) for name, values in SWITCHES.items() for value in values]
    pairs = [pair for pair in combinations(single, 2) if pair[0][0] != pair[1][0] and is_allowed(dict(pair))]
    while pairs:
        settings = dict(pairs[0])
        for name, values in SWITCHES.items():
            if name not in settings:
                allowed = [value for value in values if is_allowed({**settings, name: value})]
                settings[name] = max(allowed, key=lambda value: gain({**settings, name: value}, pairs))
        yield settings
        pairs = [pair for pair in pairs if not dict(pair).items() <= settings.items()]


def gain(settings, pairs):
    return sum(dict(pair).items() <= settings.items() for pair in pairs)


def test_every_pair_of_switches_runs_without_a_fault():
    train_set, holdout = data(num=24, apart=1.0)
    for settings in switch_combinations():
        model = fresh()
        method = sgoif.Method(**settings, planned_steps=6)
        monitor = watch(model, holdout, train_size=24, method=method, budget=sgoif.Budget(plan=TIGHT))
        train(model, train_set, monitor, epochs=3)
        assert monitor.faults == {}, settings
        assert np.isfinite(monitor.close().visits["harm"]).all(), settings


@pytest.mark.parametrize("name", sorted(TRACKED))
def test_switches_of_tracked_directions_do_not_go_with_a_solver(name):
    for solver in SOLVERS:
        with pytest.raises(SgoifError, match=f"solver='{solver}'"):
            sgoif.Method(solver=solver, **{name: SWITCHES[name][1]})


def test_settings_that_cannot_be_are_refused():
    for group, settings, words in (
        (sgoif.Method, {"refine_below": 1.5}, "refine_below is a confidence"),
        (sgoif.Method, {"temperature": 0.0}, "temperature must be positive"),
        (sgoif.Method, {"solver": "foo"}, "solver must be one of richardson, direct, neumann, cg, got 'foo'"),
        (sgoif.Loss, {"soft_targets": "hard"}, "soft_targets must be one of mixed, soft"),
    ):
        with pytest.raises(SgoifError, match=words):
            group(**settings)
