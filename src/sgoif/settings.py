"""Settings of :func:`sgoif.watch` and :func:`sgoif.audit`: the loss, the method, and what watching may cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor, nn

from sgoif.distributed.group import TIMEOUT_S
from sgoif.errors import SgoifError
from sgoif.gradients import Layer
from sgoif.training.clock import Clock, PairedProbe
from sgoif.training.losses import Loss, Losses
from sgoif.training.method import Method
from sgoif.training.schedule import MAX_OVERHEAD, Governor, Plan
from sgoif.training.sinks import KeepVisits

__all__ = [
    "FROZEN_DAMPING",
    "Budget",
    "Loss",
    "Method",
    "Request",
    "Settings",
    "as_loss",
    "damp_frozen",
    "describe_method",
    "group_settings",
    "make_governor",
    "refuse_changes",
]


# Times the mean eigenvalue of each factor, where features do not learn. Pretrained features have a few strong
# directions (the largest eigenvalue is 50 times the mean, unstandardised 390 times) and a thousand weak ones, which 0.1
# amplifies. On the development set (frozen EfficientNet, pair-20 and human noise) `harm` of an audit lost 12 to
# 34 AP to H = I at 0.1 and at most 0.9 at 100, where `worst` gained up to 1.9. At 10 `worst` gained up to 6.4, but
# `harm` lost 4.5 where the hold-out was noisy.
FROZEN_DAMPING = 100.0


@dataclass(frozen=True, slots=True)
class Budget:
    """What watching may cost, and what is kept of it.

    Attributes:
        max_overhead: share of the bare step that scoring may cost, 0.05 for 5%. The plan is made sparser to stay below.
        plan: fixes what is done at which step instead; then nothing limits the overhead.
        keep_visits: ``"all"``, ``"last"`` (on disk: those of the last epoch) or ``"none"`` (only their sums).
        peer_timeout_s: how long a rank waits for the others before it trains on without scoring.

    >>> Budget(max_overhead=0.05)
    Budget(max_overhead=0.05, plan=None, keep_visits='all', peer_timeout_s=120.0)
    """

    max_overhead: float = MAX_OVERHEAD
    plan: Plan | None = None
    keep_visits: KeepVisits = "all"
    peer_timeout_s: float = TIMEOUT_S

    def __post_init__(self) -> None:
        if isinstance(self.max_overhead, str) or not 0 < self.max_overhead <= 1:
            raise SgoifError(f"max_overhead is a share of the bare step, 0.05 for 5%, got {self.max_overhead!r}.")
        if self.plan is not None and not isinstance(self.plan, Plan):
            raise SgoifError(f"plan must be a sgoif.Plan, got {self.plan!r}.")
        if self.plan is not None and self.max_overhead != MAX_OVERHEAD:
            raise SgoifError("a fixed plan costs what it costs: pass max_overhead or plan, not both.")


@dataclass(frozen=True, slots=True)
class Settings:
    """The three groups."""

    loss: Loss
    method: Method
    budget: Budget


@dataclass(frozen=True, slots=True)
class Request:
    """What a call of :func:`sgoif.watch` or :func:`sgoif.audit` asks for, whatever the task."""

    model: nn.Module  # without a wrapper
    forward: Callable[[Any], Tensor]  # inputs to logits
    anchors: Any
    settings: Settings
    class_names: Sequence[str] | None
    trusted: bool
    seed: int
    is_compiled: bool = False  # whether the model, as the user calls it, runs compiled

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def facts(self) -> dict[str, Any]:
        """What a run's information keeps of it."""
        return {"trusted": self.trusted, "class_names": list(self.class_names or []), "seed": self.seed}


_GROUPS: Mapping[str, type] = {"loss": Loss, "method": Method, "budget": Budget}


def as_loss(loss: Loss | Losses | None, **known: Any) -> Loss:
    """The loss as settings: a plain function is its ``per_example``. What is known besides overrides."""
    if loss is not None and not isinstance(loss, Loss) and not callable(loss):
        raise SgoifError(f"loss must be a function of outputs and targets, or a sgoif.Loss, got {loss!r}.")
    return replace(loss if isinstance(loss, Loss) else Loss(per_example=loss), **known)


def group_settings(
    caller: str,
    unknown: Iterable[str],
    *,
    loss: Loss | Losses | None = None,
    method: Method | None = None,
    budget: Budget | None = None,
) -> Settings:
    """Complete the groups.

    Args:
        caller: the function that was called.
        unknown: keywords that it does not have.
        loss: as given to it.
        method: as given to it.
        budget: as given to it.

    Raises:
        TypeError: There are unknown keywords; the message names the setting that is meant.
    """
    found: dict[str, Any] = {"loss": as_loss(loss), "method": method or Method(), "budget": budget or Budget()}
    for group, kind in _GROUPS.items():
        if not isinstance(found[group], kind):
            raise SgoifError(f"{group} must be a sgoif.{kind.__name__}, got {found[group]!r}.")
    for name in unknown:
        raise TypeError(f"{caller}() got an unexpected keyword argument {name!r}{_hint(name)}")
    return Settings(**found)


def _hint(name: str) -> str:
    """Where a field of that name is, or of one that is nearly the same."""
    known = {
        field.name: f"{group}=sgoif.{kind.__name__}({field.name}=...)"
        for group, kind in _GROUPS.items()
        for field in fields(kind)
    }
    near = get_close_matches(name, known, n=1)
    return f"; did you mean {known[near[0]]}?" if near else ""


def make_governor(budget: Budget, device: torch.device, *, start: Plan | None = None) -> Governor:
    """What holds the cost of watching within a budget; ``start`` is the task's own plan to begin with."""
    clock = Clock(device)
    # where the device runs behind the host, only pairs of steps tell the cost; a fixed plan gives up no visits for it
    paired = None if clock.is_exact or budget.plan is not None else PairedProbe(clock)
    return Governor(
        budget.plan or start or Plan(),
        max_overhead=budget.max_overhead,
        fixed=budget.plan is not None,
        clock=clock,
        probe=paired,
    )


def damp_frozen(method: Method, model: nn.Module, head: Layer) -> Method:
    """Damp K-FAC for features that do not learn, where the head alone does and no settings of it are given."""
    learning = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    is_head_alone = learning == {id(parameter) for parameter in head.parameters.values()}
    if method.curvature_settings is not None or method.curvature != "kfac" or not is_head_alone:
        return method
    return replace(method, curvature_settings={"relative_damping": FROZEN_DAMPING})


def describe_method(method: Method, layers: Sequence[Layer]) -> dict[str, Any]:
    """What a run's information says of how influence was estimated, and at which layers."""
    told = ("curvature", "curvature_settings", "solver", "gate", "head", "layers", "rank", "planned_steps")
    asked = {field.name: (getattr(method, field.name), field.default) for field in fields(Method)}
    return {
        "curvature": method.curvature,
        "curvature_settings": dict(method.curvature_settings or {}),
        "solver": method.solver,
        "gate": method.gate_settings.mode,
        "layers": [layer.name for layer in layers],
        **{name: value for name, (value, usual) in asked.items() if name not in told and value != usual},
    }


def refuse_changes(settings: Settings, task: str, allowed: Mapping[str, Sequence[str]]) -> None:
    """Raise for settings that a task has not: what is asked for must not be ignored.

    Args:
        settings: of the user.
        task: its name.
        allowed: fields that it has, by group: loss, method, budget.
    """
    changed = [
        f"{type(group).__name__}.{field.name}"
        for name, has in allowed.items()
        for group in [getattr(settings, name)]
        for field in fields(group)
        if field.name not in has and getattr(group, field.name) != getattr(type(group)(), field.name)
    ]
    if changed:
        raise SgoifError(f"task={task!r} has no {', '.join(changed)}; leave it out.")
