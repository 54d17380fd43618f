"""Options that several commands have."""

from __future__ import annotations

import math
from typing import Annotated, Any, Optional

import typer

from sgoif.errors import SgoifError

MaybeText = Optional[str]  # noqa: UP045 - older typer reads no `|` on Python 3.10
MaybeTexts = Optional[list[str]]  # noqa: UP045
MaybeInt = Optional[int]  # noqa: UP045
MaybeFloat = Optional[float]  # noqa: UP045

RunPath = Annotated[str, typer.Argument(metavar="RUN", help="Read this run: a folder or a URL.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Csv = Annotated[MaybeText, typer.Option(metavar="FILE", help="Write the findings as CSV.")]
Page = Annotated[MaybeText, typer.Option(metavar="FILE.html", help="Write the findings as a page to decide on.")]
RankBy = Annotated[
    MaybeText,
    typer.Option(metavar="COLUMN", help="Rank sequences by suspicion, conflict, harm, worst, cosine or a loss."),
]
Size = Annotated[int, typer.Option(metavar="N", min=1, help="Take this many examples in a batch.")]
Classes = Annotated[int, typer.Option(metavar="N", min=2, help="Assume this many classes.")]
Shape = Annotated[str, typer.Option("--input", metavar="C,H,W", help="Set the shape of one example.")]
Device = Annotated[str, typer.Option(metavar="DEVICE", help="Run the model on cpu, cuda, cuda:1 or mps.")]
Model = Annotated[
    str, typer.Option(metavar="MODULE:FACTORY", help="Call this function to make the model.", show_default=False)
]
Table = Annotated[
    MaybeText, typer.Option(metavar="FILE", help="Read your own CSV or Parquet, which has a column `id`.")
]
Transform = Annotated[
    MaybeText,
    typer.Option(
        metavar="MODULE:FUNCTION",
        help="Turn PIL pictures into inputs by this function; by default, use the model's own.",
    ),
]
Images = Annotated[
    MaybeText,
    typer.Option(
        metavar="DIR|FILE|URL|MODULE:FUNCTION",
        help="Read pictures, texts or rows here; `run` means where the scan read them.",
    ),
]


def how_many(what: str) -> Any:
    """Make the option --top."""
    return typer.Option(metavar="N", min=0, help=f"Show this many {what}; 0 shows all.")


def require(metavar: str, help: str) -> Any:
    """Make an option that has no default."""
    return typer.Option(metavar=metavar, help=help, show_default=False)


def need_one_of(**options: object) -> None:
    """Raise where more than one of some options is given.

    >>> need_one_of(csv="a.csv", json=False)
    """
    if sum(bool(value) for value in options.values()) > 1:
        *first, last = (f"--{name}" for name in options)
        raise SgoifError(f"choose one of {', '.join(first)} and {last}.")


def need_both(first: object, second: object, names: str) -> None:
    """Raise where one of two options that belong together is missing."""
    if (first is None) != (second is None):
        raise SgoifError(f"{names} go together.")


def parse_share(text: str, option: str) -> float:
    """Read ``2%`` or ``0.02``.

    Raises:
        SgoifError: It is no number, or not between 0 and 1.

    >>> parse_share("2%", "--max-error-rate"), parse_share("0.02", "--max-error-rate")
    (0.02, 0.02)
    """
    written = text.strip()
    is_percent = written.endswith("%")
    try:
        value = float(written.removesuffix("%").strip())
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise SgoifError(f"{option} takes a share such as 2% or 0.02, got {text!r}.")
    share = value / 100 if is_percent else value
    if not 0 <= share <= 1:
        hint = f"; did you mean {value:g}%?" if not is_percent and 1 < value <= 100 else ""
        raise SgoifError(f"{option} takes a share between 0% and 100%, got {text!r}{hint}")
    return share
