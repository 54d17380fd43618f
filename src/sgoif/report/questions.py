"""Pages that ask something else than the run's own list.

One is about bad predictions: the queries, the training examples nearest to them, and suspects to decide on. The other
is a random sample of labels to check: one question per card, and nothing of what the run thinks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sgoif.errors import SgoifError
from sgoif.findings.label import class_name
from sgoif.findings.poison import NUM_NEAREST
from sgoif.pictures import data_uri, thumbnail
from sgoif.report.cards import Beside, Card
from sgoif.report.findings import Findings, Overview
from sgoif.report.gallery import Mode, read_image
from sgoif.report.make import write_page
from sgoif.report.page import Page
from sgoif.review.verify import CheckedList
from sgoif.sources import Pictures, find_pictures
from sgoif.sources.written import as_line, is_written

if TYPE_CHECKING:
    import pyarrow as pa
    from torch import Tensor

__all__ = ["Asked", "Shown", "write_sample_page", "write_suspects_page"]

_MOST_ASKED = 20  # queries that are shown
_SIDE = 96
_LONGEST = 200  # characters of a text
_PNG = "data:image/png"


@dataclass(frozen=True, slots=True)
class Shown:
    """A small picture or a short text with its caption."""

    source: str  # of an <img>; empty where there is no picture
    caption: str
    is_suspect: bool = False
    text: str = ""

    @property
    def is_tiny(self) -> bool:
        """Whether it is enlarged by whole pixels."""
        return self.source.startswith(_PNG)


@dataclass(frozen=True, slots=True)
class Asked:
    """A row of pictures: one query and the examples of the class that look most like it, suspects first.

    Without a query: examples of the class that stand farthest from all of them.
    """

    query: Shown | None
    nearest: tuple[Shown, ...]


def write_suspects_page(
    run: Findings,
    suspects: pa.Table,
    queries: Sequence[Any] | Tensor,
    out: str | os.PathLike[str] = "suspects.html",
    *,
    images: Any = None,
    display: Callable[[Any], Any] | None = None,
    top: int | None = 500,
    title: str | None = None,
) -> Path:
    """Write the page; see :meth:`sgoif.Run.report_suspects`.

    Raises:
        SgoifError: Nothing is suspect, or pictures cannot be found.
    """
    rows = suspects.to_pylist()
    flagged = [row for row in rows if row["is_suspect"]]
    if not flagged:
        raise SgoifError("there is nothing to show: no training example stands with the queries.")
    place = None if images is None else find_pictures(images)
    label = flagged[0]["given_label"]
    target = class_name(label, run.class_names)
    numbers = (
        (f"{len(queries):,}", "bad predictions asked about", f"taken for {target}"),
        (f"{len(flagged):,}", "training examples stand with them", "nearer to them than to their class"),
        (f"{len(rows):,}", "examples looked at", f"labelled {target}"),
    )
    page = Page(
        title or f"Which training examples made the model predict {target}?",
        place=place,
        display=display,
        overview=Overview(len(rows), False, numbers),
        asked=_find_nearest(rows, list(queries[:_MOST_ASKED]), place, display),
        typical={label: [Beside(row["id"], label) for row in _find_farthest(rows)]},
    )
    return write_page(run, [_card(row) for row in flagged[: top or None]], out, page)


def write_sample_page(
    run: Findings,
    found: CheckedList,
    out: str | os.PathLike[str],
    *,
    images: Any = None,
    pictures: Mode = "embed",
) -> Path:
    """Write the page of a sample."""
    advice = "click a card for a larger view; do not guess, say so where you cannot tell"
    numbers = (
        (f"{len(found.cards)}", "labels to check", f"drawn at random from {found.design.num_examples:,}"),
        ("1", "question: is the label right?", advice),
    )
    page = Page(
        "Check these labels",
        list_id=found.list_id,
        place=None if images is None else find_pictures(images),
        mode=pictures,
        blind=True,
        overview=Overview(found.design.num_examples, False, numbers),
        is_sample=True,
    )
    return write_page(run, [Card(card.id, card.given_label) for card in found.cards], out, page)


def _find_farthest(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Examples of the class that stand farthest from the queries; what a poisoned run finds typical may be poisoned."""
    return [row for row in rows[-NUM_NEAREST:] if not row["is_suspect"]]


def _card(row: Mapping[str, Any]) -> Card:
    """A suspect, without what the run thinks of its label: a network that was taught a backdoor believes in it."""
    score = float(row["score"])
    why = f"It stands {score:.0%} of the way from its class to the queries"
    return Card(row["id"], row["given_label"], confidence=round(score, 4), why=why)


def _find_nearest(
    rows: Sequence[Mapping[str, Any]],
    queries: Sequence[Any],
    place: Pictures | None,
    display: Callable[[Any], Any] | None,
) -> list[Asked]:
    nearest = [[row for row in rows if number in row["near_queries"]] for number in range(len(queries))]
    nearest.append(_find_farthest(rows))
    ids = list({str(row["id"]): row["id"] for part in nearest for row in part}.values())
    values = place.read(ids) if place is not None else iter([None] * len(ids))
    known = {str(ident): _show(value, str(ident)[-24:], display) for ident, value in zip(ids, values)}
    asked = [_show(query, f"query {number}", display) for number, query in enumerate(queries, 1)]
    found = [tuple(replace(known[str(row["id"])], is_suspect=row["is_suspect"]) for row in part) for part in nearest]
    return [Asked(query, part) for query, part in zip([*asked, None], found) if part]


def _show(value: Any, caption: str, display: Callable[[Any], Any] | None) -> Shown:
    if display is None and is_written(value):
        return Shown("", caption, text=as_line(value)[:_LONGEST])
    image = read_image(value, display)
    return Shown("" if image is None else data_uri(thumbnail(image, _SIDE)), caption)
