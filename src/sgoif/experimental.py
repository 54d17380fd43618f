"""Names that work and may still move: their place, arguments or results can change with any minor version.

The dozen stable names are in :mod:`sgoif` itself. Everything that is in neither is an inner part.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    **dict.fromkeys(
        (
            *("datalab_issues", "fiftyone_samples", "label_studio_config", "label_studio_tasks"),
            *("sequence_rows", "with_findings", "write_token_harms"),
        ),
        "sgoif.export",
    ),
    **dict.fromkeys(
        ("MLflow", "TensorBoard", "WandB", "log_monitor", "log_run"),
        "sgoif.integrations.tracking",
    ),
    **dict.fromkeys(("ShiftReading", "ShiftSentinel"), "sgoif.shift"),
    **dict.fromkeys(("UnlearningPlan", "unlearning_plan"), "sgoif.unlearning"),
    "InfluenceSampler": "sgoif.curriculum",
    "read_snapshot": "sgoif.snapshot",
    "score": "sgoif.scoring.score",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sgoif.experimental' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return list(__all__)
