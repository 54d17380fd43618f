"""The ids that come with a step: read before anything is scored, so that a bad batch costs itself alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sgoif.errors import SgoifError
from sgoif.evidence import as_ids

__all__ = ["StepIds"]

_NAMES = {"i": "integers", "U": "strings"}
_NOT_IDS = (torch.bool, torch.complex64, torch.complex128)


class StepIds:
    """Reads ids, all of one kind over a run.

    >>> ids = StepIds()
    >>> ids.read(torch.tensor([7, 3]), 2)
    array([7, 3])
    """

    def __init__(self) -> None:
        self.kind: str | None = None  # "i" or "U", of the first ids

    def read(self, ids: Any, count: int) -> Any:
        """A copy that later changes of the user's buffer do not reach; a tensor on a device stays there, unread.

        Args:
            ids: as given to ``monitor.step``.
            count: targets of the step.

        Raises:
            SgoifError: they are not one integer or string per target, or of another kind than those before.
        """
        found: Any
        if isinstance(ids, Tensor) and ids.device.type != "cpu":
            if ids.dim() != 1 or ids.is_floating_point() or ids.dtype in _NOT_IDS:
                as_ids(torch.empty(ids.shape, dtype=ids.dtype))  # says what is wrong with them
            found, kind = ids.detach().clone(), "i"
        else:
            found = as_ids(ids).copy()
            kind = found.dtype.kind
        if len(found) != count:
            raise SgoifError(f"step() got {len(found)} ids for {count} targets; pass one id per target.")
        if len(found) and self.kind is not None and kind != self.kind:
            raise SgoifError(
                f"ids were {_NAMES[self.kind]} before and are {_NAMES[kind]} in this step; keep the ids to one type."
            )
        if len(found):
            self.kind = kind
        return found
