"""Which tokens of a sequence carry its harm, as lines of a JSONL file: one line per sequence and group."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sgoif.errors import SgoifError
from sgoif.files.tables import read_json_lines

__all__ = ["TokenHarms", "read_token_harms"]

_NEEDED = 'lines look like {"id": 7, "group": "math", "tokens": [{"text": " cat", "loss": 2.1, "harm": 0.3}]}'


@dataclass(frozen=True, slots=True)
class TokenHarms:
    """The tokens of one sequence in their order: text, loss and share of the harm to a group."""

    group: str  # empty for all evaluation sequences together
    tokens: tuple[tuple[str, float | None, float | None], ...]


def read_token_harms(path: str | os.PathLike[str], ids: Collection[str]) -> dict[str, list[TokenHarms]]:
    """Read the lines about some sequences, by ``str(id)``; all others are passed over.

    Raises:
        SgoifError: A line cannot be understood, or not one is about these sequences; the message says which.
    """
    if not Path(path).is_file():
        raise SgoifError(f"'{path}' is no file; pass the JSONL file of `sgoif.experimental.write_token_harms`.")
    found: dict[str, list[TokenHarms]] = {}
    number, first = 0, None
    with open(path, encoding="utf-8-sig") as file:
        for number, row in read_json_lines(file, path):
            if "id" not in row or not isinstance(row.get("tokens"), list):
                raise SgoifError(f"line {number} of '{path}' has no id or no list of tokens; {_NEEDED}.")
            first = row["id"] if first is None else first
            if str(row["id"]) in ids:
                tokens = tuple(_read_token(token, number, path) for token in row["tokens"])
                found.setdefault(str(row["id"]), []).append(TokenHarms(str(row.get("group") or ""), tokens))
    if not found:
        seen = "has no lines" if number == 0 else f"is about none of the sequences shown; its ids look like {first!r}"
        raise SgoifError(f"'{path}' {seen}; {_NEEDED}.")
    return found


def _read_token(token: Any, line: int, path: str | os.PathLike[str]) -> tuple[str, float | None, float | None]:
    if not isinstance(token, Mapping) or not isinstance(token.get("text"), str):
        raise SgoifError(f"line {line} of '{path}' has a token without a text; {_NEEDED}.")
    loss, harm = (_read_number(token.get(name), name, line, path) for name in ("loss", "harm"))
    return token["text"], loss, harm


def _read_number(value: Any, name: str, line: int, path: str | os.PathLike[str]) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SgoifError(f"line {line} of '{path}' has a token whose {name} is no number: {value!r}.")
    return float(f"{value:.4g}") if math.isfinite(value) else None
