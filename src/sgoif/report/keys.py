"""Class keys of cards: what :func:`sgoif.findings.keys.class_keys` says of them and the neighbours that are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgoif.findings.keys import NUM_NEAREST, ClassKeys, class_keys, neighbour_labels
from sgoif.report.cards import Beside, Card, DecidedCard
from sgoif.report.findings import Findings
from sgoif.types import Ints

__all__ = ["CardKeys", "check_first_keys", "keys_of_cards"]

_NUM_SUGGESTED = 3
_DIGITS = 3  # of shares on the page


@dataclass(frozen=True, slots=True)
class CardKeys:
    """The classes that a card offers on its keys."""

    labels: tuple[int, ...] = ()  # best first, at most three, without the given class
    shares: tuple[float, ...] = ()  # probability that it is the true class; empty where the run does not know
    agrees: bool = False  # whether the neighbours agree with the first: then the page may offer it in a batch


def keys_of_cards(cards: Sequence[Card], nearest: Mapping[str, Sequence[Beside]]) -> list[CardKeys]:
    """Rank the classes that each card may be relabelled as.

    Args:
        cards: of a page.
        nearest: the training examples beside them, by the text of a card's id.

    >>> card = Card("a", given=0, suggested=(1, 2), p=0.96, probable=(0.9, 0.06))
    >>> beside = [Beside(str(i), label) for i, label in enumerate([1, 1, 1, 1, 3, 0])]
    >>> keys_of_cards([card], {"a": beside})
    [CardKeys(labels=(1, 2, 3), shares=(0.877, 0.05, 0.033), agrees=True)]
    """
    near = np.full((len(cards), NUM_NEAREST), -1, np.int64)
    for row, card in enumerate(cards):
        beside = [item.label for item in nearest.get(str(card.id), ())][:NUM_NEAREST]
        near[row, : len(beside)] = beside
    found = _rank_classes(cards, near)
    columns = (found.labels.tolist(), found.shares.round(_DIGITS).tolist(), np.isfinite(found.belief).tolist())
    return [
        CardKeys(
            tuple(label for label in labels if label >= 0),
            tuple(share for label, share in zip(labels, shares, strict=True) if label >= 0 and share == share),
            agrees,
        )
        for labels, shares, agrees in zip(*columns, strict=True)
    ]


def check_first_keys(run: Findings, decided: Sequence[DecidedCard]) -> list[tuple[float, bool]]:
    """Share of the first key of each card with which the neighbours agree, and whether it was right."""
    cards = [item.card for item in decided]
    found = _rank_classes(cards, neighbour_labels(run.sql, [card.id for card in cards]))
    rows = zip(found.belief.round(_DIGITS).tolist(), found.labels[:, 0].tolist(), decided, strict=True)
    return [(belief, label == item.truth) for belief, label, item in rows if belief == belief]


def _rank_classes(cards: Sequence[Card], near: Ints) -> ClassKeys:
    rows: dict[str, NDArray[Any]] = {
        "given_label": np.array([card.given for card in cards], dtype=np.int64),
        "p_mislabeled": np.array([np.nan if card.p is None else card.p for card in cards], dtype=np.float64),
    }
    suggested = np.full((len(cards), _NUM_SUGGESTED), -1, np.int64)
    probable = np.full((len(cards), _NUM_SUGGESTED), np.nan)
    for row, card in enumerate(cards):
        suggested[row, : len(card.suggested)] = card.suggested
        probable[row, : len(card.probable)] = card.probable
    for place, tail in enumerate(("", "_2", "_3")):
        rows |= {f"suggested_label{tail}": suggested[:, place], f"p_suggested{tail}": probable[:, place]}
    return class_keys(rows, near)
