"""A map of the examples in two dimensions: the principal components of what the model saw of each of them.

The run keeps 256 signs of every example (:mod:`sgoif.influence.likeness`). Their two main directions are those of the
features, roughly, and need no further model; the same run gives the same map.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sgoif.evidence import LIKENESS_COLUMNS, SKETCH_BITS
from sgoif.findings.neighbours import has_likeness
from sgoif.findings.suspects import columns_of, labels_of
from sgoif.report.cards import Card
from sgoif.report.findings import Findings
from sgoif.types import Floats, Ints

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Layout", "lay_out_examples"]

Signs = NDArray[np.float32]

_MOST_FITTED = 50_000  # examples from which the directions are learnt: 51 MB of signs
_MOST_DRAWN = 6_000  # examples besides the cards
_SIDE = 999  # coordinates are whole numbers up to this one
_EDGE = 0.5  # percent of the examples beyond each edge, which are moved onto it
_WORDS = ", ".join(LIKENESS_COLUMNS)
_KNOWN = "(" + " or ".join(f"{name} <> 0" for name in LIKENESS_COLUMNS) + ")"


@dataclass(frozen=True, slots=True)
class Layout:
    """Places of the cards and of a sample of all other examples."""

    cards: tuple[tuple[int, int] | None, ...]  # in the order of the cards; None where the run knows too little
    others: tuple[tuple[int, int, int], ...]  # place and given label
    num_examples: int  # that the sample is drawn from


def lay_out_examples(run: Findings, cards: Sequence[Card]) -> Layout | None:
    """Place the examples of a run; None where it does not know which are alike."""
    if not has_likeness(run.sql):
        return None
    labels = labels_of(run.sql)
    total = int(run.sql(f"select count(*) as n from {labels} where {_KNOWN}")["n"][0].as_py())
    sample = f" and hash(id::varchar) % {total} < {_MOST_FITTED}" if total > _MOST_FITTED else ""
    fitted = run.sql(f"select id::varchar as id, given_label, {_WORDS} from {labels} where {_KNOWN}{sample} order by 1")
    if len(fitted) < 3:
        return None
    points, axes = _fit(_signs(fitted))
    asked = _read_cards(run, cards)
    own = {name: point for name, point in zip(asked["id"].to_pylist(), _signs(asked) @ axes)}
    low, high = np.percentile(points, [_EDGE, 100 - _EDGE], axis=0)
    placed = _to_grid(np.array([own[str(card.id)] for card in cards if str(card.id) in own]).reshape(-1, 2), low, high)
    places = iter([(int(x), int(y)) for x, y in placed])
    thin = np.unique(np.linspace(0, len(points) - 1, min(len(points), _MOST_DRAWN)).astype(np.int64))
    given = fitted["given_label"].to_numpy()[thin]
    others = zip(_to_grid(points[thin], low, high).tolist(), given.tolist())
    return Layout(
        tuple(next(places) if str(card.id) in own else None for card in cards),
        tuple((int(x), int(y), int(label)) for (x, y), label in others),
        total,
    )


def _fit(signs: Signs) -> tuple[Floats, Floats]:
    """Places of the examples, ``[N, 2]``, and the directions, ``[256, 2]``, each with its largest entry positive."""
    mean = signs.mean(0)
    covariance = signs.T @ signs / len(signs) - np.outer(mean, mean)
    axes = np.linalg.eigh(covariance.astype(np.float64))[1][:, :-3:-1]
    largest = np.abs(axes).argmax(0)
    axes = axes * np.sign(axes[largest, [0, 1]])
    return np.asarray(signs @ axes, dtype=np.float64), np.asarray(axes, dtype=np.float64)


def _to_grid(points: Floats, low: Floats, high: Floats) -> Ints:
    share = (points - low) / np.maximum(high - low, 1e-9)
    return np.asarray(np.rint(_SIDE * share.clip(0, 1)), dtype=np.int64)


def _signs(table: pa.Table) -> Signs:
    words = np.stack([table[name].to_numpy() for name in LIKENESS_COLUMNS], 1).astype("<i8")
    bits = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=1, bitorder="little")
    return np.asarray(bits.reshape(-1, SKETCH_BITS), dtype=np.float32) * 2 - 1


def _read_cards(run: Findings, cards: Sequence[Card]) -> Any:
    ids = [str(card.id) for card in cards]
    parts = []
    for table in ("examples", "holdout"):
        if LIKENESS_COLUMNS[0] in columns_of(run.sql, table):
            known = f"{_KNOWN} and id::varchar in (select unnest($ids::varchar[]))"
            parts.append(f"select id::varchar as id, {_WORDS} from {table} where {known}")
    return run.sql(" union all ".join(parts), ids=ids)
