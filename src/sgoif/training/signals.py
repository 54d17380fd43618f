"""What the signals of a visit are about, and the flags beside them; their names and order are a record."""

from __future__ import annotations

from enum import IntFlag

from sgoif.records import SIGNALS

__all__ = ["CLASS_SIGNALS", "SIGNALS", "VisitFlag"]

# What is about the given class, and has no meaning without one, by the value that says so.
CLASS_SIGNALS = {
    name: -1.0 if name in ("runner_up", "worst_anchor") else float("nan")
    for name in SIGNALS
    if name not in ("loss", "harm", "harm_identity", "harm_solved", "confidence", "flags")
}


class VisitFlag(IntFlag):
    """Why a visit's scores should be read with care."""

    NONE = 0
    NOT_JUDGED = 1  # the gate was shut, or there was no direction yet: stored, adds nothing
    NOT_FINITE = 2  # a loss or gradient was NaN or infinite
    MIXED = 4  # Mixup or CutMix: the row belongs to several examples, so it is not scored
    SOFT = 8  # a soft target: `harm` has a meaning, per-class columns have none
    REPEATED = 16  # the id came several times in one step; the visit is their mean
    IGNORED = 32  # the label is no class (ignore_index): counted as refused, and not recorded
