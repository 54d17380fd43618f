"""Suspicious examples as tasks for Label Studio, with what the run suggests as predictions.

What people decided there comes back with its JSON export, which ``sgoif apply`` reads like a ``decisions.csv``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from sgoif.errors import SgoifError
from sgoif.findings.label import class_name
from sgoif.pictures import find_pictures
from sgoif.review.labelstudio import CHOICE, DOUBT, DOUBTS, PICTURE

if TYPE_CHECKING:
    from sgoif.run import Run

__all__ = ["label_studio_config", "label_studio_tasks"]


def label_studio_config(class_names: Sequence[str]) -> str:
    """The labelling interface: the picture, the classes to choose from, and what else may be said of it."""
    classes = "".join(f'<Choice value="{escape(name)}"/>' for name in class_names)
    doubts = "".join(f'<Choice value="{name}"/>' for name in DOUBTS)
    return (
        f'<View><Image name="{PICTURE}" value="${PICTURE}"/>'
        f'<Choices name="{CHOICE}" toName="{PICTURE}" choice="single" showInline="true">{classes}</Choices>'
        f'<Choices name="{DOUBT}" toName="{PICTURE}" choice="single" showInline="true">{doubts}</Choices></View>'
    )


def label_studio_tasks(
    run: Run, images: Any, *, top: int | None = 500, address: Callable[[Any], str] | None = None
) -> Iterator[dict[str, Any]]:
    """Give one task per example, most suspicious first: picture, id and given label, and the suggestion.

    Args:
        run: what was found; its classes need names.
        images: where pictures are, as in :meth:`Run.report`. Label Studio shows addresses, not copies.
        top: how many; None for all.
        address: from an id to what Label Studio shall open, where that is another address than ours.

    Raises:
        SgoifError: The classes have no names, or a picture has no address.
    """
    if not run.class_names:
        raise SgoifError("Label Studio chooses by name, and this run's classes have none; pass class_names= to watch.")
    find = address or find_pictures(images).link
    for row in run.label_issues(top=top).to_pylist():
        given, suggested = row["given_label"], row["suggested_label"]
        link = find(row["id"])
        if link is None:
            raise SgoifError(
                f"{str(row['id'])[:100]!r} has no address that a browser could open; name the folder or the URL of the "
                "pictures (images=, --images), or pass address=, a function from an id to one."
            )
        about = {"id": str(row["id"]), "given_label": given, "given_name": class_name(given, run.class_names)}
        task = {"data": {PICTURE: link, **about, "why": row["why"], "p_mislabeled": row.get("p_mislabeled")}}
        best = suggested if row["is_label_issue"] and suggested >= 0 else given
        yield task | {"predictions": [_prediction(class_name(best, run.class_names), row.get("p_mislabeled"))]}


def _prediction(name: str, p_mislabeled: float | None) -> dict[str, Any]:
    value = {"from_name": CHOICE, "to_name": PICTURE, "type": "choices", "value": {"choices": [name]}}
    return {"model_version": "sgoif", "score": p_mislabeled or 0.0, "result": [value]}
