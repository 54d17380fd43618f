"""One eval-mode forward pass over a user's model, and what each layer is given in it. The model is left as found.

Images come as users have them, batch after batch: a tensor, a dataset, a loader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from sgoif.errors import SgoifError
from sgoif.gradients import quiet_eval
from sgoif.gradients.contractions import widen
from sgoif.gradients.head import find_producer
from sgoif.inputs.examples import Examples
from sgoif.inputs.items import is_map_style, move_to, take_apart

__all__ = [
    "HeadFeatures",
    "concatenate_features",
    "device_of",
    "extract_all_features",
    "extract_features",
    "find_layers",
    "iterate_batches",
]

_Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
Forward = Callable[[Any], Tensor]


@dataclass(frozen=True, slots=True)
class HeadFeatures:
    """What a network sees of some inputs."""

    features: Tensor  # what enters the head, [B, d]
    logits: Tensor  # [B, C]
    pooled: Mapping[str, Tensor]  # by hidden layer: mean of its input over positions, [B, d_l]

    def take(self, positions: Tensor) -> HeadFeatures:
        """Take what it sees of some of them."""
        pooled = {name: rows[positions] for name, rows in self.pooled.items()}
        return HeadFeatures(self.features[positions], self.logits[positions], pooled)


def find_layers(model: nn.Module, forward: Forward, inputs: Any, head: str | None) -> tuple[str, list[str]]:
    """Find the head, and the convolutions and linear layers that see one row or map per example."""
    known = {name: module for name, module in model.named_modules() if isinstance(module, _Convolution | nn.Linear)}
    heads = {name: m for name, m in known.items() if isinstance(m, nn.Linear) or _is_pointwise(m)}
    found = find_producer(model, heads, lambda: forward(inputs))[0] if head is None else head
    if found not in known:
        raise SgoifError(f"the model has no linear layer or convolution {found!r}; it has {', '.join(known)}.")
    shapes: dict[str, torch.Size] = {}
    hooks = {name: lambda given, key=name: shapes.setdefault(key, given.shape) for name in known}
    with quiet_eval(model), torch.no_grad(), _hook(known, hooks):
        count = len(forward(inputs))
    # a layer that sees tokens first, or windows of several pictures, has no row of its own for each picture
    return found, [name for name, shape in shapes.items() if name != found and shape[0] == count and len(shape) > 1]


@torch.no_grad()
def extract_features(model: nn.Module, forward: Forward, inputs: Any, head: str, layers: Sequence[str]) -> HeadFeatures:
    """Run the model on a batch and keep what the layers are given; call inside :func:`sgoif.gradients.quiet_eval`."""
    modules = {name: model.get_submodule(name) for name in (head, *layers)}
    found: dict[str, Tensor] = {}

    def keeper(name: str) -> Callable[[Tensor], object]:
        return lambda given: found.setdefault(name, _pool(modules[name], given))

    with _hook(modules, {name: keeper(name) for name in modules}):
        logits = forward(inputs)
    missing = [name for name in modules if name not in found]
    if missing:
        raise SgoifError(f"the forward pass did not call {', '.join(missing)}, which features are taken from.")
    return HeadFeatures(found.pop(head), widen(logits), found)


def extract_all_features(
    model: nn.Module, forward: Forward, images: Any, head: str | None, batch_size: int, *, with_hidden: bool = True
) -> tuple[str, list[HeadFeatures]]:
    """Run the model on images as users have them: the head's name, and what is seen of each batch."""
    seen: list[HeadFeatures] = []
    layers: list[str] = []
    device = device_of(model)
    with quiet_eval(model):  # around the reading too: loaders draw random numbers
        for _, inputs in iterate_batches(images, batch_size):
            here = move_to(inputs, device)
            if not seen:
                head, layers = find_layers(model, forward, here, head)
            seen.append(extract_features(model, forward, here, str(head), layers if with_hidden else []))
    return str(head), seen


def concatenate_features(parts: Sequence[HeadFeatures]) -> HeadFeatures:
    """Batches as one."""
    pooled = {name: torch.cat([part.pooled[name] for part in parts]) for name in parts[0].pooled}
    return HeadFeatures(
        torch.cat([part.features for part in parts]), torch.cat([part.logits for part in parts]), pooled
    )


def _pool(module: nn.Module, given: Tensor) -> Tensor:
    """The mean over positions: ``[B, C, …]`` of a convolution, ``[B, …, D]`` of a linear layer."""
    wide = widen(given.detach())
    if isinstance(module, _Convolution):
        return wide.flatten(2).mean(2)
    return wide.clone() if wide.dim() == 2 else wide.flatten(1, -2).mean(1)


def _is_pointwise(module: nn.Module) -> bool:
    return isinstance(module, nn.Conv2d) and module.kernel_size == (1, 1)


@contextmanager
def _hook(modules: Mapping[str, nn.Module], hooks: Mapping[str, Callable[[Tensor], object]]) -> Iterator[None]:
    """Hand each module's first input to its hook, at every call."""

    def before(name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def call(_module: nn.Module, given: tuple[Any, ...]) -> None:
            if given and isinstance(given[0], Tensor):
                hooks[name](given[0])

        return call

    handles = [module.register_forward_pre_hook(before(name)) for name, module in modules.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def iterate_batches(images: Any, batch_size: int) -> Iterator[tuple[Sequence[Any], Any]]:
    """Yield ids and inputs of each batch.

    Args:
        images: inputs alone, or whatever :class:`sgoif.inputs.Examples` reads; a ``DataLoader`` is gone through as it
            is. Labels are not looked at.
        batch_size: of what is no loader.
    """
    if isinstance(images, DataLoader):
        start = 0
        for batch in images:
            inputs = take_apart(batch).input
            count = len(next(iter(inputs.values())) if isinstance(inputs, Mapping) else inputs)
            yield range(start, start + count), inputs
            start += count
        return
    if not (is_map_style(images) or isinstance(images, Tensor | Mapping)):
        raise SgoifError(f"images must be a tensor, a dataset or a DataLoader, got {type(images).__name__}.")
    if not len(images):
        return
    examples = Examples(images, role="images")
    for start in range(0, len(examples), batch_size):
        positions = torch.arange(start, min(start + batch_size, len(examples)))
        yield [examples.ids[i] for i in positions.tolist()], examples.inputs(positions)


def device_of(model: nn.Module) -> torch.device:
    """Where the model is."""
    first = next(model.parameters(), None)
    return torch.device("cpu") if first is None else first.device
