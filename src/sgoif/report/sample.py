"""The page of a random sample of labels to check: one question per card, and nothing of what the run thinks."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sgoif.pictures import find_pictures
from sgoif.report.cards import Card
from sgoif.report.findings import Findings, Overview
from sgoif.report.gallery import Mode
from sgoif.report.make import Look, Question, write_page
from sgoif.review.verify import CheckedList

__all__ = ["write_sample_page"]


def write_sample_page(
    run: Findings,
    found: CheckedList,
    out: str | os.PathLike[str],
    *,
    images: Any = None,
    pictures: Mode = "embed",
    display: Callable[[Any], Any] | None = None,
    texts: Mapping[str, str] | None = None,
    reviewer: str = "",
    title: str = "Check these labels",
) -> Path:
    """Write the page.

    Args:
        run: that the sample was drawn from.
        found: the sample.
        out: the file.
        images: where pictures are, see :func:`sgoif.pictures.find_pictures`.
        pictures: ``embed`` them into the page, ``link`` to them, or ``none``.
        display: makes something to look at of what a picture is in the data.
        texts: what examples are, where that is text; by the text of an id.
        reviewer: whose page it is.
        title: of the page.
    """
    cards = [_card(card.id, card.given_label) for card in found.cards]
    place = None if images is None else find_pictures(images)
    about = (
        (f"{len(cards)}", "labels to check", f"drawn at random from {found.design.num_examples:,}"),
        (
            "1",
            "question: is the label right?",
            "click a card for a larger view; do not guess, say so where you cannot tell",
        ),
    )
    top = Overview(found.design.num_examples, False, about, (), (), 0.0)
    question = Question(top, (), {}, is_sample=True, texts=texts)
    look = Look(place, pictures, display, blind=True, title=title)
    return write_page(run, cards, out, look, reviewer=reviewer, list_id=found.list_id, question=question)


def _card(ident: Any, given: int) -> Card:
    return Card(ident, given, (), None, None, None, None, 0, "", (), "train")
