"""Products with the Gauss-Newton matrix itself, which the curvature estimates stand in for.

Convention: ``loss`` maps a batch's outputs to its **mean** loss, as the estimates have it; a sum gives products larger
by the batch size. A product costs a few forward and backward passes and no memory for matrices, through
:mod:`torch.func`. The model behind ``outputs`` must be a pure function of the parameters given
(``torch.func.functional_call`` in evaluation mode).
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.func import grad, jvp, vjp

from sgoif.errors import CurvatureError

__all__ = ["ggn_product"]

Params = dict[str, Tensor]


def ggn_product(
    outputs: Callable[[Params], Tensor], loss: Callable[[Tensor], Tensor], params: Params, vector: Params
) -> Params:
    """Return ``Jᵀ H_L J v``, the Gauss-Newton product: one forward-mode and one reverse-mode pass through the model.

    ``J`` is the Jacobian of ``outputs`` and ``H_L`` the Hessian of ``loss`` at the outputs. Positive semidefinite for
    convex losses.

    >>> import torch
    >>> x = torch.tensor([[1.0], [2.0]])
    >>> one = {"w": torch.ones(1)}
    >>> ggn_product(lambda p: x * p["w"], lambda y: y.square().mean(), one, one)["w"]  # 2 mean(x²)
    tensor([5.])
    """
    wrong = [
        n for n in set(params) | set(vector) if n not in params or n not in vector or params[n].shape != vector[n].shape
    ]
    if wrong:
        raise CurvatureError(
            f"the vector needs the names and shapes of the parameters; they differ in {sorted(wrong)}."
        )
    pushed = jvp(outputs, (params,), (vector,))  # (y, J v)
    curved = jvp(grad(loss), (pushed[0],), (pushed[1],))[1]
    pull_back = vjp(outputs, params)[1]
    return dict(pull_back(curved)[0])
