"""Which layers of a model can be scored, what is left uncovered and why: nothing is dropped in silence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from sgoif.errors import CoverageError
from sgoif.gradients.functional import FunctionalRule
from sgoif.gradients.rules import CompositeRule, Rule, is_composite, rule_for
from sgoif.records import BlockShape

__all__ = ["Coverage", "Layer", "Uncovered", "select_layers", "survey"]

_FUNCTIONAL = FunctionalRule()


@dataclass(frozen=True, slots=True)
class Layer:
    """One scorable layer: a module, or one of the maps hidden inside a module."""

    name: str
    module_name: str
    module: nn.Module
    rule: Rule

    @property
    def shape(self) -> BlockShape:
        return self.rule.block_shape(self.module)

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The layer's parameters by the name that ``model.named_parameters()`` gives them."""
        return {_join(self.module_name, name): value for name, value in self.rule.parameters(self.module).items()}

    def block(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Arrange tensors keyed and shaped like :attr:`parameters` (leading axes allowed) into ``[..., G, O, I]``."""
        local = {own: tensors[full] for full, own in self._names()}
        return self.rule.to_block(self.module, local)

    def tensors(self, block: Tensor) -> dict[str, Tensor]:
        """Undo :meth:`block`."""
        local = self.rule.from_block(self.module, block)
        return {full: local[own] for full, own in self._names()}

    def _names(self) -> list[tuple[str, str]]:
        return list(zip(self.parameters, self.rule.parameters(self.module), strict=True))


@dataclass(frozen=True, slots=True)
class Uncovered:
    """Parameters that no rule scores, with the reason in words."""

    name: str
    reason: str
    num_parameters: int
    parameters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Coverage:
    """What of a model's trainable parameters can be scored.

    >>> model = nn.Sequential(nn.Linear(4, 3), nn.Bilinear(3, 3, 2))
    >>> print(survey(model))
    1 of 2 layers scored by exact rules, 0 by forward-mode differentiation: 42.9% of 35 trainable parameters
      not scored: 1 (20 parameters): Bilinear takes several inputs
    """

    layers: tuple[Layer, ...]
    uncovered: tuple[Uncovered, ...]
    frozen: tuple[str, ...]

    @property
    def num_covered(self) -> int:
        return sum(p.numel() for layer in self.layers for p in layer.parameters.values())

    @property
    def num_trainable(self) -> int:
        return self.num_covered + sum(item.num_parameters for item in self.uncovered)

    @property
    def share_of_parameters(self) -> float:
        return self.num_covered / self.num_trainable if self.num_trainable else 0.0

    def __str__(self) -> str:
        by_jvp = sum(isinstance(layer.rule, FunctionalRule) for layer in self.layers)
        lines = [
            f"{len(self.layers) - by_jvp} of {len(self.layers) + len(self.uncovered)} layers scored by exact rules, "
            f"{by_jvp} by forward-mode differentiation: {self.share_of_parameters:.1%} of {self.num_trainable} "
            "trainable parameters"
        ]
        lines += [f"  not scored: {u.name} ({u.num_parameters} parameters): {u.reason}" for u in self.uncovered]
        if self.frozen:
            lines.append(f"  frozen, so without gradients: {len(self.frozen)} layers")
        return "\n".join(lines)


def survey(model: nn.Module) -> Coverage:
    """Sort every module that owns trainable parameters into scorable, uncovered and frozen."""
    layers: list[Layer] = []
    uncovered: list[Uncovered] = []
    frozen: list[str] = []
    owners = _owners(model)
    inside_composite: set[str] = set()
    for name, module in model.named_modules():
        if name in inside_composite:
            continue
        rule = rule_for(module)
        hides_children = is_composite(module) or nn.utils.parametrize.is_parametrized(module)
        if hides_children:
            inside_composite |= {_join(name, child) for child, _ in module.named_modules() if child}
        if isinstance(rule, CompositeRule):
            found = [Layer(_join(name, suffix), name, module, part) for suffix, part in rule.layers(module).items()]
        elif hides_children:
            _place_uncovered(name, module, str(rule), uncovered, frozen, recurse=True)
            continue
        elif not any(True for _ in module.parameters(recurse=False)):
            continue
        elif isinstance(rule, Rule):
            found = [Layer(name, name, module, rule)]
        elif reason := _no_fallback(module, rule):
            _place_uncovered(name, module, reason, uncovered, frozen)
            continue
        else:
            found = [Layer(name, name, module, _FUNCTIONAL)]
        for layer in found:
            problem = _problem(layer, owners)
            if problem == "frozen":
                frozen.append(layer.name)
            elif problem:
                names = tuple(layer.parameters)
                uncovered.append(Uncovered(layer.name, problem, _trainable(layer.parameters.values()), names))
            else:
                layers.append(layer)
    return Coverage(tuple(layers), tuple(uncovered), tuple(frozen))


def select_layers(model: nn.Module, names: Iterable[str] | None = None) -> tuple[Layer, ...]:
    """Return the layers asked for (all scorable ones by default).

    Raises:
        CoverageError: naming, all at once, every layer asked for that is unknown, frozen or has no rule.
    """
    coverage = survey(model)
    known = {layer.name: layer for layer in coverage.layers}
    if names is None:
        return coverage.layers
    wanted = list(names)
    reasons = {item.name: item.reason for item in coverage.uncovered} | {name: "frozen" for name in coverage.frozen}
    problems = [f"{name}: {reasons.get(name, 'no such layer')}" for name in wanted if name not in known]
    if problems:
        raise CoverageError(
            "These layers cannot be scored:\n  " + "\n  ".join(problems) + "\nLayers that can: " + ", ".join(known)
        )
    return tuple(known[name] for name in wanted)


def _no_fallback(module: nn.Module, reason: str) -> str:
    """Why forward-mode differentiation of this module alone will not do; empty where it will."""
    if any(True for _ in module.children()):
        return f"its own parameters act through a module with children ({type(module).__name__})"
    if isinstance(module, nn.RNNBase):
        return f"{type(module).__name__} carries state along the sequence"
    if isinstance(module, nn.Bilinear):
        return "Bilinear takes several inputs"
    is_other = reason.startswith(("no rule", f"{type(module).__name__} overrides"))
    return "" if is_other and not isinstance(module, nn.SyncBatchNorm) else reason


def _place_uncovered(
    name: str, module: nn.Module, reason: str, uncovered: list[Uncovered], frozen: list[str], *, recurse: bool = False
) -> None:
    own = dict(module.named_parameters(recurse=recurse))
    count = _trainable(own.values())
    if not count:
        frozen.append(name or type(module).__name__)
        return
    names = tuple(_join(name, key) for key in own)
    uncovered.append(Uncovered(name or type(module).__name__, reason, count, names))


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _trainable(parameters: Iterable[nn.Parameter]) -> int:
    return sum(p.numel() for p in parameters if p.requires_grad)


def _owners(model: nn.Module) -> dict[int, list[str]]:
    """Names under which each parameter tensor appears; more than one means that it is tied."""
    owners: dict[int, list[str]] = {}
    for name, value in model.named_parameters(remove_duplicate=False):
        owners.setdefault(id(value), []).append(name)
    return owners


def _problem(layer: Layer, owners: Mapping[int, list[str]]) -> str | None:
    requires = [value.requires_grad for value in layer.parameters.values()]
    if not any(requires):
        return "frozen"
    if not all(requires):
        names = [name for name, value in layer.parameters.items() if not value.requires_grad]
        return f"partly frozen ({', '.join(names)}); freeze or train the whole layer"
    for value in layer.parameters.values():
        names = owners.get(id(value), [])
        if len(names) > 1:
            return f"its parameters are tied across modules: {' = '.join(names)}"
    return None
