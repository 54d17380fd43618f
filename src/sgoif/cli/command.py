"""A command whose help shows what an option takes, and no type beside flags and arguments."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

__all__ = ["Command", "hide_types"]


class Command(TyperCommand):
    """The class of all commands."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, ``--help`` among them."""
        return hide_types(super().get_params(ctx))


def hide_types(params: list[Any]) -> list[Any]:
    """Leave the column of types empty for flags and arguments; typer would write ``<bool>`` and ``<str>`` there."""
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
        if param.param_type_name == "argument":
            param.display_type_rich = lambda ctx: None
    return params
