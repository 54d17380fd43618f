"""How many labels are wrong, from a few that a person checked: which to check, and what follows with which interval.

Examples are ranked by suspicion and cut into strata at the ranks that will be asked about: the number flagged, the
first 1%, 5% and 10%. From each stratum cards are drawn at random, so that every example has a known probability of
being shown, and what is said of the whole rests on the verdicts alone: a wrong p costs width, never truth.

Numbers of errors are sums over strata. Each stratum has a Jeffreys posterior, ``θ ~ Beta(x + ½, m - x + ½)`` after
``x`` errors in ``m`` cards, and ``Binomial(N - m, θ)`` errors among the examples that nobody saw; the ends of an
interval are quantiles of the sum. Two departures, both chosen by coverage (``benchmarks.verify``):

* The lower end counts nothing in strata without a single error: half an error from each of several strata would prove
  errors on a set that has none.
* The upper end adds that half error only where a card stands for the most examples, elsewhere in proportion.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sgoif.types import Floats, Ints

__all__ = ["NUM_CARDS", "CheckedShare", "Design", "Verdicts", "cards_needed", "draw_ranks", "estimate", "make_design"]

NUM_CARDS = 60  # ten minutes of a person's time
TOPS = (0.01, 0.05, 0.10)  # precision of these shares of the ranking is asked for
_FEWEST = 6  # cards of a stratum: below, its precision has no useful interval
_LEVEL = 0.90
_NUM_DRAWS = 2000
_PER_LIMIT = 6  # cards that tell half a limit from the whole of it, times the limit (measured: 60 at 10%, 120 at 5%)


@dataclass(frozen=True, slots=True)
class Design:
    """Strata of a ranking, most suspicious first, and how many cards each of them gives."""

    edges: tuple[int, ...]  # ranks; stratum h holds those from edges[h] up to edges[h + 1]
    num_cards: tuple[int, ...]

    @property
    def sizes(self) -> Ints:
        """Examples in each stratum."""
        edges = np.array(self.edges, dtype=np.int64)
        return edges[1:] - edges[:-1]

    @property
    def num_examples(self) -> int:
        """Of all strata."""
        return self.edges[-1]


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Answers per stratum, ``[H]`` each. Cards without an answer are not counted."""

    num_wrong: Sequence[int]
    num_right: Sequence[int]
    num_unsure: Sequence[int]  # the person cannot tell


@dataclass(frozen=True, slots=True)
class CheckedShare:
    """Share of wrong labels among the first ``count`` examples of the ranking, from checked labels."""

    count: int
    value: float
    low: float  # of a 90% interval
    high: float
    at_most: float  # at 90% confidence; below `high`, which leaves 5% above itself
    num_checked: int
    num_wrong: int
    num_unsure: int


def make_design(num_examples: int, num_flagged: int, num_doubtful: int = 0, num_cards: int = NUM_CARDS) -> Design:
    """Choose strata and cards.

    Cards go to strata by the square root of their sizes, with at least 6 each. In proportion to size, hardly any card
    would fall among the suspects; in equal parts, so few among the rest that the number of errors stays unknown:
    without a single error in 20 cards, up to 9% of the rest may be wrong.

    Args:
        num_examples: of the whole ranking.
        num_flagged: more likely wrong than right; the first of the ranking.
        num_doubtful: those and the ones in some doubt, where the ranking has probabilities.
        num_cards: in all; fewer where there are fewer examples.

    >>> make_design(10_000, 300)
    Design(edges=(0, 100, 300, 500, 1000, 10000), num_cards=(6, 6, 6, 8, 34))
    """
    tops = [math.ceil(share * num_examples - 1e-9 * num_examples) for share in TOPS]
    cuts = sorted({rank for rank in (num_flagged, *tops) if 0 < rank < num_examples})
    if cuts and 1.25 * cuts[-1] < num_doubtful < 0.9 * num_examples:
        cuts.append(num_doubtful)
    edges = (0, *cuts, num_examples)
    sizes = Design(edges, ()).sizes
    cards = np.minimum(sizes, min(_FEWEST, max(num_cards // len(sizes), 1)))
    while cards.sum() < min(num_cards, num_examples):
        cards[np.argmax(np.where(cards < sizes, np.sqrt(sizes) / cards, -1.0))] += 1
    return Design(edges, tuple(cards.tolist()))


def draw_ranks(design: Design, rng: np.random.Generator) -> list[Ints]:
    """Draw the ranks of the cards of each stratum, each rank of a stratum with the same probability."""
    starts = design.edges[:-1]
    return [
        start + rng.choice(size, number, replace=False, shuffle=False).astype(np.int64)
        for start, size, number in zip(starts, design.sizes.tolist(), design.num_cards, strict=True)
    ]


def estimate(design: Design, verdicts: Verdicts, count: int | None = None, seed: int = 0) -> CheckedShare | None:
    """Estimate the share of wrong labels among the first examples of the ranking.

    A card that the person cannot tell counts as right at the lower end of the interval and as wrong at the upper one;
    the value leaves it out.

    Args:
        design: that the cards were drawn by.
        verdicts: on them.
        count: the first so many; one of the design's edges. All by default.
        seed: of the simulation.

    Returns:
        None where a stratum has no card that was decided: nothing can be said then.

    Raises:
        ValueError: ``count`` is no edge of the design.
    """
    count = design.num_examples if count is None else count
    if count not in design.edges[1:]:
        raise ValueError(f"count must be one of the design's edges {design.edges[1:]}, got {count}")
    upto = design.edges.index(count)
    wrong, right, unsure = (
        np.array(part[:upto], dtype=np.int64) for part in (verdicts.num_wrong, verdicts.num_right, verdicts.num_unsure)
    )
    sizes, decided = design.sizes[:upto], wrong + right
    if not decided.all():
        return None
    seen = decided + unsure
    value = float((sizes * wrong / decided).sum())
    rng = np.random.default_rng(seed)
    low = float(np.quantile(_draw_fewest(wrong, seen, sizes, rng), (1 - _LEVEL) / 2))
    most = _draw_most(wrong + unsure, seen, sizes, rng)
    high, at_most = (float(np.quantile(most, level)) for level in ((1 + _LEVEL) / 2, _LEVEL))
    return CheckedShare(
        count=count,
        value=value / count,
        low=min(low, value) / count,
        high=max(high, value) / count,
        at_most=max(at_most, value) / count,
        num_checked=int(decided.sum()),
        num_wrong=int(wrong.sum()),
        num_unsure=int(unsure.sum()),
    )


def cards_needed(limit: float) -> int:
    """How many cards show that a rate is below a limit, in half of all cases, where it is half of the limit.

    >>> cards_needed(0.05)
    120
    """
    return math.ceil(_PER_LIMIT / limit - 1e-9) if limit > 0 else 0


def _draw_fewest(wrong: Ints, seen: Ints, sizes: Ints, rng: np.random.Generator) -> Floats:
    """Numbers of errors as they may be at least, ``[draws]``: those seen, and none in strata without any."""
    has_errors = wrong > 0
    if not has_errors.any():
        return np.zeros(_NUM_DRAWS)
    return _draw(wrong[has_errors], seen[has_errors], sizes[has_errors], np.full(int(has_errors.sum()), 0.5), rng)


def _draw_most(wrong: Ints, seen: Ints, sizes: Ints, rng: np.random.Generator) -> Floats:
    """Numbers of errors as they may be at most, ``[draws]``: everything in strata where all cards are wrong."""
    is_open = wrong < seen
    full = float(sizes[~is_open].sum())
    if not is_open.any():
        return np.full(_NUM_DRAWS, full)
    stands_for = np.where(seen < sizes, sizes / seen, 0.0)
    prior = 0.5 * stands_for / max(float(stands_for.max()), 1e-12)
    return full + _draw(wrong[is_open], seen[is_open], sizes[is_open], prior[is_open], rng)


def _draw(wrong: Ints, seen: Ints, sizes: Ints, prior: Floats, rng: np.random.Generator) -> Floats:
    shape = (_NUM_DRAWS, len(wrong))
    theta = rng.beta(np.maximum(wrong + prior, 1e-9), seen - wrong + 0.5, shape)
    return np.asarray((wrong + rng.binomial(sizes - seen, theta, shape)).sum(1), dtype=np.float64)
