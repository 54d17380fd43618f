"""What people decided in Label Studio, out of its JSON export."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sgoif.errors import SgoifError
from sgoif.review.naming import find_class, some_of

__all__ = ["CHOICE", "DOUBT", "DOUBTS", "PICTURE", "read_answers"]

PICTURE, CHOICE, DOUBT = "image", "label", "doubt"  # names in the labelling interface
DOUBTS = {"several classes": "several", "none of the classes": "none", "drop it": "drop", "unsure": "unsure"}


def read_answers(path: str | os.PathLike[str], class_names: Sequence[str], num_classes: int) -> list[dict[str, Any]]:
    """Read every annotation of a JSON export: id, given label, decision, labels, reviewer and when.

    A class that is the given one keeps it, another relabels; what was skipped is unsure. Annotations without an answer
    are passed over.

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
) -> dict[str, Any] | None:
    if "id" not in about or "given_label" not in about:
        raise SgoifError("a task has no `id` and `given_label`; tasks are made by `sgoif export --to label-studio`.")
    chosen = {
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
    return {
        "id": str(about["id"]),
        "given_label": given,
        "decision": decision,
        "labels": labels,
        "reviewer": _person(annotation.get("completed_by")),
        "decided_at": str(annotation.get("updated_at") or annotation.get("created_at") or ""),
    }


def _person(completed_by: Any) -> str:
    """Who it was: Label Studio gives a number or a record."""
    if isinstance(completed_by, dict):
        completed_by = completed_by.get("email") or completed_by.get("id")
    return f"label-studio-{completed_by}" if completed_by is not None else "label-studio"
