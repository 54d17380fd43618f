"""What a manifest changes: labels or completions to replace and examples to leave out.

Rows that stay as given are never held.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sgoif.errors import SgoifError
from sgoif.files.tables import read_csv_rows

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Change", "Changes", "need_reviewed", "new_label", "read_changes"]

_COLUMNS = ("id", "given_label", "label", "action")
_EDITS = ("completion", "content")  # of sequences that people corrected
_CHANGING = ("relabel", "drop", "none", "edit")
_ROWS = 65_536  # read at a time


@dataclass(frozen=True, slots=True)
class Change:
    """What happens to one example: a new label, a new completion, or neither where it goes."""

    given_label: int | None  # None for a sequence, which has no class
    label: int | None
    completion: str | None = None
    content: str = ""  # hash of the completion that was reviewed; empty where that is not known

    @property
    def is_dropped(self) -> bool:
        """Whether the example goes."""
        return self.label is None and self.completion is None


@dataclass(frozen=True, slots=True)
class Changes:
    """All that a manifest changes, by ``str(id)``."""

    path: str
    by_id: dict[str, Change]

    def get(self, id: object) -> Change | None:
        """What happens to an example; None where it stays as it is."""
        return self.by_id.get(str(id))

    def know_any(self, ids: Collection[object]) -> bool:
        """Whether one of some ids is in the manifest, changed or not; reads on until one is found."""
        wanted = {str(value) for value in ids}
        if not self.by_id.keys().isdisjoint(wanted):
            return True
        return any(not wanted.isdisjoint(piece) for piece in _ids(self.path))

    def class_names(self) -> dict[str, int]:
        """Numbers of the classes that the manifest names."""
        found: dict[str, int] = {}
        for piece in _pieces(self.path, ("given_label", "given_name", "label", "label_name")):
            for given, given_name, label, name in zip(*piece):
                found |= {str(given_name): int(given)} | ({} if name in (None, "") else {str(name): int(label)})
        return found

    def has_labels(self) -> bool:
        """Whether the manifest is about classes; that of sequences of a language model is not."""
        if self.by_id:
            return any(change.given_label is not None for change in self.by_id.values())
        return any(value not in (None, "") for (given,) in _pieces(self.path, ("given_label",)) for value in given)

    def first_id(self) -> str:
        """The first id of the manifest, for messages."""
        return next((piece[0] for piece in _ids(self.path) if piece), "none: it has no rows")


def read_changes(path: str | os.PathLike[str]) -> Changes:
    """Read a manifest that ``sgoif apply`` wrote, Parquet or CSV.

    Raises:
        SgoifError: It is of another kind, or lacks a column.
    """
    found: dict[str, Change] = {}
    columns = (*_COLUMNS, *_EDITS) if _has_edits(os.fspath(path)) else _COLUMNS
    for piece in _pieces(os.fspath(path), columns):
        for id, given, label, action, *edit in zip(*piece):
            if action == "edit":
                found[str(id)] = Change(None, None, str(edit[0] or ""), str(edit[1] or ""))
            elif action in _CHANGING:
                reviewed = None if given in (None, "") else int(given)
                content = str(edit[1] or "") if edit else ""
                found[str(id)] = Change(reviewed, int(label) if action == "relabel" else None, content=content)
    return Changes(os.fspath(path), found)


def need_reviewed(change: Change, old: Any, id: object, path: str) -> None:
    """Raise where an example's label is neither the one that was reviewed nor the new one already."""
    if change.given_label is None:
        return
    if int(old) not in (change.given_label, change.label):
        raise SgoifError(
            f"example {id!r} has the label {int(old)} in this dataset, but {change.given_label} was reviewed, says "
            f"'{path}'. Is it the dataset of that run, with its classes in the same order?"
        )


def new_label(change: Change, old: Any, id: object, path: str) -> Any:
    """The new label of a relabelled example, of the type of the old one, which must be the one that was reviewed."""
    need_reviewed(change, old, id, path)
    if isinstance(old, bytes):
        return str(change.label).encode()
    if hasattr(old, "new_tensor"):
        return old.new_tensor(change.label)
    return type(old)(change.label)


def _has_edits(path: str) -> bool:
    """Whether a manifest has a column of completions: that of sequences does."""
    suffix = Path(path).suffix.lower()
    if not Path(path).is_file() or suffix not in (".parquet", ".csv"):
        return False  # refused where it is read
    if suffix == ".csv":
        return "completion" in next((row for _, row in read_csv_rows(path, ("id",))), {})
    import pyarrow.parquet as pq

    return "completion" in pq.read_schema(path).names


def _ids(path: str) -> Iterator[list[str]]:
    for (ids,) in _pieces(path, ("id",)):
        yield [str(value) for value in ids]


def _pieces(path: str, columns: tuple[str, ...]) -> Iterator[list[list[Any]]]:
    """Columns of a manifest, some rows at a time; of a Parquet file only rows that change something, where asked."""
    if not Path(path).is_file():
        raise SgoifError(f"'{path}' is no file; pass the manifest that `sgoif apply` wrote.")
    suffix = Path(path).suffix.lower()
    if suffix == ".csv":
        for _, row in read_csv_rows(path, columns):
            yield [[row[name]] for name in columns]
        return
    if suffix != ".parquet":
        raise SgoifError(f"'{path}' must end in .parquet or .csv.")
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        missing = [name for name in columns if name not in file.schema_arrow.names]
        if missing:
            raise SgoifError(f"'{path}' has no column {' and no '.join(missing)}; pass the manifest of `sgoif apply`.")
        for batch in file.iter_batches(_ROWS, columns=list(columns)):
            chosen = _changing(batch) if "action" in columns else batch
            yield [chosen.column(name).to_pylist() for name in columns]


def _changing(batch: pa.RecordBatch) -> pa.RecordBatch:
    import pyarrow as pa
    import pyarrow.compute as pc

    return batch.filter(pc.is_in(batch.column("action"), pa.array(_CHANGING)))
