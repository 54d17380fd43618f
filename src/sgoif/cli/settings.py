"""The settings of a scan, and the flat YAML file that repeats it.

Every value is written as JSON, which is YAML too. Reading takes what people write by hand as well: bare words, single
quotes, comments.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from dataclasses import asdict, dataclass, fields
from typing import Any

from sgoif.errors import SgoifError
from sgoif.usercode import is_named

__all__ = ["ScanSettings", "merge_settings", "read_settings", "settings_text"]


@dataclass(frozen=True, slots=True)
class ScanSettings:
    """What a scan is asked to do."""

    data: str
    features: str | None = None
    feature_ids: str | None = None
    backbone: str | None = None
    verified: str | None = None
    epochs: int | None = None
    seed: int = 0


_FILES = ("data", "features", "feature_ids", "verified")
_NUMBERS = ("epochs", "seed")


def settings_text(settings: ScanSettings, version: str) -> str:
    """Write settings as YAML; paths are made absolute, so that it works from any folder."""
    values = asdict(settings)
    for name in _FILES:
        path = values[name]
        if path is not None and "://" not in path:
            values[name] = os.path.abspath(path)
    code = f" --backbone {settings.backbone}" if is_named(settings.backbone or "") else ""
    lines = [f"# Repeats this scan: sgoif scan --config scan.yaml{code}   (sgoif {version})"]
    return "\n".join([*lines, *(f"{name}: {json.dumps(value)}" for name, value in values.items())]) + "\n"


def read_settings(path: str) -> dict[str, Any]:
    """Read what a file of settings names; the rest is left to the command line.

    Raises:
        SgoifError: A line is not ``name: value``, or one of both is of the wrong kind; the message has the line.
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
        found[name] = _check_value(name, _value(rest.strip()), f"line {number} of '{path}'")
    return found


def merge_settings(config: str | None, options: dict[str, Any]) -> ScanSettings:
    """Put what the command line says before what a file of settings says.

    A file may come with somebody else's run. So it can choose what is read, but not what code is run: a backbone that
    it names has to be named on the command line as well.

    Raises:
        SgoifError: No data is named, or the file names a backbone that the command line does not.
    """
    values = {} if config is None else read_settings(config)
    written = values.get("backbone")
    values |= {name: value for name, value in options.items() if value is not None}
    if written is not None and options.get("backbone") is None:
        raise SgoifError(
            f"'{config}' names code to import, backbone: {written!r}, and code in a file of settings is not run "
            f"unasked. If you trust it, add --backbone {shlex.quote(str(written))}."
        )
    if values.get("data") is None:
        raise SgoifError("name the DATA to scan: a folder of class folders, or a Parquet file with pictures.")
    return ScanSettings(**values)


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


def _check_value(name: str, value: Any, where: str) -> Any:
    if value is None and name not in ("data", "seed"):
        return None
    if name in _NUMBERS:
        if isinstance(value, bool) or not isinstance(value, int):
            raise SgoifError(f"{where}: {name} must be a whole number, got {value!r}.")
        return value
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise SgoifError(f"{where}: {name} must be text, got {value!r}.")
    return str(value)
