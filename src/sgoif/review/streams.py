"""Iterables of dictionaries, such as a WebDataset, without what was dropped and with the new labels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch.utils.data import IterableDataset

from sgoif.errors import SgoifError
from sgoif.review.changes import Changes, new_label

__all__ = ["CleanedStream"]

_PROBED = 1000  # keys that are looked for in the manifest, where it changes none of them


class CleanedStream(IterableDataset[Any]):
    """Passes samples on; an example is known by its ``__key__``.

    Args:
        samples: dictionaries with ``__key__``; iterated anew for every pass.
        changes: of a manifest.
        label: the key of the label: a number, or its digits as text or bytes.
    """

    def __init__(self, samples: Iterable[Mapping[str, Any]], changes: Changes, label: str) -> None:
        self.samples, self.changes, self.label = samples, changes, label

    def __iter__(self) -> Iterator[Any]:
        unknown: set[str] | None = set()  # None: the manifest and the samples are known to belong together
        for sample in self.samples:
            key = _key(sample)
            change = self.changes.get(key)
            if change is not None:
                unknown = None
            elif unknown is not None:
                unknown.add(key)
                if len(unknown) == _PROBED:
                    self._need_known(unknown)
                    unknown = None
            if change is None:
                yield sample
            elif change.label is not None:
                yield {**sample, self.label: self._relabelled(sample, key)}
        if unknown:
            self._need_known(unknown)

    def _relabelled(self, sample: Mapping[str, Any], key: str) -> Any:
        if self.label not in sample:
            raise SgoifError(f"sample {key!r} has no {self.label!r}; it has {', '.join(sample)}. Pass label=.")
        return new_label(self.changes.by_id[key], sample[self.label], key, self.changes.path)

    def _need_known(self, keys: set[str]) -> None:
        if not self.changes.know_any(keys):
            raise SgoifError(
                f"none of {len(keys)} keys is in '{self.changes.path}': they look like {min(keys)!r}, the manifest's "
                f"ids like {self.changes.first_id()!r}."
            )


def _key(sample: Any) -> str:
    if not isinstance(sample, Mapping) or "__key__" not in sample:
        raise SgoifError(
            f"an iterable must give dictionaries with __key__, got {type(sample).__name__}; clean the samples before "
            "they are made into tuples, or pass a map-style dataset."
        )
    return str(sample["__key__"])
