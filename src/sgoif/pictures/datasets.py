"""Pictures of a map-style dataset, by position or by its ids; and of a function from an id to a picture."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sgoif.errors import SgoifError
from sgoif.inputs.ids import ids_of, is_subset, is_with_ids
from sgoif.pictures.folders import FolderPictures
from sgoif.pictures.reading import PicturePlace, Positions, plain_id, shown_id
from sgoif.pictures.sources import IMAGE_COLUMNS, SUFFIXES

__all__ = ["DatasetPictures", "FunctionPictures"]

_KEYS = (*IMAGE_COLUMNS, "pixel_values")


class DatasetPictures(PicturePlace):
    """``dataset[i]``: a picture, a tuple that starts with one, or a dict with one.

    Ids are those that ``sgoif.with_ids`` gives: ``dataset.ids`` where it has them, else positions in the dataset that
    everything was cut from. A dataset of files (torchvision's ``ImageFolder``, with ``samples`` and ``root``) gives the
    file, which is not cropped, turned or normalised as the example is, and knows paths below its root as ids too.
    """

    def __init__(self, dataset: Any) -> None:
        super().__init__(f"a dataset of {len(dataset):,}")
        self._dataset = dataset
        self._positions = Positions(ids_of(dataset))
        root = getattr(_innermost(dataset), "root", None)
        has_files = hasattr(_innermost(dataset), "samples") and isinstance(root, str | Path)
        self._folder = FolderPictures(Path(root)) if has_files and root is not None else None

    def read(self, ids: Sequence[Any]) -> Iterator[Any | None]:
        self._positions.find(ids)  # one pass over the ids of the dataset for all of them
        yield from super().read(ids)

    def value(self, id: Any) -> Any | None:
        position = self._positions.find([id])[str(plain_id(id))]
        if position is None and self._folder is not None:
            return self._folder.value(id)
        if position is None:
            raise SgoifError(f"{self.about} has no example {shown_id(id)}.")
        file = _file_of(self._dataset, position)
        return file if file is not None else _picture_in(self._dataset[position])

    def link(self, id: Any) -> str | None:
        position = self._positions.find([id])[str(plain_id(id))]
        if position is None:
            return None if self._folder is None else self._folder.link(id)
        file = _file_of(self._dataset, position)
        return None if file is None else file.absolute().as_uri()


class FunctionPictures(PicturePlace):
    """``function(id)``: anything that can be displayed, or None where there is no picture."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__(f"the function '{getattr(function, '__name__', type(function).__name__)}'")
        self._function = function

    def value(self, id: Any) -> Any | None:
        return self._function(plain_id(id))


def _innermost(dataset: Any) -> Any:
    while is_subset(dataset) or is_with_ids(dataset):
        dataset = dataset.dataset
    return dataset


def _file_of(dataset: Any, position: int) -> Path | None:
    """Find the file of an example, where the dataset is one of files as torchvision keeps them."""
    while is_subset(dataset) or is_with_ids(dataset):
        position = int(dataset.indices[position]) if is_subset(dataset) else position
        dataset = dataset.dataset
    samples = getattr(dataset, "samples", None)
    sample = samples[position] if isinstance(samples, list) and position < len(samples) else None
    if not isinstance(sample, tuple) or not isinstance(sample[0], str):
        return None
    path = Path(sample[0])
    return path if path.suffix.lower() in SUFFIXES and path.is_file() else None


def _picture_in(item: Any) -> Any:
    if isinstance(item, Mapping):
        name = next((name for name in _KEYS if name in item), None)
        if name is None:
            keys = ", ".join(map(str, item))
            raise SgoifError(f"the items have no picture: their keys are {keys}; looked for {', '.join(_KEYS)}.")
        item = item[name]
        return _stored_in(item) if isinstance(item, Mapping) else item
    return item[0] if isinstance(item, tuple | list) else item


def _stored_in(item: Mapping[Any, Any]) -> Any:
    """``{bytes, path}`` of Hugging Face; the dataset is the user's own, and so are its paths."""
    found = item.get("bytes")
    path = item.get("path")
    return found if found is not None else Path(path) if isinstance(path, str) else b""
