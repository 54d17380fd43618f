"""Embeddings in a file: ``.npy`` in the order of the data, or by id in ``.npz`` or Parquet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgoif.errors import SgoifError
from sgoif.files.tables import CSV_SUFFIXES, read_csv
from sgoif.scanning.standardise import check_features
from sgoif.sources.columns import LABEL_COLUMNS

__all__ = ["order_of", "read_features"]

Floats = NDArray[Any]

_FORMS = (
    "a .npy file of [N, D], in the order of the data or with --feature-ids; a .npz file of `ids` and `features`; or a "
    ".parquet or .csv file with a column `id`"
)


def read_features(path: str | Path, ids: Sequence[Any], feature_ids: str | Path | None = None) -> Floats:
    """Read one row per id, in the order of ``ids``.

    Args:
        path: ``.npy`` holds ``[N, D]``: row ``i`` belongs to the ``i``-th id, or to the ``i``-th line of
            ``feature_ids``. ``.npz`` holds ``ids`` ``[N]`` and ``features`` ``[N, D]``. Parquet or CSV holds a column
            ``id`` and either one column of lists or one number per column. By id, rows may be more and in any order.
        ids: of the data, in its order.
        feature_ids: a text file with one id per line, in the order of the rows of a ``.npy`` file.

    Raises:
        SgoifError: The file has another form, or lacks some of the ids.
    """
    place = Path(path)
    if not place.is_file():
        raise SgoifError(f"'{place}' does not exist; pass embeddings as {_FORMS}.")
    if feature_ids is not None and place.suffix != ".npy":
        raise SgoifError(f"--feature-ids names the rows of a .npy file; '{place.name}' has ids of its own.")
    if place.suffix == ".npy":
        values = _load(place)
        if feature_ids is None:
            return check_features(values, len(ids), f"'{place}'")
        own = _read_ids(Path(feature_ids))
        return _by_id(check_features(values, len(own), f"'{place}'"), own, ids, f"'{feature_ids}'")
    if place.suffix == ".npz":
        with _load(place) as kept:
            missing = [name for name in ("ids", "features") if name not in kept]
            if missing:
                raise SgoifError(f"'{place}' lacks {' and '.join(missing)}: it holds {', '.join(kept)}.")
            names, values = _member(kept, "ids", place).tolist(), _member(kept, "features", place)
            return _by_id(check_features(values, len(names), f"'{place}'"), names, ids, f"'{place}'")
    if place.suffix not in (".parquet", *CSV_SUFFIXES):
        raise SgoifError(f"'{place}' is neither .npy, .npz, .parquet nor .csv; pass embeddings as {_FORMS}.")
    names, values = _read_table(place)
    return _by_id(check_features(values, name=f"'{place}'"), names, ids, f"'{place}'")


def order_of(path: str | Path, feature_ids: str | Path | None, ids: Sequence[Any]) -> str:
    """Say by what rows of embeddings were given to examples."""
    if Path(path).suffix == ".npy" and feature_ids is None:
        return f"by position: row 0 is {str(ids[0])!r}, the last row is {str(ids[-1])!r}"
    return "by id"


def _load(place: Path) -> Any:
    try:
        mode: Any = "r" if place.suffix == ".npy" else None
        return np.load(place, mmap_mode=mode, allow_pickle=False)
    except Exception as error:  # objects need pickle, which runs code; a damaged header raises what parsers raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SgoifError(f"'{place}' cannot be read as numbers: {reason}; save the embeddings as float32.") from error


def _member(kept: Any, name: str, place: Path) -> NDArray[Any]:
    try:
        return np.asarray(kept[name])
    except Exception as error:
        raise SgoifError(f"`{name}` of '{place}' holds objects; save it as {_PLAIN[name]}.") from error


_PLAIN = {"ids": "text or whole numbers: np.array(ids, dtype=str)", "features": "float32"}


def _read_ids(place: Path) -> list[str]:
    try:
        return place.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError as error:
        raise SgoifError(f"'{place}' does not exist; --feature-ids is a text file with one id per line.") from error
    except UnicodeDecodeError as error:
        raise SgoifError(f"'{place}' is not UTF-8 text; --feature-ids is a text file with one id per line.") from error


def _read_table(place: Path) -> tuple[list[Any], Floats]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    is_csv = place.suffix in CSV_SUFFIXES
    try:
        table = read_csv(place) if is_csv else pq.read_table(place)
    except (pa.ArrowException, OSError) as error:
        kind = "CSV" if is_csv else "Parquet"
        raise SgoifError(f"'{place}' cannot be read as {kind}: {str(error).splitlines()[0]}") from error
    if "id" not in table.column_names:
        raise SgoifError(
            f"'{place}' has no column `id`: it has {', '.join(table.column_names)}. Add one; where the data has no ids "
            "either, they are its row numbers, from 0."
        )
    own = table["id"].to_pylist()
    lists = [
        field.name for field in table.schema if pa.types.is_list(field.type) or pa.types.is_fixed_size_list(field.type)
    ]
    if lists:
        column = table[lists[0]]
        widths = {len(row) for row in column.to_pylist() if row is not None}
        if len(widths) != 1 or column.null_count:
            raise SgoifError(
                f"the lists of `{lists[0]}` in '{place}' differ in length ({sorted(widths)[:5]}) or are null; one "
                "embedding of the same length is needed for each id."
            )
        return own, np.asarray(column.to_pylist(), dtype=np.float32)
    # a column of whole numbers in Parquet is a label or a code; in CSV it may be a feature as well
    is_whole, is_float = pa.types.is_integer, pa.types.is_floating
    fields = [field for field in table.schema if field.name not in ("id", *(LABEL_COLUMNS if is_csv else ()))]
    numbers = [field.name for field in fields if is_float(field.type) or (is_csv and is_whole(field.type))]
    if not numbers:
        raise SgoifError(f"'{place}' has no column of lists and none of numbers beside `id`.")
    return own, np.stack([table[name].to_numpy().astype(np.float32) for name in numbers], 1)


def _by_id(rows: Floats, own: Sequence[Any], ids: Sequence[Any], where: str) -> Floats:
    known = {str(value): number for number, value in enumerate(own)}
    if len(known) < len(own):
        raise SgoifError(f"{where} names {len(own) - len(known):,} ids more than once; one row per id is needed.")
    missing = [value for value in ids if str(value) not in known]
    if missing:
        hint = f"; its own look like {str(own[0])[:80]!r}" if own else ""
        raise SgoifError(
            f"{where} lacks {len(missing):,} of {len(ids):,} ids, the first is {str(missing[0])[:80]!r}{hint}."
        )
    return np.asarray(rows[[known[str(value)] for value in ids]])
