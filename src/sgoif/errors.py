"""The errors a caller may want to catch, all children of :class:`SgoifError`.

They are raised for callers' mistakes and before the first training step. Numerical trouble *during* training is data
(:class:`sgoif.linalg.SolveStatus`), never an exception.
"""

from __future__ import annotations

__all__ = [
    "CaptureError",
    "CoverageError",
    "CurvatureError",
    "HeadError",
    "LinalgError",
    "RegistryError",
    "SgoifError",
    "StoreError",
    "TakenOver",
]


class SgoifError(Exception):
    """Anything that sgoif raises on purpose."""


class LinalgError(SgoifError):
    """Operators or solvers were given shapes or matrices that they cannot work with."""


class CaptureError(SgoifError):
    """A layer's inputs and output gradients could not be captured faithfully."""


class CoverageError(SgoifError):
    """Layers were asked for that no rule scores exactly."""


class HeadError(SgoifError):
    """The classification head could not be found, or its gradients have an undeclared factor."""


class CurvatureError(SgoifError):
    """A curvature estimate was asked for something that it cannot give."""


class RegistryError(SgoifError):
    """A plug-in name is unknown, or taken already."""


class StoreError(SgoifError):
    """A folder is no run, is of another version, or was given rows that a run cannot hold."""


class TakenOver(StoreError):
    """A later attempt writes the run by now."""
