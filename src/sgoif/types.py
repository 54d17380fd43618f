"""Shorthands for types that many files use."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Columns", "Floats", "Ints"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Columns = dict[str, NDArray[Any]]  # of a table, by name
