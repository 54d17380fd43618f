"""``run.json``: what a run was, how far it came, and which of its rows count.

It is rewritten as a whole, by rank 0 alone: at the start, at every checkpoint and at the end. A run that says
``running`` is running, or was killed.

It may be damaged, or of somebody else: the kinds of what it says are checked when a run is opened, so that what is read
later is of the kind that it is taken for. Names that are not listed here may hold anything.
"""

from __future__ import annotations

import json
import math
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from importlib import metadata
from typing import Any

import numpy as np

from sgoif.errors import StoreError
from sgoif.files.locations import Place
from sgoif.store.schema import SCHEMA_VERSION

__all__ = ["environment", "find_damage", "find_info", "now", "read_info", "restarts", "step_limits", "write_info"]

FILE = "run.json"
_MOST_LEVELS = 50  # of lists and mappings within each other; ours have five
_MOST_BYTES = 256 << 20  # names and counts of ten million classes


def read_info(place: Place) -> dict[str, Any]:
    """Read and check a run's ``run.json``.

    Raises:
        StoreError: There is none, it is no JSON, it was not written by sgoif, or with another schema.
    """
    try:
        if place.size(FILE) > _MOST_BYTES:
            raise StoreError(f"{FILE} of {place.url!r} has {place.size(FILE):,} bytes, which no run's has.")
        text = place.read(FILE)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise StoreError(
            f"{place.url!r} is no run: it has no {FILE}. Pass the folder that was given as `out`, not a file in it; or "
            "the run was killed before anything was written, which takes up to 30 seconds (of tags, until close())."
        ) from None
    except OSError as error:
        raise StoreError(f"cannot read {FILE} of {place.url!r}: {error}.") from error
    try:
        info = _make_encodable(json.loads(text))
    except RecursionError:
        raise StoreError(
            f"{FILE} of {place.url!r} is nested too deeply to be a run's; restore it from a copy."
        ) from None
    except ValueError as error:
        raise StoreError(f"{FILE} of {place.url!r} is not valid JSON ({error}); restore it from a copy.") from error
    version = info.get("schema_version") if isinstance(info, dict) else None
    if not isinstance(version, int) or version < 1:
        raise StoreError(f"{FILE} of {place.url!r} names no schema_version: it was not written by this store.")
    if version != SCHEMA_VERSION:
        raise StoreError(
            f"{place.url!r} has schema version {version}, this sgoif reads version {SCHEMA_VERSION}: open it with the "
            "one that wrote it."
        )
    _check_fields(info, place.url)
    return dict(info)


def find_info(place: Place) -> dict[str, Any] | None:
    """Read ``run.json`` where there is one."""
    return read_info(place) if place.exists(FILE) else None


def write_info(place: Place, info: Mapping[str, Any]) -> None:
    """Replace ``run.json``, atomically."""
    place.write(FILE, (json.dumps(_plain(info), indent=2, allow_nan=False) + "\n").encode())


def step_limits(attempts: Sequence[Mapping[str, Any]]) -> dict[int, int | None]:
    """Give the step from which on each attempt's rows are superseded; None where all of them count.

    An attempt that starts at step s repeats everything from s on: what earlier attempts wrote there would count twice.

    >>> starts = enumerate([0, 50, 20])
    >>> step_limits([{"attempt": attempt, "start_step": step} for attempt, step in starts])
    {0: 20, 1: 20, 2: None}
    """
    starts = {int(item["attempt"]): int(item["start_step"]) for item in attempts}
    return {a: min((start for b, start in starts.items() if b > a), default=None) for a in sorted(starts)}


def environment() -> dict[str, Any]:
    """Describe libraries and hardware; no names of machines or users, no paths."""
    wanted = ("numpy", "pyarrow", "duckdb", "fsspec", "sgoif")
    versions: dict[str, str] = {"python": platform.python_version()}
    for name in wanted:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found = getattr(sys.modules.get(name), "__version__", None)
            if found is not None:
                versions[name] = str(found)
    hardware: dict[str, Any] = {
        "system": platform.system(),
        "machine": platform.machine(),
        "cpu_count": os.cpu_count(),
    }
    torch = sys.modules.get("torch")
    if torch is not None:
        versions["torch"] = str(torch.__version__)
        if torch.cuda.is_available():
            hardware["gpus"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {"libraries": versions, "hardware": hardware}


def now() -> str:
    """Tell the time as run.json writes it, UTC."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def restarts() -> dict[str, int]:
    """Tell how often torchrun has started this job again; attempts that died before their first rows are in no list."""
    told = os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
    return {"restarts": int(told)} if told.isdigit() else {}


def _check_fields(info: Mapping[str, Any], url: str) -> None:
    attempts = info.get("attempts")
    sound = isinstance(attempts, list) and all(
        isinstance(item, dict) and all(_is_whole(item.get(key)) for key in ("attempt", "start_step"))
        for item in attempts
    )
    kinds = [info.get(name) for name in ("id_kind", "holdout_id_kind")]
    if not sound or any(kind not in ("int", "string", None) for kind in kinds):
        raise StoreError(
            f"{FILE} of {url!r} is damaged: `attempts` must list attempt and start_step, kinds of ids int or string; "
            f"got {str(attempts)[:80]} and {kinds}."
        )
    damage = find_damage(info)
    if damage is not None:
        raise StoreError(f"{FILE} of {url!r} is damaged: {damage}; restore it from a copy.")


def _plain(value: Any) -> Any:
    """Turn anything into what JSON has: numbers that are not finite become null, strangers their text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    return value if isinstance(value, bool | int | str | type(None)) else str(value)


def _make_encodable(value: Any, level: int = 0) -> Any:
    """Write out lone surrogates, which JSON can escape and no table, file or terminal can hold.

    Raises:
        RecursionError: There are too many levels.
    """
    if level > _MOST_LEVELS:
        raise RecursionError
    if isinstance(value, dict):
        return {_make_encodable(key): _make_encodable(item, level + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [_make_encodable(item, level + 1) for item in value]
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
                return f"`{where}{name}` must be {said}, got {_show(value)}"
    return None


def _show(value: Any) -> str:
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


def _is_whole(value: Any) -> bool:
    """Whether a value is a count: not a bool, not negative, and no more than any store could hold."""
    return type(value) is int and 0 <= value < 2**62


def _is_number(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and abs(value) < 1e300 and math.isfinite(value))


def _list_of(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _mapping_of(check: Check) -> Check:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


_TEXT = (_is_text, "a text")
_WHOLE = (_is_whole, "a whole number")
_NUMBER = (_is_number, "a number")
_COUNTS = (_mapping_of(_is_whole), "counts by name")
_NUMBERS = (_mapping_of(_is_number), "numbers by name")
_MAPPING = (_is_mapping, "a mapping")
_WHOLES = (_list_of(_is_whole), "a list of whole numbers")

_FIELDS: dict[str, tuple[Check, str]] = {
    **dict.fromkeys(("state", "created", "updated"), _TEXT),
    **dict.fromkeys(("next_step", "dropped_rows", "dropped_blocks"), _WHOLE),
    **dict.fromkeys(("faults", "editions", "added_up"), _COUNTS),
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
    **dict.fromkeys(("plan", "switched_off"), _MAPPING),
    "class_names": (_list_of(_is_scalar), "a list of names"),
    "faults": _COUNTS,
    **dict.fromkeys(("plan_changes", "data_issues"), (_list_of(_is_mapping), "a list of mappings")),
    "transition": (_list_of(_list_of(_is_number)), "a table of numbers"),
}
