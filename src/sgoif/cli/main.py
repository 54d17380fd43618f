"""Parses the command line. What a command does is in the file of its name, imported when it is called."""

from __future__ import annotations

from typing import Annotated

import typer

from sgoif.cli.commands import find, model, review, setup
from sgoif.cli.program import PANELS, app

__all__ = ["app", "find", "model", "review", "setup"]

app.registered_commands.sort(key=lambda command: PANELS.index(str(command.rich_help_panel)))


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from sgoif import __version__

        typer.echo(f"sgoif {__version__}")
        raise typer.Exit


@app.callback()
def front(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", is_eager=True, callback=_print_version)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks; also SGOIF_DEBUG=1.")] = False,
) -> None:
    """Take the options that every command has."""


if __name__ == "__main__":
    app()
