"""A command whose help shows what an option takes, and nothing beside a flag, which takes nothing."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

__all__ = ["Command", "hide_type_of_flags"]


class Command(TyperCommand):
    """The class of all commands."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, ``--help`` among them."""
        return hide_type_of_flags(super().get_params(ctx))


def hide_type_of_flags(params: list[Any]) -> list[Any]:
    """Leave the column of types empty for flags; typer would write ``<bool>`` there."""
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    return params
