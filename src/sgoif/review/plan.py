"""Who gets which cards, and the answer key: what each card was there for.

Most cards are suspicious labels, some of them shown to everybody. Two kinds are mixed in that nobody can tell from
these: a random sample of all other examples, from which the error rate of the whole set follows, and canaries,
hold-out examples under a label that is known to be wrong, by which people are judged. Both are chosen inside DuckDB, in
an order given by a hash of seed and id: the same on every machine, and only the chosen rows leave it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sgoif.errors import SgoifError
from sgoif.findings.suspects import labels_of
from sgoif.review.decisions import Decision

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    *("PlannedCard", "ReviewPlan", "draw_canaries", "draw_unlisted", "make_plan", "plan_document"),
    *("read_files", "read_plan", "read_plans", "resolve_tokens", "write_plan"),
]

Sql = Callable[..., "pa.Table"]

FLAGGED, RANDOM, CANARY = "flagged", "random", "canary"
_FOLDER = "reviews"  # in the run's folder, never in the page
_FEW = 5  # canaries of each person, where there are any
_CANARY_SHARE = 0.02
_CLOSE = 0.01
_SURELY_RIGHT = 0.02  # p_mislabeled below which an unverified hold-out label may serve as a canary's truth
_SUGGESTIONS = ("suggested_label", "suggested_label_2", "suggested_label_3")


@dataclass(frozen=True, slots=True)
class PlannedCard:
    """One card: an example under a label, and why it is shown."""

    id: Any
    given_label: int  # as shown
    suggested: tuple[int, ...]
    p_shown: float | None
    kind: str  # flagged, random or canary
    truth: int | None = None  # of a canary
    p: float | None = None
    source: str = "train"

    @property
    def key(self) -> tuple[str, int]:
        """The example as decisions name it, and the label that is shown."""
        return str(self.id), self.given_label


@dataclass(frozen=True, slots=True)
class ReviewPlan:
    """The cards of every person, in the order in which they are shown."""

    list_id: str
    cards: Mapping[str, tuple[PlannedCard, ...]]
    settings: Mapping[str, Any]

    def of_kind(self, kind: str) -> dict[tuple[str, int], PlannedCard]:
        """All cards of a kind, those of several people once."""
        return {card.key: card for cards in self.cards.values() for card in cards if card.kind == kind}

    def token(self, card: PlannedCard) -> str:
        """What a card is called on the page and in the decisions: an id such as ``cat/17.png`` would tell a canary."""
        text = f"{self.list_id}\0{card.id}\0{card.given_label}"
        return hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=8).hexdigest()

    @property
    def truths(self) -> dict[tuple[str, int], int]:
        """True class of every canary, by example and shown label."""
        return {key: int(card.truth) for key, card in self.of_kind(CANARY).items() if card.truth is not None}


def make_plan(
    run: str,
    flagged: Sequence[PlannedCard],
    unlisted: Sequence[PlannedCard],
    canaries: Sequence[PlannedCard],
    reviewers: Sequence[str],
    *,
    overlap: float = 0.05,
    checks: float = 0.05,
    num_canaries: int | None = None,
    seed: int = 0,
) -> ReviewPlan:
    """Deal the cards.

    Args:
        run: names the run, for the list's id.
        flagged: suspicious labels, in the order in which they shall be seen.
        unlisted: a uniform random sample of all other examples (``draw_unlisted``); as many as ``checks``
            asks for are taken from its beginning.
        canaries: from ``draw_canaries``; none is fine.
        reviewers: names of the people.
        overlap: share of the flagged and of the random cards that everybody gets.
        checks: random cards, as a share of the flagged ones.
        num_canaries: of each person; by default 2% of the cards, at least 5.
        seed: of the draw; the same plan comes from the same seed.

    Raises:
        SgoifError: Nobody is to review, a name comes twice, or a share lies outside 0 to 1.
    """
    _check(reviewers, overlap=overlap, checks=checks)
    settings = {"run": run, "overlap": overlap, "checks": checks, "num_canaries": num_canaries, "seed": seed}
    list_id = _list_id(settings, reviewers, flagged)
    rng = np.random.default_rng([seed, int(list_id, 16) % 2**32])
    sampled = unlisted[: round(checks * len(flagged))]
    suspicious, random = (_deal(cards, reviewers, overlap, rng) for cards in (flagged, sampled))
    wanted = num_canaries
    if wanted is None:
        wanted = max(_FEW, round(_CANARY_SHARE * (len(flagged) + len(sampled)) / len(reviewers)))
    cards = {}
    for number, name in enumerate(reviewers):
        mine = [canaries[(number * wanted + i) % len(canaries)] for i in range(min(wanted, len(canaries)))]
        cards[name] = _mix(suspicious[name], [*random[name], *mine], rng)
    return ReviewPlan(list_id, cards, settings)


def resolve_tokens(decisions: Sequence[Decision], plans: Sequence[ReviewPlan]) -> list[Decision]:
    """Give decisions on planned cards their examples' ids back."""
    cards = {plan.token(card): card for plan in plans for mine in plan.cards.values() for card in mine}
    return [replace(item, id=str(cards[item.id].id)) if item.id in cards else item for item in decisions]


def plan_document(plan: ReviewPlan) -> dict[str, Any]:
    """Write a plan as JSON has it: the answer key, not to be shown to those who review."""
    cards = {name: [asdict(card) for card in mine] for name, mine in plan.cards.items()}
    return {"format": 1, "list": plan.list_id, "settings": dict(plan.settings), "cards": cards}


def read_plan(document: Mapping[str, Any]) -> ReviewPlan:
    """Read what :func:`plan_document` wrote.

    Raises:
        SgoifError: It is something else, or of a newer version.
    """
    if document.get("format") != 1:
        raise SgoifError(f"a plan of a review has format 1, got {document.get('format')!r}; install a newer sgoif.")
    known = [item.name for item in fields(PlannedCard)]
    cards = {
        name: tuple(
            PlannedCard(**{**{key: card[key] for key in known if key in card}, "suggested": tuple(card["suggested"])})
            for card in mine
        )
        for name, mine in document["cards"].items()
    }
    return ReviewPlan(document["list"], cards, document["settings"])


def write_plan(run_url: str, plan: ReviewPlan) -> None:
    """Keep a plan in the folder of its run, a local one or any fsspec URL."""
    from sgoif.files.locations import place_of

    text = json.dumps(plan_document(plan), allow_nan=False)
    place_of(run_url).write(f"{_FOLDER}/{plan.list_id}.json", text.encode())


def read_plans(run_url: str) -> list[ReviewPlan]:
    """Read all plans in the folder of a run."""
    return [read_plan(json.loads(data)) for _, data in read_files(run_url, _FOLDER)]


def read_files(run_url: str, folder: str) -> list[tuple[str, bytes]]:
    """Paths and contents of the JSON files in a folder of a run, by name."""
    from sgoif.files.locations import place_of

    place = place_of(run_url)
    return [(path, place.read(path)) for path in sorted(place.sizes(folder)) if path.endswith(".json")]


def _check(reviewers: Sequence[str], **shares: float) -> None:
    if not reviewers or len(set(reviewers)) < len(reviewers) or not all(name.strip() for name in reviewers):
        raise SgoifError(f"name the people who review, each once, got {list(reviewers)}.")
    for name, share in shares.items():
        if not 0 <= share <= 1:
            raise SgoifError(f"{name} is a share between 0 and 1, got {share}.")


def _list_id(settings: Mapping[str, Any], reviewers: Sequence[str], flagged: Sequence[PlannedCard]) -> str:
    digest = hashlib.sha256(json.dumps([settings, list(reviewers)], sort_keys=True).encode())
    for card in flagged:
        digest.update(f"{card.id}\0{card.given_label}\0".encode("utf-8", "backslashreplace"))
    return digest.hexdigest()[:10]


def _deal(
    cards: Sequence[PlannedCard], reviewers: Sequence[str], overlap: float, rng: np.random.Generator
) -> dict[str, list[PlannedCard]]:
    """Give some cards to everybody, and of every pair of given and suggested class a like share to each.

    Everybody's cards stay in the order of the list.
    """
    people = len(reviewers)
    is_shared = np.zeros(len(cards), bool)
    is_shared[rng.permutation(len(cards))[: round(overlap * len(cards))]] = people > 1
    pairs = [(card.given_label, card.suggested[:1]) for card in cards]
    single = sorted(np.flatnonzero(~is_shared).tolist(), key=lambda i: pairs[i])
    # dealing goes on where the last pair ended, so that nobody gets the odd card of every pair
    turn = {i: place % people for place, i in enumerate(single)}
    return {
        name: [card for i, card in enumerate(cards) if is_shared[i] or turn[i] == number]
        for number, name in enumerate(reviewers)
    }


def _mix(
    suspicious: Sequence[PlannedCard], others: Sequence[PlannedCard], rng: np.random.Generator
) -> tuple[PlannedCard, ...]:
    """Put cards in at random places, each with a number between those of its neighbours."""
    at: dict[int, list[PlannedCard]] = {}
    # never after the last suspicious card, whose number is the least on the page
    for card, place in zip(others, rng.integers(0, max(len(suspicious), 1), len(others)).tolist(), strict=True):
        at.setdefault(place, []).append(card)
    found: list[PlannedCard] = []
    for place in range(len(suspicious) + 1):
        here = at.get(place, [])
        drawn = sorted((_between(suspicious, place, rng) for _ in here), key=lambda p: -(p or 0.0))
        found += [replace(card, p_shown=p) for card, p in zip(here, drawn, strict=True)]
        found += [replace(card, p_shown=card.p) for card in suspicious[place : place + 1]]
    return tuple(found)


def _between(cards: Sequence[PlannedCard], place: int, rng: np.random.Generator) -> float | None:
    """Draw a number between those of the cards before and after a place; before the first, close to it."""
    after = cards[place].p if place < len(cards) else None
    if after is None:
        return None
    before = cards[place - 1].p if place else None
    return float(rng.uniform(after, min(after + _CLOSE, 1.0) if before is None else before))


def draw_unlisted(sql: Sql, listed: Iterable[object], count: int, seed: int = 0) -> list[PlannedCard]:
    """Draw examples that are on no list, all with the same probability; ``listed`` has ids."""
    present = sql("select * from examples limit 0").column_names
    p = "p_mislabeled" if "p_mislabeled" in present else "null::double as p_mislabeled"
    suggested = [name for name in _SUGGESTIONS if name in present]
    rows = sql(
        f"select id, given_label, source, {', '.join([*suggested, p])} from {labels_of(sql)} "
        "where id::varchar not in (select unnest($listed::varchar[])) "
        "order by md5($seed || '/' || id::varchar) limit $count",
        listed=[str(value) for value in listed],
        seed=str(seed),
        count=count,
    ).to_pylist()
    return [
        PlannedCard(
            row["id"],
            row["given_label"],
            _read_suggested([row[name] for name in suggested]),
            None,
            RANDOM,
            p=_number(row["p_mislabeled"]),
            source=row["source"],
        )
        for row in rows
    ]


def draw_canaries(
    sql: Sql,
    listed: Iterable[object],
    count: int,
    *,
    num_classes: int,
    transition: ArrayLike | None = None,
    seed: int = 0,
    has_holdout: bool = True,
) -> list[PlannedCard]:
    """Draw hold-out examples, of a scan any, whose label is surely right, and show them with another one.

    Classes take turns; of each, verified ones come first, then those that the run doubts least, below 2%. The label
    that is shown is the class that the true one is most often labelled as, by the run's noise transition; a random one
    where that is not known. The truth is one of three suggestions, at any place: who takes the first suggestion unseen
    is found out. No example whose id is listed becomes a canary; there may be fewer than asked for. ``transition`` is
    ``[C, C]``, the share of each true class (rows) that is labelled as each class.
    """
    table = "holdout" if has_holdout else "examples"
    present = sql(f"select * from {table} limit 0").column_names
    p = "p_mislabeled" if "p_mislabeled" in present else "null::double"
    rows = sql(
        f"select id, given_label, coalesce(trusted, false) as is_verified, {p} as p from {table} "
        f"where given_label >= 0 and (coalesce(trusted, false) or coalesce({p}, 1) < {_SURELY_RIGHT}) "
        "and id::varchar not in (select unnest($listed::varchar[])) "
        "order by row_number() over (partition by given_label order by is_verified desc, "
        f"case when is_verified then 0 else coalesce({p}, 1) end, md5($seed || '/' || id::varchar)), "
        "md5($seed || '/' || given_label::varchar) limit $count",
        listed=[str(value) for value in listed],
        seed=str(seed),
        count=count,
    ).to_pylist()
    taken: set[str] = set()
    if has_holdout:  # a decision on one of its examples could be taken for one on a training example with the same id
        both = sql(
            "select id::varchar as id from examples where id::varchar in (select unnest($ids::varchar[]))",
            ids=[str(row["id"]) for row in rows],
        )
        taken = set(both["id"].to_pylist())
    rng, shares = np.random.default_rng([seed, 2]), _shares(transition, num_classes)
    source, rows = "holdout" if has_holdout else "train", rows if num_classes > 1 else []
    return [_canary(row, shares, num_classes, rng, source) for row in rows if str(row["id"]) not in taken]


def _canary(
    row: Mapping[str, Any], shares: NDArray[np.float64], num_classes: int, rng: np.random.Generator, source: str
) -> PlannedCard:
    truth = int(row["given_label"])
    others = rng.permutation([label for label in range(num_classes) if label != truth])
    likely = others[np.argsort(-shares[truth, others], kind="stable")] if truth < len(shares) else others
    suggested = [truth, *likely[1:3].tolist()]
    return PlannedCard(
        row["id"],
        int(likely[0]),
        tuple(int(label) for label in rng.permutation(suggested)),
        None,
        CANARY,
        truth=truth,
        p=_number(row["p"]),
        source=source,
    )


def _shares(transition: ArrayLike | None, num_classes: int) -> NDArray[np.float64]:
    found = np.asarray([] if transition is None else transition, dtype=np.float64)
    if found.shape != (num_classes, num_classes):
        return np.zeros((0, 0))
    return np.nan_to_num(found)


def _read_suggested(labels: Iterable[Any]) -> tuple[int, ...]:
    return tuple(int(label) for label in labels if label is not None and label >= 0)


def _number(value: Any) -> float | None:
    return None if value is None or value != value else float(value)
