"""Finds bad training data while the model trains.

Every training example gets an influence score online, with a confidence beside it. See the README for a start.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sgoif.api import Run, attribute, audit, cleaned, load, split, watch, with_ids
    from sgoif.judging.judge import judge
    from sgoif.overhead import bench
    from sgoif.scanning.loop import scan
    from sgoif.settings import Budget, Loss, Method
    from sgoif.training.schedule import Plan

__all__ = [
    "Budget",
    "Loss",
    "Method",
    "Plan",
    "Run",
    "__version__",
    "attribute",
    "audit",
    "bench",
    "cleaned",
    "judge",
    "load",
    "scan",
    "split",
    "watch",
    "with_ids",
]

__version__ = "0.1.0"

# Imported when first used: reading a run on the command line needs no torch, which takes seconds to import.
_HOMES = {
    "Plan": "sgoif.training.schedule",
    "scan": "sgoif.scanning.loop",
    **dict.fromkeys(("Budget", "Loss", "Method"), "sgoif.settings"),
    "bench": "sgoif.overhead",
    "judge": "sgoif.judging.judge",
    **dict.fromkeys(("Run", "attribute", "audit", "cleaned", "load", "split", "watch", "with_ids"), "sgoif.api"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sgoif' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
