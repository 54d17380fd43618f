"""Findings as FiftyOne samples: one per picture, with the given and the suggested label as classifications.

FiftyOne starts a database when it is imported, which not every machine allows: the module is handed in, never imported.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from sgoif.errors import SgoifError
from sgoif.findings.label import class_name
from sgoif.pictures import find_pictures

if TYPE_CHECKING:
    from sgoif.run import Run

__all__ = ["fiftyone_samples"]

_NUMBERS = ("p_mislabeled", "p_mislabeled_low", "p_mislabeled_high", "label_score", "harm", "worst", "confidence")


def fiftyone_samples(run: Run, images: Any, fiftyone: Any, *, top: int | None = None) -> Iterator[Any]:
    """Give one ``fiftyone.Sample`` per example, most suspicious first, for ``dataset.add_samples``.

    Fields: ``ground_truth`` (as given) and ``suggested`` are classifications, the second with the probability that the
    given one is wrong as its confidence; numbers by their names; ``sgoif_id``, ``why``; the tag ``label_issue``.

    Args:
        run: what was found.
        images: where pictures are, as in :meth:`Run.report`; they must be files, which FiftyOne shows where they lie.
        fiftyone: the module.
        top: how many; all by default.

    Raises:
        SgoifError: A picture is no file.
    """
    pictures = find_pictures(images)
    for row in run.label_issues(top=top).to_pylist():
        given, suggested = (class_name(row[name], run.class_names) for name in ("given_label", "suggested_label"))
        has_suggestion = row["suggested_label"] >= 0
        yield fiftyone.Sample(
            filepath=_file(pictures.link(row["id"]), row["id"]),
            ground_truth=fiftyone.Classification(label=given),
            suggested=fiftyone.Classification(label=suggested, confidence=row.get("p_mislabeled"))
            if has_suggestion
            else None,
            sgoif_id=str(row["id"]),
            why=row["why"],
            tags=["label_issue"] if row["is_label_issue"] else [],
            **{name: float(row[name]) for name in _NUMBERS if row.get(name) is not None},
        )


def _file(link: str | None, id: Any) -> str:
    if link is None:
        raise SgoifError(f"FiftyOne shows files, and {str(id)[:100]!r} has none; pass the folder of the pictures.")
    return url2pathname(urlsplit(link).path) if link.startswith("file://") else link
