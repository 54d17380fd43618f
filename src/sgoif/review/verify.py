"""A random sample of labels that a person checks, and what it says of all of them.

A *list* is one such sample: which examples, of which strata, in which order they are shown. It lies in the run's folder
(``verify/LIST.json``); what was found lies in ``checked.json``. Both name the state of the ranking that the sample was
drawn by. When the run's probabilities change, strata and probabilities of being drawn are not what they were, and
neither file is used any more.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sgoif.errors import SgoifError
from sgoif.evidence.checked import NUM_CARDS, TOPS, Design, Verdicts, draw_ranks, estimate, make_design
from sgoif.findings.sequences import ranked_sequences
from sgoif.findings.suspects import FLAGGED, UNLIKELY, columns_of, labels_of
from sgoif.review.decisions import NO_CLASS, Decision, by_example, latest
from sgoif.review.plan import read_files

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    *("CheckedCard", "CheckedList", "count_verdicts", "draw_list", "figures_of", "find_extended", "find_state"),
    *("is_current", "keep_checked", "read_checked", "read_lists", "write_list"),
]

_FOLDER, _FILE = "verify", "checked.json"

Sql = Callable[..., "pa.Table"]


@dataclass(frozen=True, slots=True)
class CheckedCard:
    """One example of a list."""

    id: Any
    given_label: int
    stratum: int

    @property
    def key(self) -> tuple[str, int]:
        """As decisions name it."""
        return str(self.id), self.given_label


@dataclass(frozen=True, slots=True)
class CheckedList:
    """A sample: its cards in the order in which they are shown, and the design that they were drawn by."""

    list_id: str
    cards: tuple[CheckedCard, ...]
    design: Design
    num_flagged: int
    state: Mapping[str, float]  # of the ranking, see `find_state`
    seed: int
    extends: str = ""  # the list that its first cards are


def draw_list(
    sql: Sql,
    info: Mapping[str, Any],
    run: str,
    *,
    num_cards: int = NUM_CARDS,
    seed: int = 0,
    earlier: Sequence[CheckedList] = (),
) -> CheckedList:
    """Draw a sample of the labels that a run's totals are about.

    A smaller sample of the same seed and ranking is extended: its cards come first, and others are drawn from the rest
    of each stratum, so that all of them together are a random sample of it. ``run`` names the run, for the list's id.

    Raises:
        SgoifError: The run has no labelled examples.
    """
    source, order = _ranking(sql, info)
    state = find_state(sql, info)
    total, num_flagged = int(state["examples"]), int(state["flagged"])
    if not total:
        raise SgoifError("there is nothing to verify: this run has no labelled examples and no sequences.")
    design = make_design(total, num_flagged, int(state["doubtful"]), num_cards)
    alike = [item for item in earlier if item.seed == seed and _is_same(item.state, state)]
    alike = [item for item in alike if item.design.edges == design.edges]
    for item in alike:
        if len(item.cards) == sum(design.num_cards):
            return item
    smaller = [item for item in alike if len(item.cards) < sum(design.num_cards)]
    base = max(smaller, key=lambda item: len(item.cards), default=None)
    rng = np.random.default_rng(seed)
    drawn = draw_ranks(design, rng)
    stratum = {int(rank): number for number, ranks in enumerate(drawn) for rank in ranks}
    rows = sql(
        f"select id, given_label, place from (select id, given_label, row_number() over (order by {order}) - 1 "
        f"as place from {source}) where place in (select unnest($places::bigint[]))",
        places=sorted(stratum),
    ).to_pylist()
    cards = sorted(
        (CheckedCard(row["id"], int(row["given_label"]), stratum[row["place"]]) for row in rows),
        key=lambda card: str(card.id),
    )
    shown = [cards[i] for i in rng.permutation(len(cards))]
    if base is not None:
        shown = _extend(base.cards, shown, design)
    text = json.dumps([run, state, num_cards, seed, [card.key for card in shown]])
    ident = hashlib.sha256(text.encode()).hexdigest()[:10]
    extends = "" if base is None else base.list_id
    return CheckedList(ident, tuple(shown), design, num_flagged, state, seed, extends)


def _extend(first: Sequence[CheckedCard], drawn: Iterable[CheckedCard], design: Design) -> list[CheckedCard]:
    """Add cards that are drawn, in their random order, until every stratum has as many as the design gives it."""
    found, known = list(first), {card.key for card in first}
    missing = list(design.num_cards)
    for card in first:
        missing[card.stratum] -= 1
    for card in drawn:
        if card.key not in known and missing[card.stratum] > 0:
            missing[card.stratum] -= 1
            found.append(card)
    return found


def find_extended(found: CheckedList, lists: Sequence[CheckedList]) -> list[CheckedList]:
    """The samples that a sample extends, the largest first."""
    by_id = {item.list_id: item for item in lists}
    chain: list[CheckedList] = []
    while found.extends in by_id and len(chain) < len(lists):
        found = by_id[found.extends]
        chain.append(found)
    return chain


def find_state(sql: Sql, info: Mapping[str, Any]) -> dict[str, float]:
    """Describe the ranking that a sample is drawn by, so that one can tell whether it has changed."""
    source, _ = _ranking(sql, info)
    present = columns_of(sql, source)
    p = "p_mislabeled" if "p_mislabeled" in present else "null::double"
    key = next((name for name in ("suspicion", "label_score", "worst") if name in present), "null::double")
    row = sql(
        f"select count(*) as examples, count(*) filter ({p} >= {FLAGGED}) as flagged, "
        f"count(*) filter ({p} >= {UNLIKELY}) as doubtful, sum(given_label) as labels, sum({p}) as p, "
        f"sum({p} * {p}) as p_squared, sum({key}) filter (isfinite({key}::double)) as rest "
        f"from {source}"
    ).to_pylist()[0]
    return {name: _plain(value) for name, value in row.items()}


def write_list(run_url: str, found: CheckedList) -> None:
    """Keep a list in the folder of its run, a local one or any fsspec URL."""
    from sgoif.files.locations import place_of

    cards = [[card.id, card.given_label, card.stratum] for card in found.cards]
    document = {"format": 1, **asdict(found), "cards": cards}
    place_of(run_url).write(f"{_FOLDER}/{found.list_id}.json", json.dumps(document, allow_nan=False).encode())


def read_lists(run_url: str) -> list[CheckedList]:
    """Read all lists in the folder of a run.

    Raises:
        SgoifError: A file there is no list.
    """
    return [_read_list(path, data) for path, data in read_files(run_url, _FOLDER)]


def count_verdicts(lists: Sequence[CheckedList], decisions: Iterable[Decision]) -> tuple[Verdicts, int]:
    """Count what people say of the cards of some lists, by stratum, and the cards that nobody has come to.

    A card that was passed over counts as one that the person cannot tell: nobody knows why it was. Cards after the last
    answer were never seen; as they are shown in random order, those before are a sample as good as all.
    People who disagree cannot tell. The lists are drawn by the same ranking.
    """
    names = {found.list_id for found in lists}
    told = [item for item in latest(decisions) if item.list_id in names]
    answers = {votes[0].key: _agree(votes) for votes in by_example(told).values()}
    counts = np.zeros((3, len(lists[0].design.num_cards)), dtype=np.int64)
    seen: set[tuple[str, int]] = set()
    num_open = 0
    for found in lists:
        last = max((place for place, card in enumerate(found.cards) if card.key in answers), default=-1)
        num_open += len(found.cards) - last - 1
        for card in found.cards[: last + 1]:
            if card.key not in seen:
                seen.add(card.key)
                is_wrong = answers.get(card.key)
                counts[2 if is_wrong is None else 0 if is_wrong else 1, card.stratum] += 1
    wrong, right, unsure = counts.tolist()
    return Verdicts(wrong, right, unsure), num_open


def _agree(votes: Sequence[Decision]) -> bool | None:
    """Whether most people say that it is wrong, whatever they would have in its place; None where most cannot tell."""
    said = Counter(item.is_wrong for item in votes)
    ((is_wrong, count),) = said.most_common(1)
    return is_wrong if 2 * count > len(votes) else None


def figures_of(lists: Sequence[CheckedList], decisions: Sequence[Decision]) -> dict[str, Any]:
    """Work out what checked labels say of the lists put together: the document of ``checked.json``.

    Raises:
        SgoifError: The lists were drawn by different rankings, or too few cards are decided to say anything.
    """
    first = lists[0]
    if any(found.design.edges != first.design.edges or found.state != first.state for found in lists):
        raise SgoifError("these verdicts are about samples of different rankings; pass those of one at a time.")
    verdicts, num_open = count_verdicts(lists, decisions)
    total = first.design.num_examples
    whole = estimate(first.design, verdicts)
    if whole is None:
        told = sum(verdicts.num_wrong) + sum(verdicts.num_right)
        raise SgoifError(
            f"{told} of {sum(len(found.cards) for found in lists)} cards are decided, none in some parts of the "
            "ranking, so nothing can be said of all of them. Decide more of them, from the first card on."
        )
    tops = [(f"top {100 * share:g}%", math.ceil(share * total - 1e-9 * total)) for share in TOPS]
    asked = [("flagged", first.num_flagged), *tops]
    firsts = [(name, estimate(first.design, verdicts, count)) for name, count in asked if 0 < count < total]
    return {
        "format": 1,
        "lists": [found.list_id for found in lists],
        "state": dict(first.state),
        "reviewers": sorted({item.reviewer for item in decisions if item.reviewer}),
        "num_cards": sum(len(found.cards) for found in lists),
        "num_open": num_open,
        "all": {"name": "all labels", **asdict(whole)},
        "firsts": [{"name": name, **asdict(share)} for name, share in firsts if share is not None],
        "parts": _describe_parts(first.design, verdicts),
    }


def _describe_parts(design: Design, verdicts: Verdicts) -> list[dict[str, Any]]:
    """The share of wrong ones in each stratum, which ends before the rank ``end``."""
    counts = zip(design.sizes.tolist(), verdicts.num_wrong, verdicts.num_right, verdicts.num_unsure, strict=True)
    parts = []
    for end, (size, *told) in zip(design.edges[1:], counts, strict=True):
        found = estimate(Design((0, size), (sum(told),)), Verdicts(*([number] for number in told)))
        assert found is not None, "the whole was estimated, so every stratum has a card that was decided"
        parts.append({"name": f"up to {end}", "end": end, **asdict(found)})
    return parts


def keep_checked(run_url: str, document: Mapping[str, Any]) -> None:
    """Keep what was found beside the run."""
    from sgoif.files.locations import place_of

    place_of(run_url).write(_FILE, json.dumps(document, allow_nan=False, indent=1).encode())


def read_checked(run_url: str, sql: Sql, info: Mapping[str, Any]) -> tuple[dict[str, Any] | None, str | None]:
    """Read what was found, where it is about the run as it is now; else say why it is not used."""
    from sgoif.files.locations import place_of

    place = place_of(run_url)
    if not place.exists(_FILE):
        return None, None
    try:
        document = json.loads(place.read(_FILE))
        parts = document["parts"]
        is_sound = document["format"] == 1 and all(map(_is_share, [document["all"], *document["firsts"], *parts]))
        is_sound = is_sound and all(type(part["end"]) is int for part in parts)
        state = {str(name): float(value) for name, value in document["state"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        is_sound = False
    if not is_sound:
        return None, f"{_FILE} of this run cannot be read; run `sgoif verify` again"
    if not _is_same(state, find_state(sql, info)):
        return None, "a sample was checked, but the run has changed since; run `sgoif verify` again"
    return document, None


def is_current(found: CheckedList, sql: Sql, info: Mapping[str, Any]) -> bool:
    """Whether a list was drawn by the ranking as it is now."""
    return _is_same(found.state, find_state(sql, info))


def _is_share(item: Mapping[str, Any]) -> bool:
    """Whether a figure is one that was written here; a run may come from someone else."""
    shares = [float(item[name]) for name in ("value", "low", "high", "at_most")]
    numbers = [item[name] for name in ("count", "num_checked", "num_wrong", "num_unsure")]
    are_whole = all(type(number) is int and 0 <= number < 2**62 for number in numbers)
    return isinstance(item["name"], str) and are_whole and all(0 <= share <= 1 for share in shares)


def _is_same(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    # sums of floats differ in the last digits by the order in which threads add them
    return one.keys() == other.keys() and all(math.isclose(one[name], other[name], rel_tol=1e-9) for name in one)


def _ranking(sql: Sql, info: Mapping[str, Any]) -> tuple[str, str]:
    """What a sample is drawn from, as the FROM of a query, in the order of ``sgoif issues``."""
    if info.get("task") == "sequences":  # they have no labels, and are right or wrong themselves
        ranked = f"from ({ranked_sequences(sql)}) where num_tokens is distinct from 0"  # else nothing can be wrong
        return f"(select id, {NO_CLASS} as given_label, * exclude id {ranked})", "place"
    return labels_of(sql), _order(sql)


def _order(sql: Sql) -> str:
    """The order of labels; rows without a probability come last, by what ranks them."""
    present = columns_of(sql, "examples")
    keys = {"p_mislabeled": "p_mislabeled desc nulls last", "label_score": "label_score nulls last"}
    keys |= {"worst": "worst desc nulls last"}
    return ", ".join([*(key for name, key in keys.items() if name in present), "id"])


def _read_list(path: str, data: bytes) -> CheckedList:
    try:
        row = json.loads(data)
        if row["format"] != 1:
            raise SgoifError(
                f"{path} has format {row['format']!r}, this version of sgoif reads 1; install a newer one."
            )
        design = Design(tuple(map(int, row["design"]["edges"])), tuple(map(int, row["design"]["num_cards"])))
        cards = tuple(CheckedCard(ident, int(label), int(stratum)) for ident, label, stratum in row["cards"])
        if any(not 0 <= card.stratum < len(design.num_cards) for card in cards):
            raise ValueError("a card of no stratum")
        state = {str(name): float(value) for name, value in row["state"].items()}
        seed, extends = int(row["seed"]), str(row.get("extends", ""))
        return CheckedList(str(row["list_id"]), cards, design, int(row["num_flagged"]), state, seed, extends)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SgoifError(f"{path} of this run is no sample of `sgoif verify` ({error}); remove it.") from error


def _plain(value: Any) -> float:
    return 0.0 if value is None or not math.isfinite(value) else float(value)
