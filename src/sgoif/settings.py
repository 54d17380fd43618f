"""Settings of :func:`sgoif.watch` and :func:`sgoif.audit`: the loss, the method, and what watching may cost."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from sgoif.distributed.group import TIMEOUT_S
from sgoif.training.clock import Clock, PairedProbe
from sgoif.training.engine import Method
from sgoif.training.losses import Loss, Losses
from sgoif.training.schedule import Governor, Plan
from sgoif.training.sinks import KeepVisits

__all__ = ["Budget", "Loss", "Method", "Settings", "as_loss", "describe_changes", "group_settings", "make_governor"]


@dataclass(frozen=True, slots=True)
class Budget:
    """What watching may cost, and what is kept of it.

    >>> Budget(max_overhead=0.05)
    Budget(max_overhead=0.05, plan=None, batch_size=None, keep_visits='all', peer_timeout_s=120.0)
    """

    max_overhead: float = 0.10  # share of the bare step that scoring may cost; the plan is made rarer to hold it
    plan: Plan | None = None  # fixes what is done when, and turns that off
    batch_size: int | None = None  # examples of a (micro-)batch, for a forecast before the first step
    keep_visits: KeepVisits = "all"  # or "last" (on disk: those of the last epoch), or "none", their sums only
    peer_timeout_s: float = TIMEOUT_S  # a rank waits as long for the others, then it trains on without scoring


@dataclass(frozen=True, slots=True)
class Settings:
    """The three groups."""

    loss: Loss
    method: Method
    budget: Budget


_GROUPS: Mapping[str, type] = {"loss": Loss, "method": Method, "budget": Budget}
_FORMER = {"loss_reduction": ("loss", "reduction")} | {
    field.name: (group, field.name)
    for group, kind in _GROUPS.items()
    for field in fields(kind)
    if field.name not in ("per_example", "reduction", "rank", "weighting", "leak_horizon")
}


def as_loss(loss: Loss | Losses | None, **known: Any) -> Loss:
    """The loss as settings: a plain function is its ``per_example``. What is known besides overrides."""
    return replace(loss if isinstance(loss, Loss) else Loss(per_example=loss), **known)


def group_settings(
    caller: str,
    former: Mapping[str, Any],
    *,
    loss: Loss | Losses | None = None,
    method: Method | None = None,
    budget: Budget | None = None,
) -> Settings:
    """Complete the groups, and put former keywords into theirs with a warning.

    Args:
        caller: the function whose keywords they were.
        former: keywords that it does not have, by name.
        loss: as given to it.
        method: as given to it.
        budget: as given to it.

    Raises:
        TypeError: A keyword was never one.
    """
    found: dict[str, Any] = {"loss": as_loss(loss), "method": method or Method(), "budget": budget or Budget()}
    for name, value in former.items():
        if name == "num_classes":
            _warn(f"num_classes= of {caller}() is found from the model, and not used any more.")
            continue
        if name not in _FORMER:
            raise TypeError(f"{caller}() got an unexpected keyword argument {name!r}")
        group, field = _FORMER[name]
        _warn(f"{name}= of {caller}() has moved: pass {group}=sgoif.{_GROUPS[group].__name__}({field}=...).")
        found[group] = replace(found[group], **{field: value})
    return Settings(**found)


def make_governor(budget: Budget, device: torch.device) -> Governor:
    """What holds the cost of watching within a budget."""
    clock = Clock(device)
    # where the device runs behind the host, only pairs of steps tell the cost; a fixed plan gives up no visits for it
    paired = None if clock.is_exact or budget.plan is not None else PairedProbe(clock)
    return Governor(
        budget.plan or Plan(),
        max_overhead=budget.max_overhead,
        fixed=budget.plan is not None,
        clock=clock,
        probe=paired,
    )


def describe_changes(settings: Settings, allowed: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Name the settings that differ from their defaults and are not among those allowed for each group."""
    return [
        f"{_GROUPS[group].__name__}.{field.name}"
        for group, names in allowed.items()
        for field in fields(_GROUPS[group])
        if field.name not in names
        and getattr(getattr(settings, group), field.name) != getattr(_GROUPS[group](), field.name)
    ]


def _warn(text: str) -> None:
    warnings.warn(text, DeprecationWarning, stacklevel=4)
