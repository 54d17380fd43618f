"""Many classes: the output factor of their curvature is a diagonal."""

import torch

from sgoif.curvature import create
from sgoif.records import BlockShape, GradientRows


def test_above_64_outputs_the_output_factor_is_a_diagonal():
    shape, generator = {"fc": BlockShape(1, 70, 4, True)}, torch.Generator().manual_seed(0)
    a, b = torch.randn(30, 1, 4, 1, generator=generator), torch.randn(30, 1, 70, 1, generator=generator)
    curvature = create("kfac", shape, diagonal_above=64)
    curvature.observe([GradientRows("fc", a, b)])
    whole = torch.einsum("bgot,bgpt->gop", b, b) / 30
    state = curvature.state_dict()
    assert state["tensors"]["fc/outputs"].shape == (1, 70)
    weight = state["tensors"]["fc/weight"]
    torch.testing.assert_close(state["tensors"]["fc/outputs"][0] / weight, whole[0].diagonal())
    rhs = {"fc": torch.randn(1, 1, 70, 4, generator=generator)}
    solved = curvature.solve(rhs)["fc"].flatten().double()
    product = curvature.operator("fc").to_dense().double() @ solved
    torch.testing.assert_close(product, rhs["fc"].flatten().double(), rtol=1e-4, atol=1e-4)
