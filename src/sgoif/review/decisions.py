"""What people decided, as a CSV file that they can read, edit and send: one row per example and person.

An example is known by ``str(id)`` here, whatever the type of the run's ids, and a decision is about its label as it was
given: on the same example with another label, nothing has been decided. A JSON export of Label Studio is read too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from sgoif.errors import SgoifError
from sgoif.files.tables import read_csv_rows, write_csv_rows

__all__ = [
    *("CHOICE", "COLUMNS", "DOUBT", "DOUBTS", "KINDS", "NO_CLASS", "PICTURE", "TEXT", "WRONG", "Decision"),
    *("by_example", "find_class", "find_past", "latest", "read_decisions", "some_of", "write_decisions"),
]

COLUMNS = (
    *("id", "given_label", "given_name", "decision", "label", "label_name"),
    *("note", "reviewer", "decided_at", "content", "list"),
)
WRONG = ("relabel", "drop", "several", "none", "edit")  # none: of these classes; edit: a sequence was corrected
KINDS = ("keep", "relabel", "drop", "unsure", "several", "none")
NO_CLASS = -1  # the given label of a sequence
_NEEDED = ("id", "given_label", "decision")
PICTURE, TEXT, CHOICE, DOUBT = "image", "text", "label", "doubt"  # names in the labelling interface of Label Studio
DOUBTS = {"several classes": "several", "none of the classes": "none", "drop it": "drop", "unsure": "unsure"}


@dataclass(frozen=True, slots=True)
class Decision:
    """What one person says about one example's label."""

    id: str
    given_label: int
    decision: str  # one of KINDS
    labels: tuple[int, ...] = ()  # the new one of relabel; those of several
    note: str = ""
    reviewer: str = ""
    decided_at: str = ""  # ISO 8601, UTC
    content: str = ""  # hash of the picture, text or row that was shown
    list_id: str = ""  # the list of cards that it came from
    given_name: str = ""
    label_name: str = ""
    completion: str = ""  # the corrected one, of a sequence that was edited

    @property
    def key(self) -> tuple[str, int]:
        """The example and the label that it had."""
        return self.id, self.given_label

    @property
    def is_wrong(self) -> bool | None:
        """Whether the given label is wrong; None where the person could not tell."""
        return None if self.decision == "unsure" else self.decision in WRONG

    @property
    def answer(self) -> tuple[str, tuple[int, ...]]:
        """What is compared between people: the decision with its classes."""
        return self.decision, tuple(sorted(self.labels))


def read_decisions(path: str | os.PathLike[str], class_names: Sequence[str], num_classes: int) -> list[Decision]:
    """Read a file of decisions, a manifest that was made of some, or a JSON export of Label Studio.

    Rows without a decision are passed over, and later decisions replace earlier ones.

    ``label`` holds numbers of classes. Where it is empty, ``label_name`` is looked up, as people edit such files by
    hand. Without a column ``reviewer``, the file's name is the person's. Further columns do not matter.

    Raises:
        SgoifError: A row cannot be understood; the message tells its line.
    """
    if not Path(path).is_file():
        raise SgoifError(f"'{path}' is no file; pass a decisions.csv that the review page gave.")
    if Path(path).suffix == ".parquet":
        return _read_manifest(path)
    if Path(path).suffix == ".json":
        return latest(_read_label_studio(path, class_names, num_classes))
    found = []
    for line, row in read_csv_rows(path, _NEEDED):
        if not row["decision"].strip():
            continue
        try:
            found.append(_decision(row, class_names, num_classes, Path(path).stem))
        except SgoifError as error:
            raise SgoifError(f"line {line} of '{path}': {error}") from None
    return latest(found)


def _read_manifest(path: str | os.PathLike[str]) -> list[Decision]:
    """What people settled on, out of a manifest in Parquet; only its reviewed rows are held."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    needed = ["id", "given_label", "action", "label", "labels", "reviewers", "decided_at", "note", "content"]
    try:
        rows = pq.read_table(path, columns=needed, filters=[("action", "in", KINDS)]).to_pylist()
    except (pa.ArrowException, OSError, KeyError) as error:
        raise SgoifError(f"'{path}' is no manifest of `sgoif apply`: {str(error).splitlines()[0]}") from error
    return [
        Decision(
            id=str(row["id"]),
            given_label=row["given_label"],
            decision=row["action"],
            labels=tuple({"several": row["labels"] or (), "relabel": [row["label"]]}.get(row["action"], ())),
            note=row["note"] or "",
            reviewer=row["reviewers"] or "",
            decided_at=str(row["decided_at"] or ""),
            content=row["content"] or "",
        )
        for row in rows
    ]


def write_decisions(decisions: Iterable[Decision], path: str | os.PathLike[str]) -> None:
    """Write decisions as the review page does."""
    write_csv_rows(
        path,
        COLUMNS,
        (
            [
                *(item.id, item.given_label, item.given_name, item.decision),
                *("|".join(map(str, item.labels)), item.label_name, item.note),
                *(item.reviewer, item.decided_at, item.content, item.list_id),
            ]
            for item in decisions
        ),
    )


def latest(decisions: Iterable[Decision]) -> list[Decision]:
    """Keep the last decision of each person on each example and label: by time, or by order where times are unknown."""
    found: dict[tuple[str, str, int], Decision] = {}
    for item in decisions:
        key = item.reviewer, *item.key
        earlier = found.get(key)
        if earlier is None or not item.decided_at or item.decided_at >= earlier.decided_at:
            found[key] = item
    return list(found.values())


def by_example(decisions: Iterable[Decision]) -> dict[tuple[str, int], list[Decision]]:
    """Put decisions together that are about the same example and label."""
    found: dict[tuple[str, int], list[Decision]] = {}
    for item in decisions:
        found.setdefault(item.key, []).append(item)
    return found


def find_past(
    decisions: Mapping[tuple[str, int], Sequence[Decision]], id: object, given_label: int, content: str = ""
) -> Decision | None:
    """Find the last decision that still holds: the example has the same label, and the same content where both tell.

    ``content`` is the hash of its picture, text or row now, empty where it is unknown.
    """
    held = [
        item
        for item in decisions.get((str(id), int(given_label)), ())
        if not item.content or not content or item.content == content
    ]
    return max(held, key=lambda item: item.decided_at) if held else None


def _decision(row: Mapping[str, str], names: Sequence[str], num_classes: int, reviewer: str) -> Decision:
    kind = row["decision"].strip().casefold()
    if kind not in KINDS:
        raise SgoifError(f"a decision is one of {', '.join(KINDS)}, got {row['decision']!r}.")
    given = _class(row["given_label"], row.get("given_name", ""), names, num_classes)
    labels = _labels(kind, row, names, num_classes)
    if kind == "relabel" and labels == (given,):
        kind, labels = "keep", ()
    return Decision(
        id=row["id"],
        given_label=given,
        decision=kind,
        labels=labels,
        note=row.get("note", ""),
        reviewer=row.get("reviewer", "").strip() or reviewer,
        decided_at=_utc(row.get("decided_at", "")),
        content=row.get("content", "").strip(),
        list_id=row.get("list", "").strip(),
        given_name=row.get("given_name", ""),
        label_name=row.get("label_name", ""),
    )


def _labels(kind: str, row: Mapping[str, str], names: Sequence[str], num_classes: int) -> tuple[int, ...]:
    """The classes that belong to a decision; cells that belong to none are passed over."""
    if kind not in ("relabel", "several"):
        return ()
    numbers, called = row.get("label", "").strip(), row.get("label_name", "").strip()
    if not numbers and not called:
        raise SgoifError(f"{kind} needs a class in the column label or label_name.")
    if kind == "relabel":
        return (_class(numbers, called, names, num_classes),)
    parts = [(part, "") for part in numbers.split("|")] if numbers else [("", part) for part in called.split("|")]
    labels = tuple(dict.fromkeys(_class(*part, names, num_classes) for part in parts))
    if len(labels) < 2:
        raise SgoifError(f"several needs at least two classes with | between them, got {numbers or called!r}.")
    return labels


def _class(number: str, name: str, names: Sequence[str], num_classes: int) -> int:
    """A class by its number; by its name where there is no number, or where a person wrote the name there."""
    found = find_number(number, num_classes)
    if found is None:
        found = find_class(number or name, names, num_classes)
    if found is None:
        raise SgoifError(f"there is no class {(number or name).strip()!r}; there are {some_of(names, num_classes)}.")
    return found


def _utc(text: str) -> str:
    """A time as ISO 8601 in UTC, so that times compare as texts; empty where a spreadsheet has made it unreadable."""
    try:
        found = datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
    except ValueError:
        return ""
    if found.tzinfo is None:
        found = found.replace(tzinfo=timezone.utc)
    return found.astimezone(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _read_label_studio(path: str | os.PathLike[str], class_names: Sequence[str], num_classes: int) -> list[Decision]:
    """Read every annotation of a JSON export: the given class keeps it, another relabels, and a skipped one is unsure.

    Annotations without an answer are passed over.

    Raises:
        SgoifError: It is no such export, or of tasks that were not made here.
    """
    try:
        tasks = json.loads(Path(path).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise SgoifError(f"'{path}' cannot be read as JSON: {error}") from error
    if not isinstance(tasks, list) or not all(isinstance(task, dict) and "data" in task for task in tasks):
        raise SgoifError(f"'{path}' is no JSON export of Label Studio: expected a list of tasks with `data`.")
    return [
        answer
        for task in tasks
        for annotation in task.get("annotations", [])
        if (answer := _answer(task["data"], annotation, class_names, num_classes)) is not None
    ]


def _answer(
    about: Mapping[str, Any], annotation: Mapping[str, Any], class_names: Sequence[str], num_classes: int
) -> Decision | None:
    if "id" not in about or "given_label" not in about:
        raise SgoifError("a task has no `id` and `given_label`; tasks are made by `sgoif export --to label-studio`.")
    chosen: dict[Any, Any] = {
        item.get("from_name"): item["value"]["choices"]
        for item in annotation.get("result", [])
        if item.get("type") == "choices" and item.get("value", {}).get("choices")
    }
    given, labels = int(about["given_label"]), tuple[int, ...]()
    if annotation.get("was_cancelled"):
        decision = "unsure"
    elif DOUBT in chosen:
        decision = DOUBTS[chosen[DOUBT][0]]
    elif CHOICE in chosen:
        label = find_class(chosen[CHOICE][0], class_names, num_classes)
        if label is None:
            raise SgoifError(f"{chosen[CHOICE][0]!r} is none of {some_of(class_names, num_classes)}.")
        decision, labels = ("keep", ()) if label == given else ("relabel", (label,))
    else:
        return None
    at = str(annotation.get("updated_at") or annotation.get("created_at") or "")
    reviewer = _name_person(annotation.get("completed_by"))
    return Decision(str(about["id"]), given, decision, labels, reviewer=reviewer, decided_at=at)


def _name_person(completed_by: Any) -> str:
    """Who it was: Label Studio gives a number or a record."""
    if isinstance(completed_by, dict):
        completed_by = completed_by.get("email") or completed_by.get("id")
    return f"label-studio-{completed_by}" if completed_by is not None else "label-studio"


def find_class(text: str, names: Sequence[str], num_classes: int) -> int | None:
    """Read a class as a person writes it: its name, its name in other letters' case, or its number.

    >>> find_class(" Dog", ["cat", "dog"], 2), find_class("1", ["cat", "dog"], 2), find_class("2", ["cat", "dog"], 2)
    (1, 1, None)
    """
    wanted = text.strip()
    if wanted in names:
        return list(names).index(wanted)
    alike = [i for i, name in enumerate(names) if name.strip().casefold() == wanted.casefold()]
    return alike[0] if len(alike) == 1 else find_number(wanted, num_classes)


def find_number(text: str, num_classes: int) -> int | None:
    """Read the number of a class; a spreadsheet may have written it as ``3.0``.

    >>> find_number("3", 4), find_number("3.0", 4), find_number("4", 4), find_number("cat", 4)
    (3, 3, None, None)
    """
    digits = text.strip().removesuffix(".0")
    number = int(digits) if digits.isascii() and digits.isdigit() else -1
    return number if 0 <= number < num_classes else None


def some_of(names: Sequence[str], num_classes: int, most: int = 12) -> str:
    """List classes for a message."""
    if not names:
        return f"classes 0 to {num_classes - 1}"
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
