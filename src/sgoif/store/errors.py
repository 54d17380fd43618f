"""What a run on disk may be refused for."""

from __future__ import annotations

from sgoif.errors import SgoifError

__all__ = ["StoreError", "TakenOver"]


class StoreError(SgoifError):
    """A folder is no run, is of another version, or was given rows that a run cannot hold."""


class TakenOver(StoreError):
    """A later attempt writes the run by now."""
