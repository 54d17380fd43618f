"""Which layers of a language model are scored: its adapter, or the linear layers of its last block."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from sgoif.errors import CoverageError
from sgoif.gradients.affine import LinearRule
from sgoif.gradients.layers import Coverage, Layer, select_layers, survey

__all__ = ["find_sequence_layers"]

_ADAPTERS = ("lora_A", "lora_B")  # names of PEFT's modules that hold the matrices of an adapter


def find_sequence_layers(model: nn.Module, names: Iterable[str] | None = None) -> tuple[Layer, ...]:
    """Return the layers asked for; else the trained LoRA matrices; else the linear layers of the last block.

    Raises:
        CoverageError: a layer asked for cannot be scored (tied, frozen or without a rule), or there is none to choose.
    """
    if names is not None:
        return select_layers(model, names)
    coverage = survey(model)
    linears = [layer for layer in coverage.layers if isinstance(layer.rule, LinearRule)]
    found = [layer for layer in linears if any(part in _ADAPTERS for part in layer.module_name.split("."))]
    if not found:
        block = _last_block(model)
        found = [layer for layer in linears if block is not None and layer.module_name.startswith(f"{block}.")]
    if not found:
        raise CoverageError(
            "no layer to score: the model has neither trained LoRA matrices nor trained linear layers in its last "
            f"block. Name some with method=sgoif.Method(layers=[...]); {_describe(coverage)}"
        )
    return tuple(found)


def _last_block(model: nn.Module) -> str | None:
    """Name of the last entry of the model's longest list of blocks; of two alike, as in a T5, the later one."""
    lists: dict[str, nn.ModuleList] = {}
    for name, module in model.named_modules():
        is_inner = any(name.startswith(f"{outer}.") for outer in lists)
        if isinstance(module, nn.ModuleList) and len(module) and not is_inner:
            lists[name] = module
    if not lists:
        return None
    longest = max(map(len, lists.values()))
    name = [key for key, blocks in lists.items() if len(blocks) == longest][-1]
    return f"{name}.{longest - 1}"


def _describe(coverage: Coverage) -> str:
    names = [layer.name for layer in coverage.layers]
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    return f"those that can be scored: {shown}." if names else "none of its layers can be scored."
