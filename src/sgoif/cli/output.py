"""How things are shown: text for people on a terminal or in a pipe, one JSON document for programs.

In a pipe nothing is coloured, wrapped or cut to a width; only ids longer than any path are shortened, in the middle.
What a user's data says (ids, class names) is never read as markup, and control characters in it are written out: all
that is printed goes through :func:`clean` here, even if it was cleaned before.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sgoif.wording import clean, count, interval, percent, percents

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

__all__ = [
    "RATES",
    "console",
    "cut",
    "emit_json",
    "plain",
    "print_facts",
    "print_lines",
    "print_table",
    "shorten",
    "stderr_console",
]
__all__ += ["clean", "count", "interval", "percent", "percents"]

LONGEST_SHOWN = 1000  # characters of an id in a pipe: longer than file names, short enough for a line
_PIPE_WIDTH = 1_000_000  # nothing is wrapped there
# what JSON leaves as it is and a terminal obeys: controls of the second set, marks of direction, lone surrogates
_NOT_SHOWN = re.compile("[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
RATES: Mapping[str, Callable[[Any], object]] = {  # columns that show error rates
    "error rate (range)": lambda row: (
        f"{percent(row['error_rate'])} ({percents(row['error_rate_low'], row['error_rate_high'])})"
    ),
    "errors": lambda row: count(row["expected_errors"]),
    "examples": lambda row: count(row["num_examples"]),
}


def console() -> Console:
    """Make the console of standard output, as it is now: tests and shells exchange it."""
    from rich.console import Console

    if not hasattr(sys.stdout, "isatty") or not sys.stdout.isatty():
        return Console(width=_PIPE_WIDTH, markup=False, highlight=False, emoji=False, force_terminal=False)
    return Console(markup=False, highlight=False, emoji=False)


def stderr_console() -> Console:
    """Make the console of standard error, for errors, warnings and bars."""
    from rich.console import Console

    return Console(stderr=True, markup=False, highlight=False, emoji=False, soft_wrap=True)


def shorten(value: object, width: int = LONGEST_SHOWN) -> str:
    """Cut the middle out of a text that takes more than some columns; the end of a path says as much as its start.

    >>> shorten("shard-00012.tar/key-000345", 13)
    'shard-…000345'
    """
    from rich.cells import cell_len

    text = clean(value)
    if len(text) <= width // 2 or cell_len(text) <= width:
        return text
    left, right = (width - 1) // 2, width - 1 - (width - 1) // 2
    return f"{_cut(text, left)}…{_cut(text[::-1], right)[::-1]}"


def cut(text: str, width: int) -> str:
    """Cut the end off a text that takes more than some columns.

    >>> cut("looks like a cat", 11)
    'looks like…'
    """
    from rich.cells import cell_len

    return text if cell_len(text) <= width else f"{_cut(text, width - 1)}…"


def _cut(text: str, width: int) -> str:
    """The longest beginning that takes no more than some columns; characters may take two."""
    from rich.cells import get_character_cell_size

    taken = 0
    for place, character in enumerate(text):
        taken += get_character_cell_size(character)
        if taken > width:
            return text[:place]
    return text


def emit_json(command: str, /, **document: Any) -> None:
    """Print one JSON document to standard output, and nothing else; numbers that are not finite become null."""
    document = {"command": command, "format": 1} | document
    is_unicode = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "") == "utf8"
    text = json.dumps(plain(document), indent=2, allow_nan=False, ensure_ascii=not is_unicode)
    sys.stdout.write(_NOT_SHOWN.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n")


def plain(value: Any) -> Any:
    """Turn arrays and numpy's numbers into what JSON has."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, bool | int | str | type(None)) else str(value)


def print_lines(lines: Iterable[str], style: str | None = None) -> None:
    """Print lines of text; on a terminal they wrap between words, but not commands, which are indented."""
    screen = console()
    for line in lines:
        screen.print(clean(line), style=style, soft_wrap=line.startswith("  "))


def print_table(
    rows: Iterable[Any],
    columns: Mapping[str, Callable[[Any], object]],
    *,
    right: Sequence[str] = (),
    wrap: Sequence[str] = (),
    shrink: Sequence[str] = (),
) -> None:
    """Print a table.

    Args:
        rows: what it is about, one thing per row.
        columns: from a header to what that column shows of a row.
        right: columns that are aligned to the right.
        wrap: columns whose text may go on in the next line, on a terminal.
        shrink: columns whose texts are cut in the middle where a terminal has no room for them.
    """
    screen, named = console(), list(columns)
    headers = [clean(name) for name in named]
    lines = [[clean(show(row)) for show in columns.values()] for row in rows]
    if not screen.is_terminal:
        _print_aligned(screen, [headers, *lines], [name in right for name in named])
        return
    from rich.table import Table

    _fit(headers, lines, screen.width, [named.index(name) for name in shrink], [named.index(name) for name in wrap])
    table = Table(box=None, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name, header in zip(named, headers, strict=True):
        table.add_column(
            header, justify="right" if name in right else "left", no_wrap=name not in wrap, overflow="fold"
        )
    for line in lines:
        table.add_row(*line)
    _print_rendered(screen, table)


def _print_aligned(screen: Console, lines: Sequence[Sequence[str]], are_right: Sequence[bool]) -> None:
    """Print a table in a pipe: rich takes seconds for the rows of ten thousand classes."""
    from rich.cells import cell_len

    columns = [[len(text) if text.isascii() else cell_len(text) for text in column] for column in zip(*lines)]
    widths = [max(column) for column in columns]
    shown = []
    for i, line in enumerate(lines):
        blanks = [" " * (width - column[i]) for width, column in zip(widths, columns)]
        cells = [space + text if right else text + space for text, space, right in zip(line, blanks, are_right)]
        shown.append("  ".join(cells).rstrip())
    screen.out("\n".join(shown), highlight=False)


def print_facts(title: str, facts: Sequence[tuple[str, str]]) -> None:
    """Print names and what is known of them, under a title; nothing where there are none."""
    from rich.table import Table

    if not facts:
        return
    screen = console()
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True, min_width=16)
    table.add_column(overflow="fold")
    for name, text in facts:
        table.add_row(clean(name), clean(text))
    screen.print(clean(title), style="bold")
    _print_rendered(screen, table)


def _print_rendered(screen: Console, what: RenderableType) -> None:
    """Print something that rich lays out; in a pipe without the blanks that fill up its lines."""
    if screen.is_terminal:
        screen.print(what)
        return
    with screen.capture() as captured:
        screen.print(what)
    for line in captured.get().splitlines():
        screen.out(line.rstrip(), highlight=False)


def _fit(
    headers: Sequence[str], lines: list[list[str]], width: int, shrinking: Sequence[int], wrapping: Sequence[int]
) -> None:
    """Cut texts of some columns, the widest first, so that a table fits; what may wrap keeps 24 columns."""
    from rich.cells import cell_len

    widths = [max([cell_len(name), *(cell_len(line[i]) for line in lines)]) + 2 for i, name in enumerate(headers)]
    for i in wrapping:
        widths[i] = min(widths[i], 24)
    excess, least = sum(widths) - width, 10  # with the blanks between columns
    before = list(widths)
    while excess > 0 and shrinking and max(widths[i] for i in shrinking) > least:
        widest = max(shrinking, key=lambda i: widths[i])
        widths[widest] -= 1
        excess -= 1
    for i in shrinking:
        if widths[i] < before[i]:
            for line in lines:
                line[i] = shorten(line[i], widths[i] - 2)
