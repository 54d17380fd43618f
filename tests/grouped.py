"""Settings by the name of their field, for tests that change one at a time and have others as defaults."""

from dataclasses import fields, replace
from typing import Any

from sgoif.settings import Budget, Loss, Method, as_loss

__all__ = ["grouped"]

_KINDS: dict[str, type] = {"loss": Loss, "method": Method, "budget": Budget}
_GROUPS = {field.name: group for group, kind in _KINDS.items() for field in fields(kind)}


def grouped(settings: dict[str, Any], *, but: tuple[str, ...] = ()) -> dict[str, Any]:
    """Put fields of ``Loss``, ``Method`` and ``Budget`` into these; other keywords of ``watch`` stay as they are."""
    found = {name: value for name, value in settings.items() if name not in _GROUPS or name in but}
    for name, value in settings.items():
        if name in found:
            continue
        group = _GROUPS[name]
        so_far = as_loss(found.get("loss")) if group == "loss" else found.get(group, _KINDS[group]())
        found[group] = replace(so_far, **{name: value})
    return found
