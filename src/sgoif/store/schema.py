"""The tables of a run, their columns and the version of both.

Two kinds of table. A *log* (visits, those of sequences, anchors) grows while the run goes on; where a resumed
run repeats steps, the rows of the attempt that was killed no longer count. A *whole* (examples, holdout, tags, group
effects, annotators) is written at once, and a later edition takes the place of an earlier one.

A score that is not a number is null, which every engine passes over in sums and rankings; infinities are kept. Any
column may be added to a table but ``visits``; those named here are always there, empty where nobody filled them.
"""

from __future__ import annotations

from typing import Literal

import pyarrow as pa

from sgoif.errors import StoreError
from sgoif.records import SIGNALS, TAG_SIGNALS

__all__ = [
    "FLAGS_NOT_FINITE",
    "FLAGS_NOT_USABLE",
    "LOGS",
    "MEAN_SIGNALS",
    "SCHEMA_VERSION",
    "SIGNALS",
    "STANDARDISED",
    "TABLES",
    "IdKind",
    "id_column",
    "kind_field",
    "schema_of",
    "step_column",
]

SCHEMA_VERSION = 1

IdKind = Literal["int", "string"]

STANDARDISED = ("harm", "worst")  # beside the raw value a visit stores the one on the run's scale, `harm_std`
_CLASSES = ("runner_up", "worst_anchor")  # a class, -1 for none
MEAN_SIGNALS = tuple(
    name for name in SIGNALS if name not in (*_CLASSES, "confidence", "confidence_worst", "flags")
)  # those with a mean per example
FLAGS_NOT_FINITE = 2
FLAGS_NOT_USABLE = FLAGS_NOT_FINITE | 4  # not finite, or mixed from several examples: such a visit adds nothing

_IDS = {"int": pa.int64(), "string": pa.string()}
_STEPS = {"visits": "step", "sequence_visits": "step", "anchors": "refresh_step"}
LOGS = tuple(_STEPS)


def _signal_fields() -> list[tuple[str, pa.DataType]]:
    of_signal = [(name, pa.int32() if name in (*_CLASSES, "flags") else pa.float32()) for name in SIGNALS]
    flags = of_signal.pop()
    return [*of_signal, *((f"{name}_std", pa.float32()) for name in STANDARDISED), flags]


# null where a label was not judged, and then a sentence says why
_PROBABILITIES: list[tuple[str, pa.DataType | None]] = [
    *((f"p_mislabeled{tail}", pa.float64()) for tail in ("", "_low", "_high")),
    ("no_p_reason", pa.string()),
]

_TABLES: dict[str, list[tuple[str, pa.DataType | None]]] = {  # None: the kind of the user's ids
    "visits": [
        ("id", None),
        ("id_hash", pa.int64()),  # of `sgoif.evidence.hash_ids`, signed so that every engine reads it
        ("attempt", pa.int32()),
        ("step", pa.int64()),
        ("epoch", pa.int32()),
        ("rank", pa.int32()),
        ("micro_step", pa.int32()),
        ("given_label", pa.int32()),
        *_signal_fields(),
    ],
    "holdout": [
        ("id", None),
        ("id_hash", pa.int64()),
        ("fold", pa.int32()),
        ("given_label", pa.int32()),
        ("trusted", pa.bool_()),
        ("belief", pa.float32()),  # probability that the given label is right, by the hold-out's own judgement
        ("posterior", pa.list_(pa.float32())),  # prediction for what was last seen of it, one entry per class
        *_PROBABILITIES,
        *_signal_fields(),
    ],
    "anchors": [
        ("attempt", pa.int32()),
        ("refresh_step", pa.int64()),
        ("anchor", pa.int32()),
        ("class", pa.int32()),
        ("m", pa.int32()),
        *((name, pa.float32()) for name in ("g_norm", "residual", "noise", "tau", "confidence", "beta", "gamma")),
        ("resets", pa.int32()),
    ],
    # Means over visits keep float64: they are few, and equal to what the run itself had in memory.
    "examples": [
        ("id", None),
        ("id_hash", pa.int64()),
        ("given_label", pa.int32()),
        ("suggested_label", pa.int32()),
        ("suggested_label_2", pa.int32()),
        ("suggested_label_3", pa.int32()),
        ("suggested_share", pa.float64()),  # of all votes, for the first
        ("n_visits", pa.int64()),
        ("confidence", pa.float64()),
        *((name, pa.float64()) for name in MEAN_SIGNALS),
        *((f"{name}_std{tail}", pa.float64()) for name in STANDARDISED for tail in ("", "_error")),
        ("p_given_last", pa.float32()),  # of the last visit that can be used, or by the finished model
        ("margin_last", pa.float32()),
        ("runner_up_last", pa.int32()),  # the most probable other class, -1 where there was no such visit
        *_PROBABILITIES,
    ],
    # Of a multi-label run: one row per example and tag that was worth keeping.
    "tags": [
        ("id", None),
        ("id_hash", pa.int64()),
        ("tag", pa.int32()),
        ("given", pa.bool_()),
        ("n_visits", pa.int64()),
        *((name, pa.float64()) for name in ("confidence", *TAG_SIGNALS)),
        *((f"p_wrong{tail}", pa.float64()) for tail in ("", "_low", "_high")),
    ],
    # Of a run of sequences: what each visit showed. Scores are in the order of the groups, null before the first look.
    "sequence_visits": [
        ("id", None),
        ("id_hash", pa.int64()),
        ("attempt", pa.int32()),
        ("step", pa.int64()),
        ("rank", pa.int32()),
        ("num_tokens", pa.int64()),
        ("loss", pa.float32()),
        ("harm", pa.list_(pa.float32())),
        ("cosine", pa.list_(pa.float32())),
    ],
    # Of a run of sequences: what each did to each group of evaluation sequences.
    "group_effects": [
        ("id", None),
        ("id_hash", pa.int64()),
        ("group_name", pa.string()),
        *((name, pa.float64()) for name in ("harm", "cosine")),
    ],
    # Of a scan of labels by several annotators: one row per annotator.
    "annotators": [
        ("annotator", pa.string()),
        ("num_labels", pa.int64()),
        *((name, pa.float64()) for name in ("quality", "quality_low", "quality_high", "agreement")),
    ],
}
TABLES = tuple(_TABLES)


def schema_of(table: str, id_kind: IdKind) -> pa.Schema:
    """Return the columns of a table whose ids are of this kind.

    >>> schema_of("visits", "string").field("id").type
    DataType(string)
    """
    if table not in _TABLES:
        raise StoreError(f"no table {table!r}; a run has {', '.join(TABLES)}.")
    fields = [(name, _IDS[id_kind] if kind is None else kind) for name, kind in _TABLES[table]]
    return pa.schema(fields, {"sgoif.schema_version": str(SCHEMA_VERSION), "sgoif.table": table})


def id_column(table: str) -> str | None:
    """Name the column that holds the user's ids; None for a table about no examples."""
    return next((name for name, kind in _TABLES[table] if kind is None), None)


def kind_field(table: str) -> str:
    """Name the field of ``run.json`` that tells a table's kind of ids: a hold-out may have others than the training."""
    return "holdout_id_kind" if table == "holdout" else "id_kind"


def step_column(table: str) -> str | None:
    """Name the column by which the rows of a killed attempt are known; None for a table that is written whole."""
    return _STEPS.get(table)
