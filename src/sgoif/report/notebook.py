"""What a notebook shows of a run: its summary, its worst labels as a table, and examples in a grid.

All of it is plain HTML with its own style, since a notebook has no style sheet of ours.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from sgoif.findings.label import class_name
from sgoif.pictures import data_uri, thumbnail
from sgoif.report.cards import Card, select_cards
from sgoif.report.findings import Findings, overview, share
from sgoif.report.gallery import read_image
from sgoif.sources import find_pictures
from sgoif.sources.written import Written, as_lines, is_written

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["PictureGrid", "picture_grid", "run_html", "show_issues_in_notebooks"]

_KIND = b"sgoif.kind"
_ISSUES = b"label_issues"
_SHOWN_CLASSES, _SHOWN_ISSUES = 5, 20
_SIDE = 128
_WIDTH = 264  # of a text or a row
_LONGEST = 2000  # characters of it
_PNG = b"\x89PNG"


def run_html(run: Findings) -> str:
    """The run's numbers and its worst classes."""
    found = overview(run)
    numbers = "".join(
        f'<div style="margin-right:2em"><div style="font-size:1.5em;font-weight:600">{escape(value)}</div>'
        f"<div>{escape(what)}</div><small>{escape(remark)}</small></div>"
        for value, what, remark in found.numbers
    )
    rows = [
        [row["name"], row["rate"], row["interval"], row["confused_with"], row["verdict"]]
        for row in found.classes[:_SHOWN_CLASSES]
    ]
    header = ["class", "estimated error rate", "range", "usually should be", "verdict"]
    more = f"<small>and {len(found.classes) - _SHOWN_CLASSES} classes more; run.class_issues() has all.</small>"
    return (
        f'<div style="display:flex;flex-wrap:wrap">{numbers}</div>{_table(header, rows) if rows else ""}'
        f"{more if len(found.classes) > _SHOWN_CLASSES else ''}"
        "<p><small>See also run.label_issues(), run.show(images=...), run.report(images=...).</small></p>"
    )


@dataclass(frozen=True, slots=True)
class PictureGrid:
    """Examples with their pictures, texts or rows; a notebook shows them when it is the last value of a cell."""

    html: str
    ids: tuple[Any, ...]

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return f"PictureGrid of {len(self.ids)} examples: {', '.join(map(str, self.ids[:5]))}, ..."


def picture_grid(
    run: Findings,
    ids: Sequence[Any] | None = None,
    *,
    images: Any = None,
    top: int = 24,
    display: Callable[[Any], Any] | None = None,
) -> PictureGrid:
    """Show some examples, or the most suspicious ones; see :meth:`sgoif.Run.show`."""
    cards = select_cards(run, top=None if ids is not None else top, ids=ids)
    place = None if images is None else find_pictures(images)
    values = place.read([card.id for card in cards]) if place is not None else iter([None] * len(cards))
    cells = "".join(_cell(card, value, display, run.class_names) for card, value in zip(cards, values))
    grid = f'<div style="display:flex;flex-wrap:wrap;gap:10px">{cells}</div>'
    return PictureGrid(grid, tuple(card.id for card in cards))


def show_issues_in_notebooks(table: pa.Table, class_names: Sequence[str]) -> pa.Table:
    """Mark a table of label issues, so that a notebook shows it as one; elsewhere it is a table like any other."""
    notebook = sys.modules.get("IPython")
    shell = notebook.get_ipython() if notebook is not None else None
    if shell is None:
        return table
    import pyarrow as pa

    formatter = shell.display_formatter.formatters["text/html"]
    formatter.for_type(pa.Table, _issues_html)  # None for all other tables, which are shown as ever
    names = "\0".join(class_names).encode("utf-8", "backslashreplace")
    return table.replace_schema_metadata({_KIND: _ISSUES, b"sgoif.class_names": names})


def _issues_html(table: pa.Table) -> str | None:
    metadata = table.schema.metadata or {}
    if metadata.get(_KIND) != _ISSUES or "why" not in table.column_names:
        return None
    names = [name for name in metadata.get(b"sgoif.class_names", b"").decode().split("\0") if name]
    rows = [
        [
            str(row["id"])[:80],
            class_name(row["given_label"], names),
            class_name(row["suggested_label"], names) if row["suggested_label"] >= 0 else "",
            share(row.get("p_mislabeled")),
            row["why"],
        ]
        for row in table.slice(0, _SHOWN_ISSUES).to_pylist()
    ]
    more = f"<small>{len(rows):,} of {len(table):,} rows; .to_pandas() has all.</small>"
    return _table(["id", "given", "suggested", "probably wrong", "why"], rows) + more


def _cell(card: Card, value: Any, display: Callable[[Any], Any] | None, names: Sequence[str]) -> str:
    label = escape(class_name(card.given, names))
    if card.suggested:
        label += f" → <b>{escape(class_name(card.suggested[0], names))}</b>"
    sure = "" if card.p is None else f"{share(card.p)} wrong<br>"
    ident = escape(str(card.id)[-24:])
    is_read = display is None and is_written(value)
    width = _WIDTH if is_read else _SIDE
    shown = _written(value) if is_read else _picture(value, display)
    return f'<div style="width:{width}px;overflow:hidden">{shown}<div>{label}</div><small>{sure}{ident}</small></div>'


def _picture(value: Any, display: Callable[[Any], Any] | None) -> str:
    image = read_image(value, display)
    size = f"width:{_SIDE}px;height:{_SIDE}px"
    if image is None:
        return f'<div style="{size};background:#8884"></div>'
    encoded = thumbnail(image, _SIDE)
    style = f"{size};object-fit:contain;image-rendering:{'pixelated' if encoded[:4] == _PNG else 'auto'}"
    return f'<img style="{style}" src="{data_uri(encoded)}" alt="">'


def _written(value: Written) -> str:
    """A text, or the cells of a row as lines, in a box that is as high as the pictures are."""
    text = as_lines(value)
    shown = escape(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")
    style = (
        f"height:{_SIDE}px;overflow:auto;white-space:pre-wrap;overflow-wrap:anywhere;background:#8882;padding:4px 6px"
    )
    return f'<div dir="auto" style="{style}">{shown}</div>'


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th style="text-align:left">{escape(text)}</th>' for text in header)
    body = "".join(
        "<tr>" + "".join(f'<td style="text-align:left">{escape(str(text))}</td>' for text in row) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
