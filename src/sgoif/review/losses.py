"""Which classes, or groups of the user's own, would lose many of their examples: a reason to look again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sgoif.review.manifest import Settled, everything
from sgoif.review.merge import Outcome

if TYPE_CHECKING:
    import pyarrow as pa

    from sgoif.store import RunFiles

__all__ = ["Loss", "class_losses", "group_losses"]

MANY = 0.2


@dataclass(frozen=True, slots=True)
class Loss:
    """A class or group, and how many of its examples are dropped or relabelled away."""

    about: Any  # a class's number, or a value of the user's own column
    num_lost: int
    num_examples: int


def class_losses(files: RunFiles, settled: Settled, many: float = MANY) -> list[Loss]:
    """Classes that lose more than a share of their examples, the worst first."""
    rows = files.sql(f"select given_label, count(*) as n from ({everything(files)}) group by given_label")
    sizes = dict(zip(rows["given_label"].to_pylist(), rows["n"].to_pylist(), strict=True))
    return _large(Counter(item.given_label for item in _lost(settled)), sizes, many)


def group_losses(settled: Settled, own: pa.Table, by: str, many: float = MANY) -> list[Loss]:
    """The same by a column of the user's own table, one row per example; ``id`` and ``by`` hold text."""
    lost = {item.id for item in _lost(settled)}
    sizes: Counter[Hashable] = Counter()
    gone: Counter[Hashable] = Counter()
    for batch in own.to_batches():
        groups = batch.column(by).to_pylist()
        sizes.update(groups)
        gone.update(group for id, group in zip(batch.column("id").to_pylist(), groups, strict=True) if id in lost)
    return _large(gone, sizes, many)


def _lost(settled: Settled) -> Iterable[Outcome]:
    return (item.outcome for item in settled.applied if item.outcome.label != item.outcome.given_label)


def _large(lost: Mapping[Any, int], sizes: Mapping[Any, int], many: float) -> list[Loss]:
    found = [Loss(about, number, sizes[about]) for about, number in lost.items() if number > many * sizes[about]]
    return sorted(found, key=lambda item: -item.num_lost / item.num_examples)
