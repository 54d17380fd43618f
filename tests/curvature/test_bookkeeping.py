"""Averages, damaged batches, damping, state and counters: what all backends share."""

import pytest
import torch
from torch.testing import assert_close

from sgoif.curvature import DiagonalCurvature, Statistic, create, reduce_statistics, register, registered
from sgoif.curvature.base import Curvature
from sgoif.errors import CurvatureError, RegistryError
from sgoif.linalg import SolveStatus
from sgoif.records import BlockShape, GradientRows
from tests.curvature.rows import SHAPES, cut, dense_fisher, random_rows
from tests.curvature.test_definitions import BACKENDS, F64, ids

every_backend = pytest.mark.parametrize(("name", "settings"), BACKENDS, ids=ids)


def random_rhs(anchors=2, dtype=torch.float64):
    g = torch.Generator().manual_seed(9)
    return {n: torch.randn(anchors, *shape.dims, generator=g, dtype=dtype) for n, shape in SHAPES.items()}


def amounts_of(curvature, layer):
    """What damping adds to a layer, by where; one number, or one per group."""
    found = curvature.damping_amounts(curvature._layer_state(layer))
    return {name: tuple(value.flatten().tolist()) for name, value in found.items()}


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.95])
def test_average_with_bias_correction_equals_the_closed_form(decay):
    fisher, diagonal = (create(name, SHAPES, decay=decay, **F64) for name in ("fisher", "diagonal"))
    batches = [random_rows(seed, 3) for seed in range(5)]
    for rows in batches:
        fisher.observe(rows)
        diagonal.observe(rows)
    weights = torch.tensor([decay ** (4 - t) for t in range(5)]).double()
    truth = sum(w * dense_fisher(rows[0]) for w, rows in zip(weights, batches, strict=True)) / weights.sum()
    assert_close(fisher.operator("conv", undamped=True).to_dense(), truth)
    assert_close(diagonal.operator("conv", undamped=True).diagonal(), truth.diagonal())


@every_backend
def test_state_round_trip_continues_bit_for_bit(name, settings):
    first, second = (create(name, SHAPES, **settings) for _ in range(2))
    for seed in range(3):
        first.observe(random_rows(seed, dtype=torch.float32))
    first.solve(random_rhs(dtype=torch.float32))
    second.load_state_dict(first.state_dict())
    assert second.counters == first.counters
    for seed in range(3, 25):  # past the next turn of an EK-FAC basis
        for curvature in (first, second):
            curvature.observe(random_rows(seed, dtype=torch.float32))
    rhs = random_rhs(dtype=torch.float32)
    for layer, block in first.solve(rhs).items():
        assert torch.equal(block, second.solve(rhs)[layer])
    for key, tensor in first.state_dict()["tensors"].items():
        assert torch.equal(tensor, second.state_dict()["tensors"][key])


def test_a_state_that_does_not_fit_is_refused_by_name():
    saved = create("kfac", SHAPES).state_dict()
    with pytest.raises(CurvatureError, match="fc/eigenvalues"):
        create("kfac", SHAPES, eigenvalue_corrected=True).load_state_dict(saved)
    with pytest.raises(CurvatureError, match="conv/inputs"):
        create("kfac", SHAPES, **F64).load_state_dict(saved)


@every_backend
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_batch_with_bad_numbers_is_skipped_layer_by_layer_and_counted(name, settings, bad):
    clean, dirty = (create(name, SHAPES, **F64, **settings) for _ in range(2))
    for seed in range(2):
        rows = random_rows(seed)
        clean.observe(rows)
        dirty.observe(rows)
    broken = random_rows(7)
    broken[0].output_grads[0, 0, 0, 0] = bad
    dirty.observe(broken)
    clean.observe([broken[1]])  # the other layer of the same batch counts
    assert_close(dirty.operator().to_dense(), clean.operator().to_dense())
    tensors = dirty.state_dict()["tensors"]
    assert tensors["conv/skipped"] == (name != "identity") and tensors["fc/skipped"] == 0
    assert all(torch.isfinite(block).all() for block in dirty.solve(random_rhs()).values())


@every_backend
@pytest.mark.parametrize("moment", ["before any batch", "after zero gradients"])
def test_without_gradients_automatic_damping_keeps_solves_finite(name, settings, moment):
    curvature = create(name, SHAPES, **F64, **settings)
    if moment == "after zero gradients":
        for _ in range(2):
            curvature.observe([GradientRows(r.layer, r.inputs, 0 * r.output_grads) for r in random_rows(0)])
    rhs = random_rhs()
    solutions = curvature.solutions(rhs)
    for layer, solution in solutions.items():
        assert solution.worst_status is SolveStatus.CONVERGED and torch.isfinite(solution.value).all()
        if name != "kfac" or moment == "before any batch":
            assert_close(curvature.solve(rhs)[layer], rhs[layer])  # H = I
        for amounts in amounts_of(curvature, layer).values():
            assert all(amount > 0 for amount in amounts)


@every_backend
def test_measure_and_absorb_run_on_the_meta_device_where_any_host_sync_would_raise(name, settings):
    curvature = create(name, SHAPES, device="meta", **settings)
    rows = [GradientRows(r.layer, r.inputs.to("meta"), r.output_grads.to("meta")) for r in random_rows(0)]
    for _ in range(2):
        statistics = curvature.measure(rows)
        reduced = {k: Statistic(s.tensor, torch.ones((), device="meta"), s.reduction) for k, s in statistics.items()}
        curvature.absorb(statistics)
        curvature.absorb(reduced)  # counts summed by a collective are tensors
    assert curvature.operator().matmul(torch.ones(18, 2, device="meta")).shape == (18, 2)


def test_half_precision_rows_are_summed_in_float32():
    shapes = {"fc": BlockShape(1, 1, 1, False)}
    ones = torch.ones(4000, 1, 1, 1, dtype=torch.bfloat16)  # a bfloat16 sum would stall at 256
    for name in ("diagonal", "fisher", "kfac"):
        curvature = create(name, shapes)
        curvature.observe([GradientRows("fc", ones, ones)])
        assert_close(curvature.operator(undamped=True).to_dense(), torch.ones(1, 1))


def test_fixed_damping_is_used():
    kfac = create("kfac", SHAPES, damping=0.04, **F64)
    assert_close(torch.tensor(amounts_of(kfac, "conv")["inputs"]), torch.full((2,), 0.2))
    additive = create("kfac", SHAPES, damping=0.04, damping_mode="additive")
    assert amounts_of(additive, "fc")["additive"] == pytest.approx((0.04,))
    relative = create("fisher", SHAPES, relative_damping=0.5, **F64)
    rows = random_rows(0)
    relative.observe(rows)
    trace = dense_fisher(rows[1]).trace()
    assert amounts_of(relative, "fc")["additive"] == pytest.approx((0.5 * float(trace) / 6,))


def test_counters_count_and_factorisations_are_kept_until_something_changes():
    curvature = create("kfac", SHAPES, **F64)
    curvature.observe(random_rows(0))
    for _ in range(3):
        curvature.solve(random_rhs())
    assert (curvature.counters.factorisations, curvature.counters.solves, curvature.counters.products) == (2, 3, 12)
    curvature.observe(random_rows(1))
    curvature.solve({"fc": random_rhs()["fc"]})
    assert (curvature.counters.observations, curvature.counters.factorisations) == (2, 3)


def test_an_operator_is_a_snapshot():
    curvature = create("diagonal", SHAPES, **F64)
    curvature.observe(random_rows(0))
    operator = curvature.operator()
    before = operator.to_dense().clone()
    curvature.observe(random_rows(1))
    assert torch.equal(operator.to_dense(), before)


@every_backend
def test_an_empty_batch_changes_nothing(name, settings):
    curvature, other = (create(name, SHAPES, **F64, **settings) for _ in range(2))
    rows = random_rows(0)
    curvature.observe(rows)
    other.observe(rows)
    empty = curvature.measure(cut(rows, 0, 0))
    curvature.absorb(empty)
    curvature.absorb({k: Statistic(s.tensor, torch.tensor(0), s.reduction) for k, s in empty.items()})
    assert_close(curvature.operator().to_dense(), other.operator().to_dense())
    joined = reduce_statistics([empty, other.measure(rows)])
    whole = other.measure(rows)
    for key in whole:
        assert_close(joined[key].tensor, whole[key].tensor)


def test_registry_refuses_taken_names_and_lists_known_ones():
    with pytest.raises(RegistryError, match="KroneckerCurvature"):
        register("kfac", DiagonalCurvature)
    with pytest.raises(RegistryError, match=", ".join(registered())):
        create("shampoo", SHAPES)
    assert all(isinstance(create(name, SHAPES), Curvature) for name in registered())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: create("kfac", {}), "at least one layer"),
        (lambda: create("kfac", SHAPES, decay=1.0), "decay"),
        (lambda: create("kfac", SHAPES, damping=-1.0), "damping"),
        (lambda: create("kfac", SHAPES, damping="big"), "damping"),
        (lambda: create("kfac", SHAPES, relative_damping=0.0), "relative_damping"),
        (lambda: create("kfac", SHAPES, dtype=torch.float16), "float16"),
        (lambda: create("kfac", SHAPES, damping_mode="none"), "damping_mode"),
        (lambda: create("kfac", SHAPES, basis_every=0), "basis_every"),
        (lambda: create("fisher", SHAPES, rank=0), "rank"),
        (lambda: create("lowrank", SHAPES, rank=0), "rank"),
        (lambda: create("kfac", SHAPES).operator("head"), "head"),
        (lambda: create("kfac", SHAPES).solve({"head": torch.ones(1, 1, 1)}), "head"),
        (lambda: create("kfac", SHAPES).measure([*random_rows(0), *random_rows(0)]), "twice"),
        (
            lambda: create("kfac", SHAPES).measure(
                [GradientRows("fc", torch.ones(1, 1, 9, 1), torch.ones(1, 1, 3, 1))]
            ),
            "9",
        ),
        (lambda: create("kfac", SHAPES).absorb({"fc/odd": Statistic(torch.ones(1), 1, "mean")}), "fc/odd"),
        (lambda: reduce_statistics([]), "at least one"),
        (
            lambda: reduce_statistics([{"a": Statistic(torch.ones(1), 1, kind)} for kind in ("mean", "concat")]),
            "one reduction",
        ),
    ],
)
def test_callers_mistakes_raise(call, message):
    with pytest.raises(CurvatureError, match=message):
        call()
