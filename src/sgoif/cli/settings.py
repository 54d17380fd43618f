"""The settings of a scan, and the flat YAML file that repeats it.

Every value is written as JSON, which is YAML too. Reading takes what people write by hand as well: bare words, single
quotes, comments.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass, fields
from typing import Any

from sgoif.errors import SgoifError

__all__ = ["ScanSettings", "read_settings", "settings_text"]


@dataclass(frozen=True, slots=True)
class ScanSettings:
    """What a scan is asked to do."""

    data: str
    features: str | None = None
    backbone: str | None = None
    verified: str | None = None
    epochs: int | None = None
    seed: int = 0


_FILES = ("data", "features", "verified")
_NUMBERS = ("epochs", "seed")


def settings_text(settings: ScanSettings, version: str) -> str:
    """Write settings as YAML; paths are made absolute, so that it works from any folder."""
    values = asdict(settings)
    for name in _FILES:
        path = values[name]
        if path is not None and "://" not in path:
            values[name] = os.path.abspath(path)
    lines = [f"# Repeats this scan: sgoif scan --config scan.yaml   (sgoif {version})"]
    return "\n".join([*lines, *(f"{name}: {json.dumps(value)}" for name, value in values.items())]) + "\n"


def read_settings(path: str) -> dict[str, Any]:
    """Read what a file of settings names; the rest is left to the command line.

    Raises:
        SgoifError: A line is not ``name: value``, or the name or the value is of the wrong kind; the line is told.
    """
    known = [item.name for item in fields(ScanSettings)]
    found: dict[str, Any] = {}
    try:
        with open(path, encoding="utf-8-sig") as file:
            lines = file.read().splitlines()
    except UnicodeDecodeError as error:
        raise SgoifError(f"'{path}' is not UTF-8 text.") from error
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#") or line.strip() == "---":
            continue
        name, colon, rest = line.partition(":")
        name = name.strip().strip("'\"")
        if not colon or name not in known:
            raise SgoifError(
                f"line {number} of '{path}' must be `name: value` with one of {', '.join(known)}: {line!r}."
            )
        found[name] = _checked(name, _value(rest.strip()), f"line {number} of '{path}'")
    return found


def _value(text: str) -> Any:
    try:
        value, end = json.JSONDecoder().raw_decode(text)
        if not text[end:].strip() or text[end:].lstrip().startswith("#"):
            return value
    except ValueError:
        pass
    quoted = re.match(r"'((?:[^']|'')*)'\s*(?:#.*)?$", text)
    if quoted:
        return quoted[1].replace("''", "'")
    bare = re.split(r"(?:^|\s)#", text, maxsplit=1)[0].strip()
    return None if bare in ("", "~", "null", "Null", "NULL") else bare


def _checked(name: str, value: Any, where: str) -> Any:
    if value is None and name not in ("data", "seed"):
        return None
    if name in _NUMBERS:
        if isinstance(value, bool) or not isinstance(value, int):
            raise SgoifError(f"{where}: {name} must be a whole number, got {value!r}.")
        return value
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise SgoifError(f"{where}: {name} must be text, got {value!r}.")
    return str(value)
