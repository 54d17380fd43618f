"""Pictures as files below a folder, on this machine or behind a URL; the id is the path below it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path, PurePath, PurePosixPath
from typing import Any
from urllib.parse import quote, urlsplit

from sgoif.errors import SgoifError
from sgoif.sources.reading import PicturePlace, plain_id, show_id

__all__ = ["FolderPictures", "UrlPictures", "path_below"]

_AT_ONCE = 32  # files asked for together: hides the latency of an object store, holds a few hundred MB at most


class FolderPictures(PicturePlace):
    """Files below a local folder, given as paths.

    An id that leads out of the folder is missing, never read: a run may come from someone else. Links inside the folder
    are the user's own and are followed.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(f"the folder '{root.absolute().name}'")
        self._root = root.absolute()

    def value(self, id: Any) -> Path:
        path = self._root / path_below(id, Path)
        if not path.is_file():
            raise SgoifError(f"there is no file {show_id(id)} in {self.about}.")
        return path

    def link(self, id: Any) -> str | None:
        try:
            return self.value(id).as_uri()
        except (SgoifError, OSError, ValueError):
            return None


class UrlPictures(PicturePlace):
    """Files below any URL that fsspec opens, given as bytes; a few are fetched at once.

    User names and passwords in the URL are used to read, and appear neither in ``about``, nor in links or errors.
    """

    def __init__(self, url: str) -> None:
        from fsspec.core import url_to_fs

        parts = urlsplit(url)
        self._is_web = parts.scheme in ("http", "https")
        if self._is_web and (parts.query or parts.fragment):
            raise SgoifError(
                f"a URL of a folder ends with its path, got one with a query: {parts.scheme}://{parts.hostname}"
                f"{parts.path}?…; pass a function from an id to the picture instead."
            )
        try:
            self._fs, root = url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise SgoifError(
                f"cannot open {parts.scheme}://…: {error}. Is the filesystem's package installed?"
            ) from error
        self._root = str(root).rstrip("/")
        user, at, host = parts.netloc.rpartition("@")
        self._secret = user + at
        self._shown = f"{parts.scheme}://{host}{parts.path}".rstrip("/")
        super().__init__(f"the folder '{self._shown}'")

    def value(self, id: Any) -> bytes:
        return bytes(self._fs.cat_file(self._address(id)))

    def read(self, ids: Sequence[Any]) -> Iterator[Any | None]:
        left = iter(ids)
        while batch := list(islice(left, _AT_ONCE)):
            yield from self._fetch(batch)

    def link(self, id: Any) -> str | None:
        try:
            return f"{self._shown}/{quote(path_below(id, PurePosixPath))}" if self._is_web else None
        except SgoifError:
            return None

    def _fetch(self, ids: Sequence[Any]) -> list[bytes | None]:
        addresses: list[str | None] = []
        for id in ids:
            try:
                addresses.append(self._address(id))
            except SgoifError as error:
                self.count_missing(error)
                addresses.append(None)
        asked = [address for address in addresses if address is not None]
        try:  # not `cat`, which would take brackets in a name for a pattern
            answers = iter(self._fs.cat_ranges(asked, None, None, on_error="return") if asked else [])
        except Exception as error:  # the network as a whole
            answers = iter([error] * len(asked))
        return [None if address is None else self._check(next(answers)) for address in addresses]

    def _check(self, answer: Any) -> bytes | None:
        if isinstance(answer, BaseException):
            text = f"{type(answer).__name__}: {answer}"
            self.count_missing(text.replace(self._secret, "") if self._secret else text)
            return None
        return bytes(answer)

    def _address(self, id: Any) -> str:
        path = path_below(id, PurePosixPath)
        return f"{self._root}/{quote(path) if self._is_web else path}"


def path_below(id: Any, kind: type[PurePath]) -> str:
    """Read an id as a path that stays below its folder, letter by letter: ``a//b`` is a key of its own on S3.

    Raises:
        SgoifError: It is absolute, or goes up; even ``a/../b``, which leaves the folder where ``a`` is a link.
    """
    text = str(plain_id(id))
    path = kind(text)
    if path.is_absolute() or path.drive or ".." in path.parts or not path.parts:
        raise SgoifError(f"the id {show_id(id)} is no path below a folder.")
    return text
