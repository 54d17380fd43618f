"""A model of the user's own, by ``module:factory``, and random examples to try it on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sgoif.errors import SgoifError
from sgoif.usercode import describe_error, import_named

if TYPE_CHECKING:
    from torch import Tensor, nn


def load_model(name: str, device: str = "cpu") -> nn.Module:
    """Call ``module:factory`` without arguments and return the model that it makes.

    Raises:
        SgoifError: There is no such module or factory, or what it makes is no model.
    """
    import torch
    from torch import nn

    made = import_named(name, "--model")
    try:
        model = made() if not isinstance(made, nn.Module) else made
    except Exception as error:  # the user's code may raise anything
        raise SgoifError(f"--model {name!r}, called without arguments, raised {describe_error(error)}.") from error
    if not isinstance(model, nn.Module):
        raise SgoifError(f"{name!r} must make a torch.nn.Module, it made {type(model).__name__}.")
    try:
        return model.to(torch.device(device))
    except (RuntimeError, AssertionError) as error:
        raise SgoifError(f"the model cannot be put on {device!r}: {str(error).splitlines()[0]}") from error


def load_transform(name: str | None) -> Any:
    """Import ``module:function``; None for none."""
    return None if name is None else import_named(name, "--transform")


def parse_shape(text: str) -> tuple[int, ...]:
    """Read the shape of one example.

    >>> parse_shape("3,32,32")
    (3, 32, 32)
    """
    try:
        shape = tuple(int(part) for part in text.replace("x", ",").split(","))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        raise SgoifError(f"--input takes the shape of one example, such as 3,32,32, got {text!r}.")
    return shape


def random_batch(model: nn.Module, shape: tuple[int, ...], size: int, classes: int) -> tuple[Tensor, Tensor]:
    """Make a batch of noise with labels, where the model lies.

    Raises:
        SgoifError: The model does not take such a batch, or tells another number of classes apart.
    """
    import torch

    parameter = next(model.parameters(), None)
    if parameter is None:
        raise SgoifError("the model has no parameters.")
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(size, *shape, generator=generator).to(parameter)
    labels = (torch.arange(size) % classes).to(parameter.device)
    was_training = model.training
    try:
        with torch.no_grad():
            out = model.eval()(inputs[:2])
    except Exception as error:  # the user's code may raise anything
        raise SgoifError(
            f"the model does not take inputs of shape [{size}, {', '.join(map(str, shape))}] "
            f"({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}); pass the shape of one "
            "example with --input."
        ) from error
    finally:
        model.train(was_training)
    out = getattr(out, "logits", out)
    if hasattr(out, "shape") and out.shape[-1] != classes:
        raise SgoifError(f"the model tells {out.shape[-1]} classes apart; pass --classes {out.shape[-1]}.")
    return inputs, labels
