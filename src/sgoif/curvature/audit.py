"""How far the surrogate is from the truth: products with the real GGN and Hessian, for a few vectors now and then.

Convention: ``loss`` maps a batch's outputs to its **mean** loss, as the surrogates estimate it; a sum gives products
larger by the batch size. Both products cost a few forward and backward passes and no memory for matrices, through
:mod:`torch.func`. The model behind ``outputs`` must be a pure function of the parameters given
(``torch.func.functional_call`` in evaluation mode).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.func import grad, jvp, vjp

from sgoif.errors import CurvatureError
from sgoif.linalg import axpy, norm

__all__ = ["audit_residual", "ggn_product", "hessian_product"]

Params = dict[str, Tensor]


def ggn_product(
    outputs: Callable[[Params], Tensor], loss: Callable[[Tensor], Tensor], params: Params, vector: Params
) -> Params:
    """Return ``Jᵀ H_L J v``, the Gauss-Newton product: one forward-mode and one reverse-mode pass through the model.

    ``J`` is the Jacobian of ``outputs`` and ``H_L`` the Hessian of ``loss`` at the outputs. Positive semidefinite for
    convex losses.

    >>> x = torch.tensor([[1.0], [2.0]])
    >>> one = {"w": torch.ones(1)}
    >>> ggn_product(lambda p: x * p["w"], lambda y: y.square().mean(), one, one)["w"]  # 2 mean(x²)
    tensor([5.])
    """
    _check(params, vector)
    pushed = jvp(outputs, (params,), (vector,))  # (y, J v)
    curved = jvp(grad(loss), (pushed[0],), (pushed[1],))[1]
    pull_back = vjp(outputs, params)[1]
    return dict(pull_back(curved)[0])


def hessian_product(
    outputs: Callable[[Params], Tensor], loss: Callable[[Tensor], Tensor], params: Params, vector: Params
) -> Params:
    """Return ``∇² loss(outputs(params)) v``, forward over reverse; indefinite in general.

    >>> hessian_product(lambda p: p["w"], lambda y: (y**3).sum(), {"w": torch.tensor([2.0])}, {"w": torch.ones(1)})["w"]
    tensor([12.])
    """
    _check(params, vector)

    def objective(at: Params) -> Tensor:
        return loss(outputs(at))

    return dict(jvp(grad(objective), (params,), (vector,))[1])


def audit_residual(
    true_product: Mapping[str, Tensor], surrogate_product: Mapping[str, Tensor], g: Mapping[str, Tensor]
) -> Tensor:
    """Return ``|(H_true - H_t) φ| / |g|`` per leading index, from both products with the same ``φ``; 0 where ``g = 0``.

    All three are parameter vectors in block form, ``{layer: [..., G, O, I]}``. Added to the solver's own relative
    residual, this bounds the residual against the true matrix.

    >>> one = {"fc": torch.ones(1, 1, 1)}
    >>> audit_residual({"fc": torch.full((1, 1, 1), 3.0)}, one, one)
    tensor(2.)
    """
    size = norm(g)
    gap = norm(axpy(-1.0, surrogate_product, true_product))
    return torch.where(size > 0, gap / torch.where(size > 0, size, torch.ones_like(size)), torch.zeros_like(gap))


def _check(params: Params, vector: Params) -> None:
    wrong = [
        n for n in set(params) | set(vector) if n not in params or n not in vector or params[n].shape != vector[n].shape
    ]
    if wrong:
        raise CurvatureError(
            f"the vector needs the names and shapes of the parameters; they differ in {sorted(wrong)}."
        )
