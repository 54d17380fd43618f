"""Texts of training sequences by id: a prompt and its completion, a conversation, or one text.

A table is read block by block, and only the rows that are asked for are kept.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from sgoif.errors import SgoifError
from sgoif.sources.columns import ID_COLUMNS
from sgoif.sources.places import find_pictures
from sgoif.sources.reading import Pictures, plain_id
from sgoif.sources.tables import TABLE_SUFFIXES, TableFiles, TableInMemory, TableReader, table_from
from sgoif.sources.written import as_lines, is_written

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    *("WHOLE_TEXTS", "SequenceText", "SequenceTexts", "find_completion", "open_sequence_texts"),
    *("replace_completion", "sequence_text"),
]

# Columns that hold a whole text. A question or a query is half of one, whose other half may have any name.
WHOLE_TEXTS = ("text", "content", "document")
_TABLES = ("pandas", "polars", "pyarrow", "datasets")  # modules whose tables are read by columns


@dataclass(frozen=True, slots=True)
class SequenceText:
    """What a sequence says; the prompt is empty where the text is not divided."""

    prompt: str
    completion: str


class SequenceTexts(Protocol):
    """Where texts of sequences are, asked by the ids of a run."""

    about: str  # one phrase, for the page

    def read(self, ids: Sequence[Any]) -> dict[str, SequenceText]:
        """Give texts by ``str(id)``; ids that are not there are left out."""


def open_sequence_texts(data: Any) -> SequenceTexts:
    """Open a table of sequences (a file, or in memory), or anything else that :func:`find_pictures` takes.

    A table has columns ``prompt`` and ``completion``, or ``messages``, or ``text``. Its ids are those of a column
    ``id``, else row numbers.

    Raises:
        SgoifError: It does not exist, or has no such column.
    """
    if isinstance(data, str | os.PathLike):
        path = Path(data).expanduser()
        if path.is_file() and path.suffix.lower() in TABLE_SUFFIXES:
            return _TableTexts(TableFiles([path]), f"'{path.name}'")
    elif type(data).__module__.partition(".")[0] in _TABLES:
        table = table_from(data)
        if isinstance(table, TableInMemory):
            return _TableTexts(table, table.about)
    return _PlaceTexts(find_pictures(data))


def sequence_text(value: Any) -> SequenceText | None:
    """Divide an example into prompt and completion; of a conversation, the last message is the completion.

    >>> sequence_text({"prompt": "2 + 2?", "completion": "4"})
    SequenceText(prompt='2 + 2?', completion='4')
    >>> sequence_text({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]})
    SequenceText(prompt='user: Hi', completion='Hello')
    """
    if isinstance(value, str):
        return SequenceText("", value)
    if not is_written(value) or not isinstance(value, Mapping):
        return None
    field = _field_to_learn(value)
    if field is None:
        return SequenceText("", as_lines(value))
    learnt = value[field]
    if field == "messages":
        *before, last = learnt
        return SequenceText(_as_text(before), _content(last))
    prompt = value.get("prompt") if field == "completion" else None
    is_message = isinstance(learnt, list) and len(learnt) == 1
    return SequenceText(_as_text(prompt), _content(learnt[0]) if is_message else _as_text(learnt))


def find_completion(value: Mapping[str, Any]) -> str | None:
    """The completion of an example; None where it holds tokens, or nothing that is known to be one."""
    found = None if "input_ids" in value or _field_to_learn(value) is None else sequence_text(value)
    return None if found is None else found.completion


def replace_completion(value: Mapping[str, Any], completion: str) -> dict[str, Any] | None:
    """The same example with another completion; None where it holds tokens, or no text that could be replaced.

    >>> replace_completion({"prompt": "2 + 2?", "completion": "5"}, "4")
    {'prompt': '2 + 2?', 'completion': '4'}
    """
    field = _field_to_learn(value)
    if field is None or "input_ids" in value:
        return None
    learnt = value[field]
    if isinstance(learnt, str):
        return {**value, field: completion}
    last = learnt[-1]
    if (field == "completion" and len(learnt) > 1) or not isinstance(last, Mapping):
        return None
    if not isinstance(last.get("content"), str):
        return None
    return {**value, field: [*learnt[:-1], {**last, "content": completion}]}


def _field_to_learn(value: Mapping[str, Any]) -> str | None:
    """The field that holds what is learnt: the completion, the conversation, or the whole text."""
    if isinstance(value.get("completion"), str) or _is_conversation(value.get("completion")):
        return "completion"
    if _is_conversation(value.get("messages")):
        return "messages"
    return next((name for name in WHOLE_TEXTS if isinstance(value.get(name), str)), None)


def _is_conversation(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 0


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return "\n".join(f"{m.get('role', '?')}: {_content(m)}" if isinstance(m, Mapping) else str(m) for m in value)
    return str(value)


def _content(message: Any) -> str:
    """The text of a message, and its tool calls as JSON; parts that are no text are named by their type.

    >>> _content({"content": None, "tool_calls": [{"function": {"name": "add", "arguments": "{}"}}]})
    '{"name": "add", "arguments": "{}"}'
    """
    calls = (message.get("tool_calls") if isinstance(message, Mapping) else None) or []
    if isinstance(calls, list) and calls:
        told = [call.get("function", call) if isinstance(call, Mapping) else call for call in calls]
        said = _content({**message, "tool_calls": None})
        return "\n".join([*([said] if said else []), *(json.dumps(each, default=str) for each in told)])
    content = message.get("content") if isinstance(message, Mapping) else message
    if isinstance(content, list):
        parts = [part if isinstance(part, Mapping) else {"text": part} for part in content]
        return "\n".join(str(part.get("text") or f"({part.get('type', 'no text')})") for part in parts)
    return "" if content is None else str(content)


class _TableTexts:
    """Rows of a table, in one pass per question."""

    def __init__(self, reader: TableReader, about: str) -> None:
        self.about, self._reader = about, reader
        present = list(reader.schema.names)
        self._id = next((name for name in ID_COLUMNS if name in present), None)
        learnt = next((name for name in ("completion", "messages", *WHOLE_TEXTS) if name in present), None)
        if learnt is None:
            raise SgoifError(
                f"{reader.about} has no texts of sequences: it has {', '.join(present[:20])}; expected columns prompt "
                "and completion, or messages, or text."
            )
        prompt = ["prompt"] if learnt == "completion" and "prompt" in present else []
        self._columns = [*prompt, learnt]

    def read(self, ids: Sequence[Any]) -> dict[str, SequenceText]:
        import pyarrow as pa

        wanted = pa.array(sorted({str(plain_id(id)) for id in ids}), pa.string())
        found: dict[str, SequenceText] = {}
        for start, block in self._reader.blocks([*([self._id] if self._id else []), *self._columns]):
            for key, row in _rows_of(block, self._id, start, wanted):
                text = sequence_text(row)
                if text is not None and found.setdefault(key, text) != text:
                    raise SgoifError(
                        f"{self._reader.about} has several texts of the id {key!r}; every sequence needs its own."
                    )
        return found


def _rows_of(block: pa.Table, id: str | None, start: int, wanted: pa.Array) -> list[tuple[str, dict[str, Any]]]:
    """The wanted rows of a block, with their ids as text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    numbers = pa.array(range(start, start + len(block)), pa.int64())
    keys = (numbers if id is None else block[id]).cast(pa.string())
    is_wanted = pc.is_in(keys, wanted)
    rows = block.filter(is_wanted).to_pylist()
    return list(zip(keys.filter(is_wanted).to_pylist(), rows, strict=True))


class _PlaceTexts:
    """A dataset, a function or another place of examples."""

    def __init__(self, place: Pictures) -> None:
        self.about, self._place = place.about, place

    def read(self, ids: Sequence[Any]) -> dict[str, SequenceText]:
        values = ((str(plain_id(id)), sequence_text(value)) for id, value in zip(ids, self._place.read(ids)))
        return {id: text for id, text in values if text is not None}
