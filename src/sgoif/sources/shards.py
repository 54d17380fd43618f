"""Pictures in tar shards, as WebDataset keeps them: files of one key lie together, ``key.jpg`` beside ``key.cls``.

Shards are walked header by header, never unpacked. What is kept is where the wanted pictures lie.
"""

from __future__ import annotations

import glob
import json
import os
import re
import tarfile
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import groupby
from typing import IO, Any, NamedTuple

from sgoif.errors import SgoifError
from sgoif.pictures.decode import MOST_BYTES
from sgoif.sources.columns import SUFFIXES
from sgoif.sources.reading import PicturePlace, plain_id, show_id

__all__ = [
    "Sample",
    "ShardPictures",
    "expand_braces",
    "find_members",
    "local_shards",
    "read_samples",
    "remote_shards",
]


class Member(NamedTuple):
    """A file inside a shard."""

    shard: str
    offset: int
    size: int


class ShardPictures(PicturePlace):
    """Pictures by ``shard/key``, with or without ``.tar``; or by ``key`` alone, where only one shard has it.

    With ``shard/key`` a shard is walked once for all pictures asked for, up to the last of them. A key alone costs a
    walk through every shard, and is missing where two shards have it.

    Args:
        shards: addresses of uncompressed tar files.
        open_shard: opens one for reading, with seeking.
    """

    def __init__(self, shards: Sequence[str], open_shard: Callable[[str], IO[bytes]]) -> None:
        super().__init__(f"{len(shards):,} tar shards" if len(shards) != 1 else f"the shard '{_name(shards[0])}'")
        self._open = open_shard
        self._shards = {_name(address): address for address in shards}
        if len(self._shards) < len(shards):
            names = [_name(address) for address in shards]
            twice = next(name for name in names if names.count(name) > 1)
            raise SgoifError(f"two shards are called '{twice}', and ids are shard/key; pass the shards of one folder.")
        self._faults: dict[str, str] = {}  # of shards that could not be walked to their end
        self._members: dict[str, list[Member]] = {}  # by id; none where it was not found, two where it is not unique

    def value(self, id: Any) -> bytes:
        shard, offset, size = self._member(id)
        if size > MOST_BYTES:  # a header may claim any size, and reading asks for the memory first
            raise SgoifError(f"the picture {show_id(id)} has {size:,} bytes, more than {MOST_BYTES:,}.")
        with self._open(self._shards[shard]) as file:
            file.seek(offset)
            data = file.read(size)
        if len(data) < size:
            raise SgoifError(f"the shard '{shard}' is cut short.")
        return data

    def read(self, ids: Sequence[Any]) -> Iterator[Any | None]:
        self._locate(ids)
        yield from super().read(ids)

    def _member(self, id: Any) -> Member:
        self._locate([id])
        text = str(plain_id(id))
        members = self._members[text]
        if len(members) > 1:
            where = " and ".join(repr(member.shard) for member in members[:2])
            raise SgoifError(f"the picture {show_id(id)} is in {where}; use shard/key.")
        if not members:
            shard, _ = self._split(text)
            raise SgoifError(f"the picture {show_id(id)} {self._faults.get(shard or '', 'is in no shard')}.")
        return members[0]

    def _locate(self, ids: Sequence[Any]) -> None:
        """Find where pictures lie that were not asked for before."""
        wanted: dict[str | None, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))  # shard, key: ids
        for text in {str(plain_id(id)) for id in ids} - self._members.keys():
            shard, key = self._split(text)
            wanted[shard][key].append(text)
            self._members[text] = []
        alone = wanted.pop(None, {})
        for name in self._shards if alone else [name for name in self._shards if name in wanted]:
            own = wanted.get(name, {})
            for key, offset, size in self._walk(name, {*own, *alone}, to_the_end=bool(alone)):
                for text in (*own.get(key, ()), *alone.get(key, ())):
                    self._members[text].append(Member(name, offset, size))

    def _walk(self, shard: str, keys: Collection[str], to_the_end: bool) -> Iterator[tuple[str, int, int]]:
        try:
            with self._open(self._shards[shard]) as file:
                yield from find_members(file, keys, to_the_end=to_the_end)
        except Exception as error:  # a damaged shard, a network; what was found before stays found
            self._faults[shard] = f"was not found in '{shard}', which cannot be read to its end: {error}"

    def _split(self, text: str) -> tuple[str | None, str]:
        head, slash, key = text.partition("/")
        shard = head.removesuffix(".tar")
        return (shard, key) if slash and shard in self._shards else (None, text)


def find_members(file: IO[bytes], keys: Collection[str], *, to_the_end: bool) -> Iterator[tuple[str, int, int]]:
    """Find the pictures of some keys in a tar file: key, offset and size.

    Of several pictures of a key the one with the plainest name counts: ``a.jpg`` before ``a.mask.png``. Without
    ``to_the_end`` the walk stops when every key was met.
    """
    left = set(keys)
    with tarfile.open(fileobj=file, mode="r:") as tar:
        for key, group in groupby(_members_of(tar), key=lambda member: _key(member.name)):
            if key not in keys:
                continue
            pictures = [member for member in group if member.name.lower().endswith(SUFFIXES)]
            if pictures:
                plainest = min(pictures, key=lambda member: os.path.basename(member.name).count("."))
                yield key, plainest.offset_data, plainest.size
            left.discard(key)
            if not left and not to_the_end:
                return


class Sample(NamedTuple):
    """The files of one key that say what it shows and what it is called."""

    key: str
    picture: bytes | None
    label: str | None  # ``key.cls``, or the field ``label`` of ``key.json``


def read_samples(file: IO[bytes], *, has_pictures: bool = True) -> Iterator[Sample]:
    """Go through a tar file from end to end, key by key, without seeking; only pictures and labels are read."""
    with tarfile.open(fileobj=file, mode="r|") as tar:
        for key, group in groupby(_members_of(tar), key=lambda member: _key(member.name)):
            pictures, labels = dict[int, bytes](), dict[str, bytes]()
            for member in group:
                name, suffix = os.path.basename(member.name).lower(), member.name.rpartition(".")[2].lower()
                is_wanted = suffix in ("cls", "json") or (has_pictures and name.endswith(SUFFIXES))
                if is_wanted and member.size <= MOST_BYTES:
                    opened = tar.extractfile(member)
                    data = b"" if opened is None else opened.read()
                    if suffix in ("cls", "json"):
                        labels[suffix] = data
                    else:
                        pictures.setdefault(name.count("."), data)
            yield Sample(key, pictures[min(pictures)] if pictures else None, _label_in(labels))


def _label_in(files: dict[str, bytes]) -> str | None:
    if "cls" in files:
        return files["cls"].decode("utf-8", "replace").strip()
    try:
        found = json.loads(files.get("json", b"{}"))
    except ValueError:
        return None
    label = found.get("label") if isinstance(found, dict) else None
    return None if label is None else str(label)


def _members_of(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    while (member := tar.next()) is not None:
        tar.members.clear()  # type: ignore[attr-defined]  # else it keeps every header: a GB per million files
        if member.isreg() and not member.issparse():
            yield member


def _key(name: str) -> str:
    """Cut a name at the first dot of its last part, as WebDataset does."""
    folder, slash, file = name.removeprefix("./").rpartition("/")
    return folder + slash + file.partition(".")[0]


def _name(address: str) -> str:
    return os.path.basename(address.rstrip("/")).removesuffix(".tar")


def local_shards(pattern: str) -> list[str]:
    """List the files of a pattern with ``*`` and braces, in order."""
    expanded = expand_braces(os.path.expanduser(pattern))
    return [path for text in expanded for path in sorted(glob.glob(text)) if os.path.isfile(path)]


def remote_shards(pattern: str) -> ShardPictures:
    """Open shards behind URLs with ``*`` and braces."""
    from fsspec.core import url_to_fs

    try:
        fs, _ = url_to_fs(pattern)
        texts = [str(fs._strip_protocol(text)) for text in expand_braces(pattern)]
        found = [path for text in texts for path in (sorted(fs.glob(text)) if glob.has_magic(text) else [text])]
    except (ImportError, ValueError, OSError) as error:
        raise SgoifError(f"cannot list the shards {pattern!r}: {error}") from error
    if not found:
        raise SgoifError(f"no shard is called {pattern!r}.")
    return ShardPictures(found, lambda path: fs.open(path, "rb"))


def expand_braces(pattern: str) -> list[str]:
    """Expand ``{000..119}`` and ``{a,b}`` as a shell does.

    >>> expand_braces("{a,b}-{08..10}.tar")[:4]
    ['a-08.tar', 'a-09.tar', 'a-10.tar', 'b-08.tar']
    """
    found = re.search(r"\{(?:(\d+)\.\.(\d+)|([^{}]*,[^{}]*))\}", pattern)
    if found is None:
        return [pattern]
    first, last, listed = found.groups()
    choices: Sequence[str] = listed.split(",") if listed is not None else _numbers(first, last)
    before, after = pattern[: found.start()], pattern[found.end() :]
    return [text for choice in choices for text in expand_braces(f"{before}{choice}{after}")]


def _numbers(first: str, last: str) -> list[str]:
    width = max(len(first), len(last)) if first.startswith("0") or last.startswith("0") else 0
    return [f"{number:0{width}d}" for number in range(int(first), int(last) + 1)]
