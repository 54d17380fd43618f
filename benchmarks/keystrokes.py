"""A keystroke-level model of a person who reviews labels: seconds and decisions of one pass through a list of cards.

The operators and their costs are those of Card, Moran and Newell (1980), with three more for looking and scrolling. The
person knows the true class of every card and presses the right key for it. The only mistakes are exceptions in a batch
that are overlooked, and these are equally likely on both pages.

``cards`` is a page of cards in groups that share a given and a suggested class, 14 on a screen. A group is decided one
card at a time, or by the bulk key, after which every exception is clicked and decided on its own: whichever takes less
time. The person knows that in advance, which flatters this page. ``one_by_one`` never uses the bulk key.

``workbench`` shows the cards that may be accepted in bulk in batches of at most 50 tiles that share one answer.
Exceptions are clicked, Enter accepts the rest. The exceptions and all other cards come one at a time in focus mode.
Where the list can revise its answers, batches are chosen again after every 200 cards in focus mode.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["POLICIES", "Costs", "Outcome", "ReviewList", "simulate"]

Labels = NDArray[np.int64]
Flags = NDArray[np.bool_]

POLICIES = ("one_by_one", "cards", "workbench")
CARDS_PER_SCREEN = 14
TILES_PER_BATCH = 50
CARDS_PER_ROUND = 200  # decided in focus mode before the workbench chooses its batches again
LEAST_TILES = 3  # fewer are not worth a batch of their own


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds of each operator."""

    key: float = 0.2  # a key or a click
    pointing: float = 1.1
    homing: float = 0.4  # a hand between keyboard and mouse
    preparation: float = 1.35  # before a command that the card itself does not call for
    tile: float = 0.4  # a look at one tile of a batch
    card: float = 1.5  # a look at a card that is decided alone
    scroll: float = 0.5  # a screen

    def choose_class(self) -> float:
        """Choose a class that is on no key from the list of classes."""
        return self.preparation + self.homing + self.pointing + self.key + self.homing


@dataclass(frozen=True, slots=True)
class ReviewList:
    """Cards in the order of the page, and what the page offers for each."""

    given: Labels  # [N]
    true: Labels  # what the person knows, [N]
    keys: Labels  # classes on the keys 1 to 3, best first, -1 for none, [N, 3]
    answer: Labels  # the class that a batch of the workbench offers, the given one where it looks right; -1: none, [N]
    revise: Callable[[Labels], Labels] | None = None  # answers by what was decided so far, -1 for nothing; both [N]

    @property
    def is_wrong(self) -> Flags:
        """Which labels are wrong."""
        return np.asarray(self.given != self.true)

    @property
    def is_on_key(self) -> Flags:
        """Where the true class is on one of the keys, or the label is right and is kept by one."""
        return np.asarray((self.keys == self.true[:, None]).any(1) | ~self.is_wrong)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a pass through the list came to."""

    seconds: float
    num_right: int  # decisions
    num_wrong: int  # exceptions that were accepted with their batch
    num_bulk: int  # cards that were offered in bulk
    num_bulk_right: int

    @property
    def seconds_per_right(self) -> float:
        """Seconds per right decision."""
        return self.seconds / max(self.num_right, 1)


def simulate(policy: str, cards: ReviewList, *, overlooks: float, seed: int, costs: Costs | None = None) -> Outcome:
    """Review all cards.

    Args:
        policy: one of :data:`POLICIES`.
        cards: the list.
        overlooks: probability that an exception in a batch is not seen.
        seed: of what is overlooked; a card is overlooked on every page or on none.
        costs: of the operators.
    """
    costs = costs or Costs()
    is_seen = np.random.default_rng([seed, 24]).random(len(cards.given)) >= overlooks
    alone = costs.card + costs.key + np.where(cards.is_on_key, 0.0, costs.choose_class() - costs.key)  # [N]
    if policy == "workbench":
        return _work_through(cards, alone, is_seen, costs)
    return _page_through(cards, alone, is_seen, costs, has_bulk=policy == "cards")


def _page_through(
    cards: ReviewList, alone: NDArray[np.float64], is_seen: Flags, costs: Costs, *, has_bulk: bool
) -> Outcome:
    """Group by group on a page of cards."""
    seconds, offered, right, wrong = costs.scroll * -(-len(alone) // CARDS_PER_SCREEN), 0, 0, 0
    for group in _groups(np.stack([cards.given, cards.keys[:, 0]], 1)):
        fits = cards.keys[group, 0] == cards.true[group]
        singly = float(alone[group].sum())
        seen = group[~fits & is_seen[group]]
        mending = float((costs.pointing + costs.key + alone[seen]).sum()) + 2 * costs.homing * bool(len(seen))
        together = costs.preparation + costs.tile * len(group) + 2 * costs.key + mending
        if has_bulk and cards.keys[group[0], 0] >= 0 and together < singly:
            seconds, offered, right = seconds + together, offered + len(group), right + int(fits.sum())
            wrong += int((~fits & ~is_seen[group]).sum())
        else:
            seconds += singly
    return Outcome(seconds, len(alone) - wrong, wrong, offered, right)


def _work_through(cards: ReviewList, alone: NDArray[np.float64], is_seen: Flags, costs: Costs) -> Outcome:
    """Batches first, then what is left in focus mode, exceptions first; in rounds where answers follow decisions."""
    seconds, offered, right, wrong = 0.0, 0, 0, 0
    decided, is_exception = np.full(len(alone), -1, np.int64), np.zeros(len(alone), bool)
    answer, is_open = cards.answer, np.ones(len(alone), bool)
    while is_open.any():
        for batch in _batches(np.where(is_open & ~is_exception, answer, -1)):
            fits = answer[batch] == cards.true[batch]
            seen = batch[~fits & is_seen[batch]]
            clicks = (costs.pointing + costs.key) * len(seen) + 2 * costs.homing * bool(len(seen))
            seconds += costs.preparation + costs.scroll + costs.tile * len(batch) + clicks + costs.key
            offered, right = offered + len(batch), right + int(fits.sum())
            wrong += len(batch) - int(fits.sum()) - len(seen)
            decided[batch], is_open[batch] = answer[batch], False
            decided[seen], is_open[seen], is_exception[seen] = -1, True, True
        queue = np.flatnonzero(is_open)
        if cards.revise is not None:
            queue = queue[np.argsort(~is_exception[queue], kind="stable")]
            queue = queue[: max(CARDS_PER_ROUND, int(is_exception[queue].sum()))]
        seconds += float(alone[queue].sum())
        decided[queue], is_open[queue] = cards.true[queue], False
        if cards.revise is not None:
            answer = cards.revise(decided)
    return Outcome(seconds, len(alone) - wrong, wrong, offered, right)


def _batches(answer: Labels) -> list[Labels]:
    """Rows that share an answer, at most 50 together; few are left for focus mode."""
    bulk = np.flatnonzero(answer >= 0)
    groups = [bulk[group] for group in _groups(answer[bulk, None])]
    parts = [
        group[start : start + TILES_PER_BATCH] for group in groups for start in range(0, len(group), TILES_PER_BATCH)
    ]
    return [part for part in parts if len(part) >= LEAST_TILES]


def _groups(values: Labels) -> list[Labels]:
    """Rows of equal values, in the order of the list."""
    if not len(values):
        return []
    inverse = np.unique(values, axis=0, return_inverse=True)[1].reshape(-1)
    order = np.argsort(inverse, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(inverse[order])) + 1)
