"""Curvature backends by name, for the edge of the library where users write strings.

Inside, objects are passed around. A stranger's backend registers once and is then as good as ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sgoif.curvature.base import Curvature
from sgoif.errors import RegistryError
from sgoif.records import BlockShape

__all__ = ["create", "register", "registered"]

_BACKENDS: dict[str, type[Curvature]] = {}


def register(name: str, backend: type[Curvature]) -> None:
    """Make ``backend`` available under ``name``.

    Raises:
        RegistryError: the name is taken.
    """
    if name in _BACKENDS:
        raise RegistryError(
            f"curvature {name!r} is taken by {_BACKENDS[name].__qualname__}; "
            f"register {backend.__qualname__} under another name."
        )
    _BACKENDS[name] = backend


def registered() -> tuple[str, ...]:
    """Return the names known, in alphabetical order.

    >>> registered()
    ('diagonal', 'fisher', 'identity', 'kfac', 'lowrank')
    """
    return tuple(sorted(_BACKENDS))


def create(name: str, shapes: Mapping[str, BlockShape], **settings: Any) -> Curvature:
    """Build the backend called ``name``; ``settings`` are its keyword arguments.

    Raises:
        RegistryError: the name is unknown.

    >>> type(create("kfac", {"fc": BlockShape(1, 2, 3, True)}, damping_mode="additive")).__name__
    'KroneckerCurvature'
    """
    if name not in _BACKENDS:
        raise RegistryError(f"curvature {name!r} is unknown; registered are {', '.join(registered())}.")
    return _BACKENDS[name](shapes, **settings)
