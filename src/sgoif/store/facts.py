"""The kinds of what ``run.json`` says, checked when a run is opened: it may be damaged, or of somebody else.

What is read later is of the kind that it is taken for. Names that are not listed here may hold anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["find_damage", "is_whole", "make_encodable"]

MOST_LEVELS = 50  # of lists and mappings within each other; ours have five


def make_encodable(value: Any, level: int = 0) -> Any:
    """Write out lone surrogates, which JSON can escape and no table, file or terminal can hold.

    Raises:
        RecursionError: There are too many levels.
    """
    if level > MOST_LEVELS:
        raise RecursionError
    if isinstance(value, dict):
        return {make_encodable(key): make_encodable(item, level + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [make_encodable(item, level + 1) for item in value]
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def find_damage(info: Mapping[str, Any]) -> str | None:
    """Name the first field that is not of its kind, and what it should be.

    >>> find_damage({"state": "finished", "facts": {"class_names": 3}})
    '`facts.class_names` must be a list of names, got 3'
    """
    facts = info.get("facts")
    for where, fields, kinds in (("", info, _FIELDS), ("facts.", facts if isinstance(facts, dict) else {}, _FACTS)):
        for name, (is_sound, said) in kinds.items():
            value = fields.get(name)
            if value is not None and not is_sound(value):
                return f"`{where}{name}` must be {said}, got {_shown(value)}"
    return None


def _shown(value: Any) -> str:
    """The beginning of a value, which may be huge."""
    if isinstance(value, dict | list):
        return f"a {'mapping' if isinstance(value, dict) else 'list'} of {len(value)}"
    return repr(value)[:80]


Check = Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, str | bool | int | float)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, dict)


def is_whole(value: Any) -> bool:
    """Whether a value is a count: not a bool, not negative, and no more than any store could hold."""
    return type(value) is int and 0 <= value < 2**62


def _is_number(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and abs(value) < 1e300 and math.isfinite(value))


def _list_of(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _mapping_of(check: Check) -> Check:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


def _is_forecast(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_number(item) for name, item in value.items() if name.endswith("_share"))


_TEXT = (_is_text, "a text")
_WHOLE = (is_whole, "a whole number")
_NUMBER = (_is_number, "a number")
_COUNTS = (_mapping_of(is_whole), "counts by name")
_NUMBERS = (_mapping_of(_is_number), "numbers by name")
_MAPPING = (_is_mapping, "a mapping")
_WHOLES = (_list_of(is_whole), "a list of whole numbers")

_FIELDS: dict[str, tuple[Check, str]] = {
    **dict.fromkeys(("state", "created", "updated"), _TEXT),
    **dict.fromkeys(("next_step", "dropped_rows", "dropped_blocks"), _WHOLE),
    **dict.fromkeys(("faults", "editions"), _COUNTS),
    "keep_visits": (_is_scalar, "a word"),
    "libraries": (_mapping_of(_is_scalar), "versions by name"),
    "hardware": _MAPPING,
    "facts": _MAPPING,
}
_FACTS: dict[str, tuple[Check, str]] = {
    **dict.fromkeys(("kind", "task", "path", "calibration_error", "no_p_reason"), _TEXT),
    **dict.fromkeys(("nearly_same", "num_verified", "num_not_judged", "unreadable", "without_label"), _WHOLE),
    **dict.fromkeys(("held_out", "num_present", "num_absent", "num_pairs", "num_examples", "num_copied"), _WHOLE),
    **dict.fromkeys(("held_out_per_class", "held_out_per_tag"), _WHOLES),
    **dict.fromkeys(("overhead", "share_noticed"), _NUMBER),
    **dict.fromkeys(("overhead_by_part", "counters", "expected_tag_errors"), _NUMBERS),
    **dict.fromkeys(("plan", "holdout_cleaning", "switched_off"), _MAPPING),
    "forecast": (_is_forecast, "a mapping with shares of the step"),
    "class_names": (_list_of(_is_scalar), "a list of names"),
    "faults": _COUNTS,
    "plan_changes": (_list_of(_is_mapping), "a list of mappings"),
    "transition": (_list_of(_list_of(_is_number)), "a table of numbers"),
}
