"""The program that commands belong to, and the options that several of them have."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from sgoif.cli.errors import Front

__all__ = [
    *("ASK", "FIND", "JUDGE", "PANELS", "SET_UP", "app"),
    *("Classes", "Device", "Images", "Json", "Model", "MaybeFloat", "MaybeInt", "MaybeText", "MaybeTexts"),
    *("RunPath", "Shape", "Size", "Transform"),
]

app = typer.Typer(
    cls=Front,
    help="Finds wrong labels in training data: which ones, how sure that is, and whether the data is good enough.",
    epilog="Start with `sgoif scan FOLDER`. Runs are folders or URLs such as s3://bucket/run.",
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

PANELS = FIND, JUDGE, ASK, SET_UP = "Find wrong labels", "Judge and improve", "Ask a model", "Set up"  # of the help

RunPath = Annotated[str, typer.Argument(metavar="RUN", help="Folder or URL of a run.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Size = Annotated[int, typer.Option(min=1, help="Examples in a batch.")]
Classes = Annotated[int, typer.Option(min=2, help="Classes that the model tells apart.")]
Shape = Annotated[str, typer.Option("--input", metavar="C,H,W", help="Shape of one example.")]
Device = Annotated[str, typer.Option(help="Where to put the model: cpu, cuda, cuda:1, mps.")]
MaybeText = Optional[str]  # noqa: UP045 - older typer reads no `|` on Python 3.10
MaybeTexts = Optional[list[str]]  # noqa: UP045
MaybeInt = Optional[int]  # noqa: UP045
MaybeFloat = Optional[float]  # noqa: UP045
Model = Annotated[str, typer.Option(metavar="MODULE:FACTORY", help="Makes the model.", show_default=False)]
Transform = Annotated[
    MaybeText, typer.Option(metavar="MODULE:FUNCTION", help="PIL picture to input; the model's own by default.")
]
Images = Annotated[
    MaybeText,
    typer.Option(metavar="DIR|URL|MODULE:FUNCTION", help="Where pictures are; `run` for where the scan read them."),
]
