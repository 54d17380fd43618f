"""The user's model as we read it: its forward pass, its layers, and what of it is refused."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sgoif.distributed import is_sharded, unwrap
from sgoif.errors import SgoifError
from sgoif.gradients.affine import LinearRule
from sgoif.gradients.functional import FunctionalRule
from sgoif.gradients.head import check_output, describe_softmax, squashing
from sgoif.gradients.layers import Layer, select_layers
from sgoif.gradients.quiet import quiet_eval
from sgoif.gradients.rules import CompositeRule, rule_for
from sgoif.inputs.examples import Examples

__all__ = [
    "check_class_names",
    "compiled_modules",
    "default_forward",
    "find_logits",
    "is_compiled",
    "other_layers",
    "plain_model",
    "predict_classes",
    "refuse_in_pieces",
    "refuse_one_output",
    "refuse_softmax",
]


_COMPILED = ("_orig_mod", "_compiled_call_impl", "_compiler_ctx")  # by torch.compile, Module.compile, Lightning


def default_forward(model: nn.Module) -> Callable[[Any], Tensor]:
    """``model(inputs)``, logits read out of a tuple or ``.logits``; channels last where the model is."""
    first = next((m for m in model.modules() if isinstance(m, nn.Conv2d)), None)
    is_last = (
        first is not None
        and first.weight.shape[1] > 1
        and first.weight.is_contiguous(memory_format=torch.channels_last)
        and not first.weight.is_contiguous()
    )

    def forward(inputs: Any) -> Tensor:
        if is_last and isinstance(inputs, Tensor) and inputs.dim() == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        return find_logits(_call(model, inputs) if isinstance(inputs, Mapping) else model(inputs))

    return forward


def _call(model: nn.Module, inputs: Mapping[str, Any]) -> Any:
    """Call a model with the entries of a batch that it knows by name; with the only one, where it knows none."""
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):  # compiled code need not tell
        return model(**inputs)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return model(**inputs)
    names = {parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_POSITIONAL}
    known = {name: value for name, value in inputs.items() if name in names}
    if known:
        return model(**known)
    tensors = [value for value in inputs.values() if isinstance(value, Tensor)]
    if len(tensors) == 1:
        return model(tensors[0])
    raise SgoifError(
        f"a batch has {', '.join(map(str, inputs))}, and the model's forward() takes {', '.join(names) or 'nothing'}; "
        "pass forward=, a function from such a batch to logits [B, C]."
    )


def find_logits(out: Any) -> Tensor:
    """The logits in what a model returns: itself, the first of a tuple, or a field of that name."""
    if isinstance(out, Mapping):
        out = out.get("logits")
    elif hasattr(out, "logits"):
        out = out.logits
    elif isinstance(out, tuple | list) and len(out):
        out = out[0]
    if not isinstance(out, Tensor):
        raise SgoifError(
            "the model's result is neither logits, nor a tuple that begins with them, nor has it a field `logits`; "
            "pass forward=, a function from inputs to logits [B, C]."
        )
    return out


def predict_classes(model: nn.Module, forward: Callable[[Any], Tensor], examples: Examples, batch_size: int) -> Tensor:
    """The most probable class of every example ``[N]``, in eval mode; the model is left as found."""
    found = []
    with quiet_eval(model), torch.no_grad():
        for positions in torch.arange(len(examples)).split(batch_size):
            logits = forward(examples.inputs(positions))
            check_output(logits)
            found.append(logits.argmax(1).cpu())
    return torch.cat(found)


def plain_model(model: nn.Module) -> nn.Module:
    """The module to look into, without what is wrapped around it: for several processes, or by ``torch.compile``."""
    inner = unwrap(model)
    inner = getattr(inner, "_orig_mod", inner)
    return model if inner is model else plain_model(inner)


def is_compiled(model: nn.Module) -> bool:
    """Whether a model, as it is called, runs compiled as a whole."""
    return any(getattr(module, mark, None) is not None for module in (model, unwrap(model)) for mark in _COMPILED)


def compiled_modules(model: nn.Module, layers: Sequence[Layer], *, is_whole: bool) -> list[str]:
    """Names of the layers' modules that run compiled, alone or as a part of another.

    Args:
        model: without a wrapper.
        layers: to be watched while they train.
        is_whole: whether the model is compiled, see :func:`is_compiled`.

    Raises:
        SgoifError: one of them is scored by more than the tensor that goes in and the one that comes out.
    """
    found = [layer for layer in layers if is_whole or _is_part_compiled(model, layer.module_name)]
    for layer in found:
        if isinstance(layer.rule, FunctionalRule) or isinstance(rule_for(layer.module), CompositeRule):
            raise SgoifError(
                f"{layer.name!r} is compiled, and a compiled {type(layer.module).__name__} cannot be scored: its graph "
                "shows one tensor that goes in and one that comes out. Leave it out of the scored layers, or train "
                "without torch.compile."
            )
    return [layer.module_name for layer in found]


def _is_part_compiled(model: nn.Module, module_name: str) -> bool:
    names = module_name.split(".")
    above = [model.get_submodule(".".join(names[:depth])) for depth in range(len(names) + 1)]
    return any(map(is_compiled, above))


def refuse_one_output(head: Layer) -> None:
    """Raise for a binary classifier with one logit, whose two classes have no gradient each."""
    if head.shape.outputs < 2:
        raise SgoifError(
            f"the head {head.name!r} has one output; expected one per class. Give it two outputs and train it with "
            "cross-entropy, or pass task='multilabel' with targets [B, 1] of 0 and 1."
        )


def check_class_names(names: Sequence[str] | None, *counts: int) -> None:
    """Raise unless there is one name per class: as many as one of ``counts``, the model's outputs first."""
    if names is not None and len(names) and len(names) not in counts:
        raise SgoifError(
            f"class_names= has {len(names)} names, but the model has {counts[0]} classes; give one name per class, in "
            "the order of the model's outputs."
        )


def refuse_softmax(model: nn.Module, head: Layer, run: Callable[[], Tensor]) -> None:
    """Raise if the model gives probabilities: the usual loss takes logits, and would take their softmax once more."""
    if is_sharded(*model.parameters()):
        return
    seen: list[Tensor] = []
    hook = head.module.register_forward_hook(lambda _module, _inputs, out: seen.append(out.detach().clone()))
    try:
        with quiet_eval(model), torch.no_grad():
            logits = run().detach()
    finally:
        hook.remove()
    if len(seen) == 1 and squashing(seen[0], logits) == "softmax":
        raise SgoifError(describe_softmax(head.name))


def refuse_in_pieces(layer: Layer) -> None:
    """Raise if a layer's rule looks at its parameters, and these are pieces."""
    is_plain = isinstance(layer.rule, LinearRule) or isinstance(layer.module, nn.modules.conv._ConvNd)
    if not is_plain and is_sharded(*layer.parameters.values()):
        raise SgoifError(f"{layer.name!r} is sharded; of sharded layers Linear and convolutions can be scored.")


def other_layers(model: nn.Module, head: Layer, names: str | Sequence[str]) -> list[Layer]:
    """Layers by name, without the head."""
    wanted = [names] if isinstance(names, str) else list(names)
    return list(select_layers(model, [name for name in wanted if name != head.name])) if wanted else []
