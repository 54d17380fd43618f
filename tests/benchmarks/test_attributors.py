"""Every library is called such that, where the truth is known, it says the same: sign, rows and columns."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from benchmarks.attributors.compare import measure
from benchmarks.attributors.libraries import list_dattri, list_kronfluence, list_ours
from benchmarks.attributors.subjects import Digits, Subject, lds_row, softmax_network
from benchmarks.exactness import Subsets, draw_members

L2 = 0.1


def random_digits(count, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 10, (count,), generator=generator)
    return Digits(torch.rand(count, 784, generator=generator) / 10, labels)


@pytest.fixture(scope="module")
def subject():
    """A softmax regression on noise: any parameters will do, for the Hessian does not ask where it stands."""
    torch.manual_seed(0)
    states = [softmax_network().state_dict() for _ in range(2)]
    training, test = random_digits(80, seed=1), random_digits(6, seed=2)
    return Subject("convex", softmax_network, states[:1], lambda _: states, training, test, learning_rate=0.5, l2=L2)


@pytest.fixture(scope="module")
def dense(subject):
    """``-g_vᵀ (H + l2)⁻¹ g_i`` written out in float64, and the same with ``H = I``."""
    weight, bias = (subject.states[0][name].double() for name in ("0.weight", "0.bias"))

    def sides(examples):
        x = torch.cat([examples.pixels.double(), torch.ones(len(examples.labels), 1, dtype=torch.float64)], 1)
        p = (x[:, :-1] @ weight.mT + bias).softmax(1)
        return x, p, p - F.one_hot(examples.labels, 10)

    (x, p, b), (y, _, c) = sides(subject.training), sides(subject.test)
    g, h = (torch.einsum("nc,nd->ncd", *pair).flatten(1) for pair in ((b, x), (c, y)))
    # 80 examples span the inputs' part of H, so it is solved in their span: (l2 + UUᵀ)⁻¹ by Woodbury
    roots = torch.linalg.cholesky(torch.diag_embed(p) - p[:, :, None] * p[:, None] + 1e-12 * torch.eye(10))
    u = torch.einsum("nca,nd->cdna", roots, x).reshape(g.shape[1], -1) / len(x) ** 0.5
    inner = L2 * torch.eye(u.shape[1], dtype=u.dtype) + u.mT @ u
    solved = (h.mT - u @ torch.linalg.solve(inner, u.mT @ h.mT)) / L2
    return {"exact": -(g @ solved).numpy(), "identity": -(g @ h.mT).numpy()}


def close(found, expected, tolerance):
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    assert error < tolerance, error


def test_ours_is_exact_where_gauss_newton_is_the_hessian(subject, dense):
    methods = list_ours(L2, 1)
    close(methods["identity"](subject), dense["identity"], 1e-5)
    close(methods[f"gauss-newton, damping {L2:g}"](subject), dense["exact"], 1e-3)  # CG stops at a residual of 1e-4


def test_kronfluence_has_our_sign_and_order(subject, dense):
    pytest.importorskip("kronfluence")
    methods = list_kronfluence(L2, 1)
    close(methods["identity"](subject), dense["identity"], 1e-5)
    found = methods[f"ekfac, damping {L2:g}"](subject)
    assert np.corrcoef(found.ravel(), dense["exact"].ravel())[0, 1] > 0.9


def test_dattri_has_our_sign_and_order(subject, dense):
    pytest.importorskip("dattri")
    methods = list_dattri(L2, 1)
    close(
        methods[f"cg, regularization {L2:g}"](subject), dense["exact"], 1e-2
    )  # ten steps; with many more it divides 0 by 0
    found = methods["tracin, 1 checkpoint"](subject)
    assert np.corrcoef(found.ravel(), dense["identity"].ravel())[0, 1] > 0.5  # its projection is random


def test_a_point_that_cannot_be_attributed_counts_as_nothing():
    members = draw_members(20, 30, 15, seed=0)
    assert (members.sum(1) == 15).all()
    scores = np.random.default_rng(0).normal(size=(30, 2))
    truth = Subsets(members, members @ scores)
    assert lds_row(truth, scores) == {"lds": pytest.approx(1), "lds_se": pytest.approx(0, abs=1e-12), "failed": 0}
    broken = np.where(np.arange(2) == 0, np.nan, scores)
    assert measure(lambda: broken, lambda found: lds_row(truth, found))["lds"] == pytest.approx(0.5)
