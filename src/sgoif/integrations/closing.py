"""The end of a run inside a framework, whose own end (a last checkpoint, a return to the user's script) comes after."""

from __future__ import annotations

import logging
from typing import Any

__all__ = ["close_run", "state_of"]

log = logging.getLogger(__name__)


def close_run(monitor: Any) -> Any:
    """Close a monitor and return its run; None where that fails, which the training must not feel."""
    try:
        return monitor.close()
    except Exception:
        log.exception("the run could not be finished; the training is as it would have been.")
        return None


def state_of(monitor: Any) -> dict[str, Any]:
    """Return a monitor's state; an empty one where that fails, so that the checkpoint around it is written."""
    try:
        return dict(monitor.state_dict())
    except Exception:
        log.exception("the monitor's state is not in this checkpoint; the rest of it is.")
        return {}
