"""How a monitor is doing, read on the host when asked for."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Reading"]


@dataclass(frozen=True, slots=True)
class Reading:
    """How the monitor is doing."""

    step: int
    residual: float  # mean over anchors
    confidence: float  # mean over anchors
    tau: float
    overhead: float  # share of the bare step, measured so far
    judged: float  # share of visits that added evidence
