"""The program: its commands, each in the file of its name, and the options that all of them have.

A command's file imports what it needs when it is called, so that ``--help`` need not wait for pyarrow.
"""

from __future__ import annotations

from importlib import import_module
from typing import Annotated

import typer

from sgoif.cli.command import Command
from sgoif.cli.errors import Front

_PANELS = {  # of the help
    "Find wrong labels": ("scan", "score", "issues", "classes", "duplicates", "check-data", "report"),
    "Judge and improve": ("check", "compare", "verify", "apply", "export", "holdout"),
    "Ask a model": ("ood", "explain", "sentinel"),
    "Look into a run": ("info", "trace", "close"),
    "Set up": ("doctor", "bench"),
}

app = typer.Typer(
    cls=Front,
    help="Finds wrong labels in training data: which ones, how sure that is, and whether the data is good enough.",
    epilog="Start with `sgoif scan FOLDER`. Runs are folders or URLs such as s3://bucket/run.",
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _panel, _names in _PANELS.items():
    for _name in _names:
        _module = _name.replace("-", "_")
        app.command(_name, cls=Command, rich_help_panel=_panel)(getattr(import_module(f"sgoif.cli.{_module}"), _module))


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
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks, as does SGOIF_DEBUG=1.")] = False,
) -> None:
    """Take the options that every command has."""


if __name__ == "__main__":
    app()
