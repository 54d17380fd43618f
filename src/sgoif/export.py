"""A run's findings in the shapes of other tools: cleanlab's Datalab, FiftyOne, Hugging Face, Label Studio.

None of them is imported. FiftyOne starts a database when it is, which not every machine allows: pass in its module.
What people decide in Label Studio comes back with its JSON export, which ``sgoif apply`` reads like ``decisions.csv``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit
from urllib.request import url2pathname

import numpy as np
from numpy.typing import NDArray

from sgoif.errors import SgoifError
from sgoif.evidence import hash_ids
from sgoif.files.tables import replacing
from sgoif.findings.label import class_name
from sgoif.findings.sequences import harm_by_group
from sgoif.findings.suspects import suspects
from sgoif.review.decisions import CHOICE, DOUBT, DOUBTS, PICTURE, TEXT
from sgoif.sources import find_pictures
from sgoif.sources.written import as_lines, is_written

if TYPE_CHECKING:
    import pyarrow as pa

    from sgoif.run import Run
    from sgoif.types import Columns

__all__ = [
    "datalab_issues",
    "fiftyone_samples",
    "label_studio_config",
    "label_studio_kind",
    "label_studio_tasks",
    "sequence_rows",
    "with_findings",
    "write_token_harms",
]

_AT_ONCE = 50_000  # sequences whose effects are looked up together
_LOOKED_AT = 8  # examples by which it is told what all of them are

_NUMBERS = ("p_mislabeled", "p_mislabeled_low", "p_mislabeled_high", "label_score", "harm", "worst", "confidence")
_COLUMNS = ("p_mislabeled", "no_p_reason", "suggested_label", "harm", "worst", "confidence")


def datalab_issues(run: Run) -> pa.Table:
    """One row per example in the order of their ids: what ``Datalab.get_issues("label")`` gives.

    ``is_label_issue``, ``label_score`` (low is bad), ``given_label`` and ``predicted_label`` by name where classes have
    names; the predicted label is the given one where nothing speaks against it. Beside these four, the ``id`` and its
    ``source``: ``train``, or ``holdout`` for an example that was held out. Verified labels and examples without a class
    have no row.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    issues = run.label_issues().select(
        ["id", "source", "is_label_issue", "label_score", "given_label", "suggested_label"]
    )
    issues = issues.filter(pc.greater_equal(issues["given_label"], 0))
    found = issues.sort_by([("id", "ascending"), ("source", "descending")])  # of two with the same id the trained first
    given, suggested = (np.asarray(found[f"{kind}_label"], dtype=np.int64) for kind in ("given", "suggested"))
    is_issue = np.asarray(found["is_label_issue"], dtype=bool)
    rows: dict[str, Any] = {name: found[name] for name in ("id", "source", "is_label_issue", "label_score")}
    labels = {"given_label": given, "predicted_label": np.where(is_issue & (suggested >= 0), suggested, given)}
    for name, values in labels.items():
        known, place = np.unique(values, return_inverse=True)  # each name is looked up once
        names = np.array([class_name(int(label), run.class_names) for label in known], dtype=object)
        rows[name] = names[place] if run.class_names else values
    return pa.table(rows)


def sequence_rows(run: Run, *, by: str = "suspicion", top: int | None = None) -> Iterator[dict[str, Any]]:
    """Give one dictionary per sequence of a language model, most suspicious first, for a JSONL file.

    The columns of :meth:`Run.sequence_issues`; ``harm_by_group``, null where a sequence was never judged; and
    ``decision``, null until you write keep, drop, edit or unsure there for ``sgoif apply``.

    Args:
        run: what was found.
        by: what they are ranked by.
        top: how many; None or 0 for all.
    """
    issues = run.sequence_issues(by=by, top=top)
    for start in range(0, len(issues), _AT_ONCE):
        rows = issues.slice(start, _AT_ONCE).to_pylist()
        harm = harm_by_group(run.sql, [row["id"] for row in rows])
        for row in rows:
            yield {**row, "harm_by_group": harm.get(str(row["id"])), "decision": None}


class _ExplainsTokens(Protocol):
    """What is asked of the monitor of a language model."""

    def explain_tokens(self, item: Mapping[str, Any], group: str | None = None) -> Columns:
        """Loss and harm of each token of a sequence."""


def write_token_harms(
    monitor: _ExplainsTokens,
    items: Iterable[tuple[Any, Mapping[str, Any]]],
    out: str | os.PathLike[str],
    *,
    tokenizer: Any,
    groups: Mapping[Any, str] | str | None = None,
) -> int:
    """Write which tokens of some sequences carry their harm, for the review page (``sgoif report --tokens``).

    One JSON line per sequence. Costs about five forward passes each, so write those that are looked at. Experimental.

    Args:
        monitor: of the training, see ``explain_tokens``; the run on disk does not know the directions of the groups.
        items: ids of the run, each with its sequence as the dataset has it.
        out: the file, ``.jsonl``.
        tokenizer: has ``decode``, from a list of token ids to text.
        groups: name of the group; or by id, such as the ``worst_group`` of ``run.sequence_issues()``. Without, and for
            ids that are missing there, all evaluation sequences together.

    Returns:
        How many sequences were written.
    """
    written = 0
    with replacing(out) as file:
        for id, item in items:
            group = groups if isinstance(groups, str) else None if groups is None else groups.get(id)
            found = monitor.explain_tokens(item, group)
            texts = _decode_each(found["token"].tolist(), tokenizer)
            columns = zip(texts, found["loss"].tolist(), found["harm"].tolist(), strict=True)
            tokens = [{"text": text, "loss": _finite(loss), "harm": _finite(harm)} for text, loss, harm in columns]
            plain = id.item() if hasattr(id, "item") else id
            file.write(json.dumps({"id": plain, "group": group, "tokens": tokens}, allow_nan=False).encode() + b"\n")
            written += 1
    return written


def _decode_each(tokens: Sequence[int], tokenizer: Any) -> list[str]:
    """The text that each token adds: some tokenizers drop the blank before a token that is decoded alone."""
    texts = []
    for place, token in enumerate(tokens):
        before = tokens[max(place - 1, 0) : place]
        start, both = tokenizer.decode(before) if before else "", tokenizer.decode([*before, token])
        texts.append(both[len(start) :] if both.startswith(start) else tokenizer.decode([token]))
    return texts


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def fiftyone_samples(run: Run, images: Any, fiftyone: Any, *, top: int | None = None) -> Iterator[Any]:
    """Give one ``fiftyone.Sample`` per example, most suspicious first, for ``dataset.add_samples``.

    Fields: ``ground_truth`` (as given) and ``suggested`` are classifications, the second with the probability that the
    given one is wrong as its confidence; numbers by their names; ``sgoif_id``, ``why``; the tag ``label_issue``.

    Args:
        run: what was found.
        images: where pictures are, as in :meth:`Run.report`; they must be files, which FiftyOne shows where they lie.
        fiftyone: the module.
        top: how many; None or 0 for all.

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


def with_findings(
    run: Run, dataset: Any, *, ids: str | Sequence[Any] | None = None, columns: Sequence[str] = _COLUMNS
) -> Any:
    """Return the dataset with columns of ``examples``, named ``sgoif_...``; empty where the run does not know a row.

    Rows that the run held out have theirs, too; verified ones are empty.

    Args:
        run: what was found.
        dataset: a ``datasets.Dataset``.
        ids: the column that holds the ids, or the ids themselves; positions by default, as of ``sgoif.with_ids``.
        columns: which; those that the run lacks are left out.

    Raises:
        SgoifError: Not one id is one of the run's.
    """
    found = suspects(run.sql)
    order = np.argsort(found["source"] == "holdout", kind="stable")  # an id in both is the training example's
    table = {name: column[order] for name, column in found.items()}
    own = np.asarray(range(len(dataset)) if ids is None else dataset[ids] if isinstance(ids, str) else ids)
    places = {True: _find_places(table["id"], own), False: _find_places(run.table["id"], own)}
    if len(own) and (places[True] < 0).all():
        raise SgoifError("no id of the dataset is one of this run's; pass ids=, the column that holds them.")
    for name in (name for name in columns if name in run.table):
        place = places[name in table]  # columns that the hold-out lacks are those of training examples alone
        values = table.get(name, run.table[name])[np.maximum(place, 0)].tolist()
        column = [None if row < 0 else value for value, row in zip(values, place.tolist(), strict=True)]
        dataset = dataset.add_column(f"sgoif_{name}", column)
    return dataset


def _find_places(known: NDArray[Any], asked: NDArray[Any]) -> NDArray[np.int64]:
    """Where each id stands in the run's table, -1 where nowhere. Numbers and their text are the same id."""
    is_text = known.dtype.kind not in "iu" or asked.dtype.kind not in "iu"
    hashes = [hash_ids(ids.astype(str) if is_text else ids.astype(np.int64)) for ids in (known, asked)]
    order = np.argsort(hashes[0], kind="stable")
    place = np.minimum(np.searchsorted(hashes[0], hashes[1], sorter=order), len(known) - 1)
    return np.where(hashes[0][order[place]] == hashes[1], order[place], -1)


def label_studio_config(class_names: Sequence[str], kind: str = PICTURE) -> str:
    """The labelling interface: the example, the classes to choose from, and what else may be said of it.

    Args:
        class_names: by class.
        kind: ``"image"`` or ``"text"``: what the tasks hold, of :func:`label_studio_kind`.
    """
    classes = "".join(f'<Choice value="{escape(name)}"/>' for name in class_names)
    doubts = "".join(f'<Choice value="{name}"/>' for name in DOUBTS)
    tag = "Image" if kind == PICTURE else "Text"
    return (
        f'<View><{tag} name="{kind}" value="${kind}"/>'
        f'<Choices name="{CHOICE}" toName="{kind}" choice="single" showInline="true">{classes}</Choices>'
        f'<Choices name="{DOUBT}" toName="{kind}" choice="single" showInline="true">{doubts}</Choices></View>'
    )


def label_studio_kind(tasks: Sequence[Mapping[str, Any]]) -> str:
    """What tasks hold: ``"image"``, or ``"text"`` for texts and for rows, which are written as lines."""
    return TEXT if any(TEXT in task["data"] for task in tasks) else PICTURE


def label_studio_tasks(
    run: Run, images: Any, *, top: int | None = 500, address: Callable[[Any], str] | None = None
) -> Iterator[dict[str, Any]]:
    """Give one task per example, most suspicious first: the example, its id and given label, and the suggestion.

    Pictures are addresses, which Label Studio opens; texts are in the task, and so are rows, as ``column: value``
    lines.

    Args:
        run: what was found; its classes need names.
        images: where pictures, texts or rows are, as in :meth:`Run.report`.
        top: how many; None or 0 for all.
        address: from an id of a picture to what Label Studio shall open, where that is another address than ours.

    Raises:
        SgoifError: The classes have no names, a picture has no address, or a text cannot be found.
    """
    if not run.class_names:
        raise SgoifError("Label Studio chooses by name, and this run's classes have none; pass class_names= to watch.")
    rows = run.label_issues(top=top).to_pylist()
    for row, (kind, shown) in zip(rows, _label_studio_examples([row["id"] for row in rows], images, address)):
        given, suggested = row["given_label"], row["suggested_label"]
        about = {"id": str(row["id"]), "given_label": given, "given_name": class_name(given, run.class_names)}
        task = {"data": {kind: shown, **about, "why": row["why"], "p_mislabeled": row.get("p_mislabeled")}}
        best = suggested if row["is_label_issue"] and suggested >= 0 else given
        choice = {"choices": [class_name(best, run.class_names)]}
        result = {"from_name": CHOICE, "to_name": kind, "type": "choices", "value": choice}
        prediction = {"model_version": "sgoif", "score": row.get("p_mislabeled") or 0.0, "result": [result]}
        yield task | {"predictions": [prediction]}


def _label_studio_examples(
    ids: Sequence[Any], images: Any, address: Callable[[Any], str] | None
) -> Iterator[tuple[str, str]]:
    """What Label Studio shows of each example: all are addresses of pictures, or all are texts."""
    place = None if address is not None else find_pictures(images)
    if place is not None and any(is_written(value) for value in place.read(ids[:_LOOKED_AT])):
        for ident, value in zip(ids, place.read(ids)):
            if not is_written(value):
                raise SgoifError(f"{str(ident)[:100]!r} has no text or row in {place.about}; other examples have one.")
            yield TEXT, as_lines(value)
        return
    for ident in ids:
        link = place.link(ident) if place is not None else address(ident) if address is not None else None
        if link is None:
            raise SgoifError(
                f"{str(ident)[:100]!r} has no address that a browser could open; name the folder or the URL of the "
                "pictures (images=, --images), or pass address=, a function from an id to one."
            )
        yield PICTURE, link
