"""What every benchmark may be run with, whatever its settings: device, width of the networks, precision."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

__all__ = ["CONTEXT", "Context", "changed", "use"]


@dataclass(slots=True)
class Context:
    """The defaults are what all results were measured with that do not say otherwise."""

    device: str = "cpu"
    width: int = 1  # how many times as wide as usual the networks of :mod:`benchmarks.models` are
    amp: Literal["bf16", "none"] = "bf16"  # autocast of trainings; `none` is faster on a CPU without bfloat16 products


CONTEXT = Context()


def use(**values: Any) -> None:
    """Set the context of this process."""
    for name, value in asdict(replace(Context(), **values)).items():
        setattr(CONTEXT, name, value)


def changed() -> dict[str, Any]:
    """What differs from the defaults, to be written beside the settings."""
    usual = asdict(Context())
    return {name: value for name, value in asdict(CONTEXT).items() if value != usual[name]}
