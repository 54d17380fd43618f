"""Which examples are the same, or nearly: pairs with differing labels first, then pairs across training and hold-out.

Sketches (:mod:`sgoif.evidence.sketch`) are compared inside DuckDB, which spills to disk, so nothing here holds all
examples. Equal sketches are one group, told as a star around one of them that has the group's commonest label; whole
groups are then compared. Two sketches are compared only if one of their bands (runs of bits) is equal: with 16 bands
that finds every pair up to 15 bits apart and 97% of those at 25. Above a million examples, or where the bands of many
are equal (rows of a few numbers), bands are twice as wide, so that they still tell examples apart; then every pair up
to 7 bits apart is found, and 70% of those at 15. Where even these are shared by too many, the commonest are passed
over, and a warning says so: near copies may be missed, equal ones never are.

The likeness of a finished model (:mod:`sgoif.influence.likeness`) serves as well, if the model saw the examples as they
are. That of a training does not where it augments: on CIFAR-10 with crops and flips even exact copies are 55 of 256
bits apart in the median, which is as far as each picture's nearest other.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from sgoif.errors import SgoifError
from sgoif.evidence import LIKENESS_COLUMNS, SKETCH_BITS, SKETCH_COLUMNS
from sgoif.findings.neighbours import nearest_examples
from sgoif.findings.suspects import Sql, columns_of

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

__all__ = ["bits_of_copies", "duplicates_of_run", "find_duplicates"]

# A small thing on a plain ground has few bits, and two such pictures differ in few: what differs of the first three
# words (the form, in a picture's sketch) must be small beside what is there.
_FORM, _SHARE_OF_FORM = SKETCH_COLUMNS[:3], 0.2
_MANY = 1_000_000  # distinct sketches from which on bands are wide
_CROWDED = 500  # sketches that share a band; more are plain pictures, whose bands say nothing
_MOST_COMPARED = 50_000_000  # pairs that share a band

_SAMPLE = 500  # examples that show how far apart those are which are no copies
_CLEARLY_NEARER = 4  # times nearer than the nearest other example, and it may be a copy

_ALL = "select id::varchar as id, given_label, '{source}' as source, {words} from {table} where {is_known}"

_BANDS = """
with firsts as (select distinct {words} from ({everything})),
bands as (select band, ({band_of}) & {mask} as value from firsts, range({num_bands}) as bands(band))
select size, count(*) as n from (select count(*) as size from bands group by band, value having count(*) > 1)
group by size order by size
"""

_PAIRS = """
with everything as materialized ({everything}),
labelled as (
    select *, count(*) over (partition by {words}, given_label) as num_alike from everything
),
ranked as materialized (
    select *, row_number() over (partition by {words} order by num_alike desc, source desc, id) as place from labelled
),
firsts as materialized (select row_number() over (order by {words}) as number, * from ranked where place = 1),
bands as materialized (
    select number, band, ({band_of}) & {mask} as value from firsts, range({num_bands}) as bands(band)
),
telling as (
    select * from bands where (band, value) in
        (select (band, value) from bands group by band, value having count(*) between 2 and {crowded})
),
candidates as (
    select one.number as one, other.number as other
    from telling one join telling other
    on one.band = other.band and one.value = other.value and one.number < other.number
),
near as (
    select distinct a.id, b.id as other_id, a.given_label, b.given_label as other_label, a.source,
           b.source as other_source, {distance} as bits
    from candidates join firsts a on a.number = one join firsts b on b.number = other
    where {distance} <= {limit} and {distance_of_form} <= {share} * ({form_of_both})
),
same as (
    select a.id, b.id as other_id, a.given_label, b.given_label as other_label, a.source, b.source as other_source,
           0 as bits
    from ranked a join ranked b on {equal} and a.place = 1 and b.place > 1
)
select id, other_id, given_label, other_label, given_label <> other_label as labels_differ, source, other_source,
       source <> other_source as is_across_holdout, bits as bits_apart
from (select * from same union all select * from near)
order by labels_differ desc, is_across_holdout desc, bits_apart, id, other_id
"""


def duplicates_of_run(sql: Sql, nearly_same: int | None) -> pa.Table:
    """Find the copies in a run, by pictures or embeddings as a scan sketched them, else by what an audited model sees.

    Args:
        sql: answers a SELECT over the run's tables.
        nearly_same: how many bits may differ, as the run says; None where it does not.

    Raises:
        SgoifError: The run has nothing by which copies are known.
    """
    known, held = columns_of(sql, "examples"), columns_of(sql, "holdout")
    if SKETCH_COLUMNS[0] in known:
        bits, by = nearly_same or 0, SKETCH_COLUMNS
    elif LIKENESS_COLUMNS[0] in known and nearly_same is not None:
        bits, by = bits_of_copies(sql, nearly_same), LIKENESS_COLUMNS
    else:
        raise SgoifError(
            "this run has no sketches to compare examples by. A watched training makes none, since augmentation, which "
            "it cannot tell, would hide copies; `sgoif scan` makes sketches, and so does sgoif.audit() of a model."
        )
    return find_duplicates(sql, max_bits=bits, has_holdout=by[0] in held, by=by)


def find_duplicates(
    sql: Sql, *, max_bits: int, has_holdout: bool = True, by: Sequence[str] = SKETCH_COLUMNS
) -> pa.Table:
    """Find pairs of examples that are the same or nearly the same.

    Args:
        sql: answers a SELECT over tables ``examples`` and ``holdout``, each with id, given_label and the four words.
        max_bits: how many of 256 bits may differ; 0 asks for equal sketches only.
        has_holdout: whether there is a table ``holdout``.
        by: the columns of the four words.

    Raises:
        SgoifError: No example has a sketch.
    """
    words = ", ".join(SKETCH_COLUMNS)
    tables = {"train": "examples", "holdout": "holdout"} if has_holdout else {"train": "examples"}
    named = ", ".join(f"{name} as {word}" for name, word in zip(by, SKETCH_COLUMNS, strict=True))
    # a likeness of four zeros is none; a black picture's sketch is one
    is_known = f"{by[0]} is not null" if tuple(by) == SKETCH_COLUMNS else " or ".join(f"{name} <> 0" for name in by)
    parts = [_ALL.format(source=s, table=table, words=named, is_known=is_known) for s, table in tables.items()]
    everything = " union all ".join(parts)
    distinct = sql(f"select count(*) as n from (select distinct {words} from ({everything}))")["n"][0].as_py()
    if not distinct:
        raise SgoifError("this run has no sketches to compare examples by; `sgoif scan` makes them.")
    width, crowded = (16, 0) if not max_bits else _choose_bands(sql, everything, distinct)
    return sql(
        _PAIRS.format(
            everything=everything,
            words=words,
            num_bands=SKETCH_BITS // width,
            mask=(1 << width) - 1,
            band_of=_band_of(width),
            crowded=crowded,
            distance=_distance(SKETCH_COLUMNS),
            equal=" and ".join(f"a.{word} = b.{word}" for word in SKETCH_COLUMNS),
            limit=int(max_bits),
            distance_of_form=_distance(_FORM),
            form_of_both=" + ".join(f"bit_count({side}.{word})::integer" for word in _FORM for side in "ab"),
            share=_SHARE_OF_FORM,
        )
    )


def _choose_bands(sql: Sql, everything: str, distinct: int) -> tuple[int, int]:
    """How wide bands are, and how many sketches may share one, so that not too many pairs are compared."""
    most = 0
    for width in (32,) if distinct > _MANY else (16, 32):
        bands = {"num_bands": SKETCH_BITS // width, "mask": (1 << width) - 1, "band_of": _band_of(width)}
        found = sql(_BANDS.format(everything=everything, words=", ".join(SKETCH_COLUMNS), **bands))
        size, number = (found[name].to_numpy().astype(np.float64) for name in ("size", "n"))
        pairs = np.cumsum(number * size * (size - 1) / 2)
        most = int(size[: np.searchsorted(pairs, _MOST_COMPARED, side="right")].max(initial=2))
        is_all = not len(size) or most >= min(_CROWDED, size.max())
        if is_all:
            return width, _CROWDED
    log.warning(
        "many examples are much alike by their sketches, so near copies are looked for only among those that share a "
        "part of theirs with fewer than %d others; equal sketches are all found.",
        most,
    )
    return 32, most


def bits_of_copies(sql: Sql, most: int) -> int:
    """How many bits of likeness may differ between copies: fewer than ``most`` where all examples are much alike.

    A network that was trained for very long sees little but the class, and two of a class are no copies.
    """
    some = sql(f"select id from examples using sample {_SAMPLE} rows (reservoir, 0)")["id"].to_pylist()
    nearest = nearest_examples(sql, some, count=1)["bits"].to_numpy()
    return most if not len(nearest) else min(most, int(np.median(nearest)) // _CLEARLY_NEARER)


def _distance(words: Sequence[str]) -> str:
    return " + ".join(f"bit_count(xor(a.{word}, b.{word}))::integer" for word in words)


def _band_of(width: int) -> str:
    """The word that holds a band, moved so that the band is its lowest bits."""
    per_word = 64 // width
    cases = " ".join(f"when {i} then {word}" for i, word in enumerate(SKETCH_COLUMNS))
    return f"(case band // {per_word} {cases} end) >> (({width} * (band % {per_word}))::integer)"
