"""Every backend equals its dense definition, in float64, for one and several positions and groups."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from sgoif.curvature import create
from tests.curvature.rows import (
    SHAPES,
    damp,
    dense_fisher,
    example_gradients,
    kronecker_factors,
    quick,
    random_rows,
    seeds,
)

F64 = {"dtype": torch.float64}
BACKENDS = [
    ("identity", {}),
    ("diagonal", {}),
    ("fisher", {}),
    ("fisher", {"dense_limit": 0, "rank": 8}),
    ("kfac", {}),
    ("kfac", {"damping_mode": "additive"}),
    ("kfac", {"eigenvalue_corrected": True}),
    ("lowrank", {"rank": 3}),
]
ids = [f"{name}-{'-'.join(map(str, settings.values()))}" for name, settings in BACKENDS]


def observed(name, rows, **settings):
    curvature = create(name, SHAPES, **F64, **settings)
    curvature.observe(rows)
    return curvature


@quick
@given(seed=seeds, examples=st.integers(1, 5))
def test_diagonal_is_the_mean_square_of_example_gradients(seed, examples):
    rows = random_rows(seed, examples)
    for max_bytes in (1, 2**20):  # chunks of one example, and all at once
        curvature = observed("diagonal", rows, max_bytes=max_bytes)
        for row in rows:
            truth = torch.diag(example_gradients(row).square().mean(0))
            assert_close(curvature.operator(row.layer, undamped=True).to_dense(), truth)
            assert_close(curvature.operator(row.layer).to_dense(), damp(truth))


@quick
@given(
    seed=seeds,
    examples=st.integers(1, 5),
    dense_limit=st.sampled_from([0, 6, 2048]),
    max_bytes=st.sampled_from([1, 2**20]),
)
def test_fisher_is_the_mean_outer_product_dense_or_sketched(seed, examples, dense_limit, max_bytes):
    rows = random_rows(seed, examples)
    curvature = observed("fisher", rows, dense_limit=dense_limit, rank=5, max_bytes=max_bytes)
    for row in rows:
        truth = dense_fisher(row)
        assert_close(curvature.operator(row.layer, undamped=True).to_dense(), truth, rtol=1e-6, atol=1e-8)
        assert_close(curvature.operator(row.layer).to_dense(), damp(truth), rtol=1e-6, atol=1e-8)


@quick
@given(seed=seeds)
def test_a_short_sketch_is_the_best_one_of_its_rank_and_lies_below_the_fisher(seed):
    row = random_rows(seed, 6)[0]
    curvature = observed("fisher", [row], dense_limit=0, rank=2)
    truth, sketch = dense_fisher(row), curvature.operator("conv", undamped=True).to_dense()
    values = torch.linalg.eigvalsh(truth)
    assert_close(torch.linalg.matrix_norm(truth - sketch), values[:-2].square().sum().sqrt(), rtol=1e-6, atol=1e-8)
    assert torch.linalg.eigvalsh(truth - sketch)[0] > -1e-9


@quick
@given(seed=seeds)
def test_a_streaming_sketch_is_exact_until_it_has_seen_more_examples_than_its_rank(seed):
    exact, short = (create("fisher", SHAPES, dense_limit=0, rank=rank, **F64) for rank in (6, 3))
    dense = create("fisher", SHAPES, **F64)
    for step in range(3):
        for curvature in (exact, short, dense):
            curvature.observe(random_rows(seed + step, 2))
        truth = dense.operator("conv", undamped=True).to_dense()
        assert_close(exact.operator("conv", undamped=True).to_dense(), truth, rtol=1e-6, atol=1e-8)
        gap = truth - short.operator("conv", undamped=True).to_dense()
        assert torch.linalg.eigvalsh(gap)[0] > -1e-9


@quick
@given(seed=seeds, examples=st.integers(1, 5))
def test_kfac_is_the_product_of_its_damped_factors(seed, examples):
    rows = random_rows(seed, examples)
    factored, additive = observed("kfac", rows), observed("kfac", rows, damping_mode="additive")
    for row in rows:
        left, right = kronecker_factors(row)
        plain = torch.block_diag(*map(torch.kron, left, right))
        assert_close(factored.operator(row.layer, undamped=True).to_dense(), plain)
        damped = torch.block_diag(*(torch.kron(damp(g), damp(a)) for g, a in zip(left, right, strict=True)))
        assert_close(factored.operator(row.layer).to_dense(), damped)
        assert_close(additive.operator(row.layer, undamped=True).to_dense(), plain)
        assert_close(additive.operator(row.layer).to_dense(), damp(plain))


@quick
@given(seed=seeds, examples=st.integers(3, 5))
def test_corrected_eigenvalues_are_second_moments_in_the_eigenbasis(seed, examples):
    rows = random_rows(seed, examples)
    curvature = create("kfac", SHAPES, eigenvalue_corrected=True, **F64)
    curvature.observe(rows)
    for row in rows:  # the first observation only makes the basis: plain K-FAC so far
        plain = torch.block_diag(*map(torch.kron, *kronecker_factors(row)))
        assert_close(curvature.operator(row.layer, undamped=True).to_dense(), plain, rtol=1e-6, atol=1e-8)
    curvature.observe(rows)
    for row in rows:
        left, right = ([torch.linalg.eigh(f).eigenvectors for f in factors] for factors in kronecker_factors(row))
        basis = torch.block_diag(*map(torch.kron, left, right))
        values = (example_gradients(row) @ basis).square().mean(0)
        truth = basis @ torch.diag(values) @ basis.mT
        operator = curvature.operator(row.layer, undamped=True).to_dense()
        if min(torch.linalg.eigvalsh(f).diff().min() for fs in kronecker_factors(row) for f in fs if len(f) > 1) > 1e-6:
            assert_close(operator, truth, rtol=1e-6, atol=1e-8)
        # The correction makes the diagonal in this basis, and so the trace, that of the Fisher itself.
        assert_close(operator.trace(), dense_fisher(row).trace())
        assert_close(curvature.operator(row.layer).to_dense(), damp(operator))


def test_a_turned_basis_keeps_the_trace_and_the_eigenvalues_of_an_unturned_one():
    rows = random_rows(0, 8)
    often, seldom = (create("kfac", SHAPES, eigenvalue_corrected=True, basis_every=n, **F64) for n in (1, 100))
    for _ in range(4):
        often.observe(rows)
        seldom.observe(rows)
    for layer in SHAPES:  # the same batch again and again: the basis is found anew, and found the same
        expected = seldom.operator(layer).to_dense()
        assert_close(often.operator(layer).to_dense(), expected, rtol=1e-6, atol=1e-8)


def test_eigenvalues_are_carried_into_a_turned_basis_as_the_diagonal_of_the_old_matrix():
    first, second = random_rows(0, 8), random_rows(1, 8)
    curvature = create("kfac", SHAPES, eigenvalue_corrected=True, basis_every=1, decay=0.5, **F64)
    curvature.observe(first)  # makes a basis
    curvature.observe(second)  # is measured in that basis, and makes another
    for one, two in zip(first, second, strict=True):
        bases = []
        for weight in (0.0, 2.0):  # factors of the first batch; then their average, (1/2 first + second) / (3/2)
            factors = zip(kronecker_factors(one), kronecker_factors(two), strict=True)
            mixed = [[x + weight * y for x, y in zip(xs, ys, strict=True)] for xs, ys in factors]
            left, right = ([torch.linalg.eigh(f).eigenvectors for f in fs] for fs in mixed)
            bases.append(torch.block_diag(*map(torch.kron, left, right)))
        values = (example_gradients(two) @ bases[0]).square().mean(0)
        old = bases[0] @ torch.diag(values) @ bases[0].mT
        carried = (bases[1].mT @ old @ bases[1]).diagonal()
        truth = bases[1] @ torch.diag(carried) @ bases[1].mT
        assert_close(curvature.operator(one.layer, undamped=True).to_dense(), truth, rtol=1e-6, atol=1e-8)


@quick
@given(seed=seeds, rank=st.integers(1, 7))
def test_lowrank_keeps_the_diagonal_of_the_fisher_and_the_sketch_beside_it(seed, rank):
    rows = random_rows(seed, 4)
    curvature = observed("lowrank", rows, rank=rank)
    for row in rows:
        fisher = dense_fisher(row)
        values, vectors = torch.linalg.eigh(fisher)
        top = (vectors[:, -rank:] * values[-rank:]) @ vectors[:, -rank:].mT
        truth = top + torch.diag((fisher.diagonal() - top.diagonal()).clamp_min(0))
        assert_close(curvature.operator(row.layer, undamped=True).to_dense(), truth, rtol=1e-6, atol=1e-8)
        assert_close(curvature.operator(row.layer).to_dense(), damp(truth), rtol=1e-6, atol=1e-8)
        assert_close(truth.diagonal(), fisher.diagonal())  # counted once


def test_identity_is_the_identity_whatever_it_sees():
    curvature = observed("identity", random_rows(0))
    assert_close(curvature.operator().to_dense(), torch.eye(18, dtype=torch.float64))
    assert curvature.damping_amounts({}) == {}
