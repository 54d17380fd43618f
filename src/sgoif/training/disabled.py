"""The monitor that is switched off: the same calls, and nothing behind them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sgoif.training.base import Reading
from sgoif.training.schedule import Plan
from sgoif.types import Columns

__all__ = ["NoMonitor", "NoSequenceMonitor"]


class NoMonitor:
    """What ``watch`` gives under ``SGOIF_DISABLE=1``; a script runs to its end with it and finds empty tables."""

    def __init__(self, plan: Plan | None = None, on_close: Callable[[], Any] | None = None) -> None:
        self.plan, self._on_close = plan or Plan(), on_close
        self.is_on, self.step_count, self.refreshes = False, 0, 0
        self.faults: dict[str, int] = {}
        self.facts: dict[str, Any] = {}

    def step(
        self,
        ids: Any,
        targets: Tensor,
        *,
        grad_factor: float | Tensor | None = None,
        accumulate: float | Tensor | None = None,
        is_last: bool | None = None,
        weights: Tensor | None = None,
    ) -> AbstractContextManager[None]:
        """Surround a step, doing nothing."""
        return nullcontext()

    def __repr__(self) -> str:
        return f"{type(self).__name__}: switched off by SGOIF_DISABLE, nothing is scored or written"

    @property
    def reading(self) -> Reading:
        """Nothing was measured."""
        nan = float("nan")
        return Reading(step=0, residual=nan, confidence=0.0, tau=nan, overhead=0.0, judged=0.0)

    @property
    def counters(self) -> Counter[str]:
        """Zero for whatever is asked."""
        return Counter()

    def close(self, dataset: Any = None) -> Any:
        """An empty run; nothing is asked about the dataset."""
        return None if self._on_close is None else self._on_close()

    def weights(self, ids: Any) -> Tensor:
        """All examples count alike."""
        return torch.ones(len(ids), device=ids.device if isinstance(ids, Tensor) else "cpu")

    def state_dict(self) -> dict[str, Any]:
        """Nothing to save."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing to load."""

    def snapshot(self, path: str | None = None) -> None:
        """Nothing to keep."""

    def flush(self) -> None:
        """Nothing is waiting."""

    detach = flush


class NoSequenceMonitor(NoMonitor):
    """The same for a language model, whose monitor is asked for more."""

    def step(
        self,
        ids: Any,
        targets: Any,
        *,
        grad_factor: float | Tensor | None = None,
        accumulate: float | Tensor | None = None,
        is_last: bool | None = None,
        weights: Tensor | None = None,
        position_ids: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> AbstractContextManager[None]:
        """Surround a step, doing nothing."""
        return nullcontext()

    def explain_tokens(self, item: Mapping[str, Any], group: str | None = None) -> Columns:
        """No token has a harm."""
        return {name: np.zeros(0) for name in ("position", "token", "loss", "harm")}
