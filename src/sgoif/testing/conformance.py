"""Checks that a stranger's layer rule, solver or curvature backend can run against itself.

Each raises ``AssertionError`` with what was compared. They are the same checks that our own plug-ins pass.

>>> from torch import nn
>>> check_rule(nn.Conv2d(4, 6, 3, groups=2).double(), torch.randn(3, 4, 7, 7, dtype=torch.float64))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sgoif.curvature import Curvature, reduce_statistics
from sgoif.gradients import (
    Capture,
    ExactSpace,
    Layer,
    LayerCapture,
    ProjectedSpace,
    Rule,
    Space,
    combine_gradients,
    dot_directions,
    gradient_norms2,
    select_layers,
)
from sgoif.linalg import Dense, Solver, SolveStatus, flatten
from sgoif.records import BlockShape, GradientRows
from sgoif.testing.references import reference_gradients

__all__ = ["check_curvature", "check_rule", "check_solver"]


def check_rule(
    module: nn.Module, *inputs: Any, batch_axis: int = 0, rtol: float = 1e-10, seed: int = 0, **kwargs: Any
) -> None:
    """Check every contraction of the module's rule against per-example gradients by definition.

    Args:
        module: in float64, in the mode to be checked. Its output goes through a random non-linear loss.
        inputs: what it is called with; floating inputs are made to require gradients.
        batch_axis: the example axis.
        rtol: allowed relative error. With a wrong rule the error is of order one.
        seed: of the loss and of the directions.
        kwargs: keyword arguments of the call.
    """
    generator = torch.Generator().manual_seed(seed)
    inputs = tuple(
        v.detach().requires_grad_() if isinstance(v, Tensor) and v.is_floating_point() else v for v in inputs
    )
    host = nn.ModuleDict({"module": module})

    def run() -> Tensor:
        out = module(*inputs, **kwargs)
        out = out[0] if isinstance(out, tuple) else out
        assert isinstance(out, Tensor)
        weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed), dtype=out.dtype)
        return (out * weight + 0.5 * out.square()).sum()

    layers = select_layers(host)
    assert layers, f"{type(module).__name__} has no rule: {module}"
    capture = Capture(layers, batch_axis={"module": batch_axis})
    capture.scale = 3.0  # any factor must come through once in dots and squared in norms
    with capture:
        run().backward()
    for layer in layers:
        truth = 3.0 * reference_gradients(layer, run, batch_axis=batch_axis)
        calls = [call for call in capture.calls if call.layer == layer.name]
        _check_layer(layer, calls, truth, generator, rtol)
    module.zero_grad()


def _check_layer(
    layer: Layer, calls: list[LayerCapture], truth: Tensor, generator: torch.Generator, rtol: float
) -> None:
    batch, dims = truth.shape[0], layer.shape.dims
    assert truth.shape[1:] == dims, f"block shape {dims} but gradients {tuple(truth.shape)}"
    rule = calls[0].rule
    assert isinstance(rule, Rule)
    block = torch.randn(2, *dims, generator=generator, dtype=truth.dtype)
    again = layer.block(layer.tensors(block))
    _close(again, block, 0.0, f"{layer.name}: to_block(from_block)")
    for space in (ExactSpace(layer), ProjectedSpace(layer, rank=2, seed=7)):
        _check_space(space, calls, truth, generator, rtol)
    one = torch.randn(dims, generator=generator, dtype=truth.dtype)
    expected = torch.einsum("bgoi,goi->b", truth, one)
    _close(sum(rule.dot(call, one) for call in calls), expected, rtol, f"{layer.name}: dot", scale=_scale(truth, one))
    assert expected.shape == (batch,)


def _check_space(
    space: Space, calls: list[LayerCapture], truth: Tensor, generator: torch.Generator, rtol: float
) -> None:
    name, spaces = f"{space.layer.name} in {type(space).__name__}", {space.layer.name: space}
    if isinstance(space, ProjectedSpace):
        truth = space.left @ truth @ space.right.mT
    built = sum(space.examples(call) for call in calls)
    _close(built, truth, rtol, f"{name}: examples")
    for count in (1, 3):
        directions = torch.randn(count, *space.shape.dims, generator=generator, dtype=truth.dtype)
        found = dot_directions(calls, spaces, {space.layer.name: directions})
        expected = torch.einsum("bgoi,kgoi->bk", truth, directions)
        _close(found, expected, rtol, f"{name}: dots with {count}", scale=_scale(truth, directions[0]))
    _close(gradient_norms2(calls, spaces), truth.square().sum((1, 2, 3)), rtol, f"{name}: norm2")
    weights = torch.randn(truth.shape[0], 2, generator=generator, dtype=truth.dtype)
    combined = combine_gradients(calls, spaces, weights)[space.layer.name]
    _close(combined, torch.einsum("bgoi,bk->kgoi", truth, weights), rtol, f"{name}: combine")
    rows = [space.rows(call) for call in calls]
    _close(sum(r.output_grads @ r.inputs.mT for r in rows), truth, rtol, f"{name}: rows")


def check_solver(solver: Solver[Any], *, rtol: float = 1e-6, condition: float = 20.0, seed: int = 0) -> None:
    """Check that a solver solves, starts from the given point, and treats failure as data.

    Args:
        solver: with a tolerance and a budget that let it reach ``rtol`` on a matrix of this condition number.
        rtol: allowed relative error of the solution.
        condition: of the random symmetric positive definite test matrix.
        seed: of the problem.
    """
    generator = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(8, 8, generator=generator, dtype=torch.float64))[0]
    matrix = basis * torch.linspace(1, condition, 8, dtype=torch.float64) @ basis.mT
    prepared = solver.prepare(Dense(matrix))
    rhs = torch.randn(8, 3, generator=generator, dtype=torch.float64)
    truth = torch.linalg.solve(matrix, rhs)
    solved = solver.solve(prepared, rhs)
    _close(solved.value, truth, rtol * condition, "solve")
    assert solved.worst_status is SolveStatus.CONVERGED, f"status {solved.worst_status.name} on an easy problem"
    _close(solver.solve(prepared, rhs, truth).value, truth, rtol * condition, "solve from the solution")
    broken = rhs.clone()
    broken[0, 1] = torch.nan
    partly = solver.solve(prepared, broken)
    assert int(partly.status[1]) == SolveStatus.NON_FINITE, "a right-hand side with NaN must be NON_FINITE, not raise"
    assert bool(torch.isfinite(partly.value).all()), "values must be finite whatever the status"
    _close(partly.value[:, [0, 2]], truth[:, [0, 2]], rtol * condition, "the columns beside a broken one")


def check_curvature(
    make: Callable[[Mapping[str, BlockShape]], Curvature], *, rtol: float = 1e-6, seed: int = 0
) -> None:
    """Check that a backend's operator is symmetric positive definite and that everything it promises follows from it.

    Args:
        make: builds the backend in float64 for the given layers.
        rtol: allowed relative error.
        seed: of the observed batches.
    """
    shapes = {"conv": BlockShape(2, 2, 3, False), "fc": BlockShape(1, 3, 4, True)}
    generator = torch.Generator().manual_seed(seed)
    batches = [_random_rows(shapes, 6, generator) for _ in range(3)]
    whole, halves, resumed = make(shapes), make(shapes), make(shapes)
    for rows in batches:
        whole.observe(rows)
        halves.absorb(reduce_statistics([halves.measure(_cut(rows, 0, 2)), halves.measure(_cut(rows, 2, 6))]))
    dense = whole.operator().to_dense()
    _close(dense.mT, dense, rtol, "symmetry")
    assert float(torch.linalg.eigvalsh(dense)[0]) > 0, "the damped operator must be positive definite"
    _close(halves.operator().to_dense(), dense, rtol, "two parts of each batch, reduced, against the whole")
    vectors = {n: torch.randn(2, *s.dims, generator=generator, dtype=torch.float64) for n, s in shapes.items()}
    columns = flatten(vectors, shapes)
    _close(whole.operator().matmul(columns), dense @ columns, rtol, "operator against its dense form")
    _close(flatten(whole.solve(vectors), shapes), torch.linalg.solve(dense, columns), rtol, "solve")
    resumed.load_state_dict(whole.state_dict())
    broken = _random_rows(shapes, 6, generator)
    broken[0].output_grads[0] = torch.nan
    for curvature in (whole, resumed):
        curvature.observe(broken)
        curvature.observe(batches[0])
    found = whole.operator().to_dense()
    assert bool(torch.isfinite(found).all()), "a batch with NaN must not poison the estimate"
    assert torch.equal(found, resumed.operator().to_dense()), "a resumed estimate must continue exactly"


def _random_rows(shapes: Mapping[str, BlockShape], batch: int, generator: torch.Generator) -> list[GradientRows]:
    def draw(*size: int) -> Tensor:
        return torch.randn(batch, *size, generator=generator, dtype=torch.float64)

    return [
        GradientRows(name, draw(s.groups, s.inputs, positions), draw(s.groups, s.outputs, positions))
        for (name, s), positions in zip(shapes.items(), (3, 1), strict=True)
    ]


def _cut(rows: list[GradientRows], start: int, stop: int) -> list[GradientRows]:
    return [GradientRows(r.layer, r.inputs[start:stop], r.output_grads[start:stop]) for r in rows]


def _scale(truth: Tensor, direction: Tensor) -> float:
    """Size of an inner product before cancellation, the scale to compare its error with."""
    return float(truth.flatten(1).norm(dim=1).max() * direction.norm()) if truth.numel() else 1.0


def _close(found: Any, expected: Tensor, rtol: float, what: str, scale: float | None = None) -> None:
    assert isinstance(found, Tensor), what
    assert found.shape == expected.shape, f"{what}: shape {tuple(found.shape)}, expected {tuple(expected.shape)}"
    if not expected.numel():
        return
    size = float(expected.abs().max()) if scale is None else scale
    error = float((found - expected).abs().max())
    assert error <= rtol * max(size, 1e-30), (
        f"{what}: relative error {error / max(size, 1e-30):.2e}, allowed {rtol:.0e}"
    )
