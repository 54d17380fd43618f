"""What every place of pictures promises: one value per id, None where there is none, and a count of those."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from sgoif.errors import SgoifError

__all__ = ["PicturePlace", "Pictures", "Positions", "plain_id", "show_id"]


class Pictures(Protocol):
    """Where pictures are, asked by the ids of a run."""

    @property
    def about(self) -> str:
        """One phrase: ``the folder 'photos'``, ``a dataset of 50,000``."""

    def read(self, ids: Sequence[Any]) -> Iterator[Any | None]:
        """Give one value per id, in the order asked, for :func:`sgoif.pictures.displayed`; None where it is missing."""

    def link(self, id: Any) -> str | None:
        """Give an address that a browser can open, ``file:///…`` or ``https://…``; None where there is none."""


class PicturePlace(ABC):
    """A place that counts what it could not give.

    Whatever goes wrong with one picture makes this one missing: a page with a gap is better than none.
    """

    def __init__(self, about: str) -> None:
        self.about = about
        self.num_failed = 0
        self.last_error: str | None = None

    @abstractmethod
    def value(self, id: Any) -> Any | None:
        """Give one picture, as it is kept; may raise anything."""

    def read(self, ids: Sequence[Any]) -> Iterator[Any | None]:
        """Give one value per id, in the order asked; None where it is missing."""
        for id in ids:
            yield self._attempt(id)

    def link(self, id: Any) -> str | None:
        """Give an address that a browser can open; None where there is none."""
        return None

    def count_missing(self, why: object) -> None:
        """Count a picture that could not be given."""
        is_plain = isinstance(why, SgoifError | str)
        self.num_failed += 1
        self.last_error = (str(why) if is_plain else f"{type(why).__name__}: {why}")[:300]

    def _attempt(self, id: Any) -> Any | None:
        try:
            found = self.value(id)
        except Exception as error:  # files, networks and users' functions raise whatever they like
            self.count_missing(error)
            return None
        if found is None:
            self.count_missing(f"there is no picture {show_id(id)}.")
        return found


class Positions:
    """Where ids stand in a long sequence. One pass per question; only what was asked for is kept.

    Ids are compared as text: a run may come back from a table with ``"3"`` for 3.

    >>> Positions(["cat.jpg", "dog.jpg"]).find(["dog.jpg", "bird.jpg"])
    {'dog.jpg': 1, 'bird.jpg': None}
    """

    def __init__(self, ids: Sequence[Any]) -> None:
        self._ids = ids
        self._known: dict[str, int | None] = {}

    def find(self, ids: Iterable[Any]) -> dict[str, int | None]:
        """Give the position of each id, by its text; None where it is not there."""
        wanted = [str(plain_id(id)) for id in ids]
        new = {text for text in wanted if text not in self._known}
        if new and isinstance(self._ids, range):
            self._known.update({text: _in_range(text, len(self._ids)) for text in new})
        elif new:
            self._known.update(dict.fromkeys(new))
            for position, id in enumerate(self._ids):
                text = str(plain_id(id))
                if text in new and self._known[text] is None:
                    self._known[text] = position
        return {text: self._known[text] for text in wanted}


def plain_id(id: Any) -> Any:
    """Take an id out of numpy or torch: a plain integer or string."""
    return id.item() if hasattr(id, "item") else id


def show_id(id: Any) -> str:
    """Write an id for a message, however long it is."""
    text = repr(plain_id(id))
    return text if len(text) <= 80 else f"{text[:77]}…{text[-1]}"


def _in_range(text: str, size: int) -> int | None:
    is_number = text.isascii() and text.isdecimal() and len(text) < 20 and str(int(text)) == text
    return int(text) if is_number and int(text) < size else None
