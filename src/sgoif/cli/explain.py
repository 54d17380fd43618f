"""``sgoif explain``: which training pictures made the model predict this class for those?"""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sgoif.cli.models import load_model
from sgoif.cli.output import clean, count, emit_json, percent, print_lines, print_table, shorten
from sgoif.errors import SgoifError
from sgoif.files.tables import write_csv
from sgoif.usercode import import_named

if TYPE_CHECKING:
    import pyarrow as pa
    from torch import Tensor

    from sgoif.cli.labelled import LabelledPictures
    from sgoif.run import Run

__all__ = ["ExplainSettings", "show_explanation"]


@dataclass(frozen=True, slots=True)
class ExplainSettings:
    """The model, its training data, and the predictions to explain."""

    run: str
    model: str
    data: str
    queries: str
    target: str
    transform: str | None = None
    batch: int = 256
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class Queries:
    """The pictures asked about."""

    ids: list[Any]
    inputs: Tensor
    pictures: list[Any]  # to look at: bytes or paths
    broken: list[tuple[str, str]]


def show_explanation(
    settings: ExplainSettings,
    *,
    top: int | None = 50,
    csv: str | None = None,
    page: str | None = None,
    as_json: bool = False,
) -> None:
    """Look for suspects, and print them, write them, or make a page of them."""
    from sgoif.cli.labelled import LabelledPictures
    from sgoif.findings import with_probabilities
    from sgoif.ood.stored import picture_input
    from sgoif.pictures.sources import open_source
    from sgoif.run import load

    run, source = load(settings.run), open_source(settings.data)
    target = _target(settings.target, run, source.class_names)
    model = load_model(settings.model, settings.device)
    named = None if settings.transform is None else import_named(settings.transform, "--transform")
    prepare = picture_input(model, named)
    dataset, queries = LabelledPictures(source, prepare), _read_queries(settings, model, prepare)
    found = run.poison_suspects(
        queries.inputs, target, model=model, dataset=dataset, head=run.info.get("head"), batch_size=settings.batch
    )
    table = with_probabilities(_named(found, dataset), run.sql)  # by the names, which are the run's ids
    counts = {
        "num_queries": len(queries.ids),
        "num_examples": len(table),
        "num_suspects": int(sum(table["is_suspect"].to_pylist())),
        "num_broken": len(dataset.broken) + len(queries.broken),
    }
    written = page if counts["num_suspects"] else None
    if written is not None:
        run.report_suspects(table, queries.pictures, written, images=settings.data)
    shown = table.slice(0, top)
    if csv is not None:
        write_csv(shown.drop_columns(["near_queries"]), csv)
    if as_json:
        document = {"settings": asdict(settings), "counts": counts, "queries": [str(id) for id in queries.ids]}
        emit_json({"command": "explain", "format": 1, **document, "examples": shown.to_pylist(), "page": written})
        return
    print_lines([_said(settings.target, counts)])
    if csv is None and page is None:
        print_lines([""])
        _print(shown.to_pylist())
    if csv is not None:
        print_lines([f"{count(len(shown), 'row')} written to {csv}."])
    if page is not None and written is None:
        print_lines(["No page was written: there is nobody to decide about."])
    if written is not None:
        told = f"{clean(written)}: open it in any browser. Drop there what should go, download the decisions, and:"
        print_lines([told, f"  sgoif apply {shlex.quote(settings.run)} decisions.csv --out manifest.parquet"])


def _target(text: str, run: Run, names: tuple[str, ...]) -> int:
    """The class by the number that it has in the data, which must be the one that it has in the run."""
    from sgoif.review.naming import find_class, some_of

    known = list(run.class_names)
    if known and list(names) != known:
        classes = some_of(names, len(names))
        raise SgoifError(f"the data has the classes {classes}; the run was made with {some_of(known, len(known))}.")
    found = find_class(text, names, len(names))
    if found is None:
        raise SgoifError(f"there is no class {text!r} in the data; it has {some_of(names, len(names))}.")
    return found


def _read_queries(settings: ExplainSettings, model: Any, prepare: Any) -> Queries:
    import torch

    from sgoif.ood.stored import stored_batches, stored_pictures

    broken: list[tuple[str, str]] = []
    parts = list(stored_batches(settings.queries, model, settings.batch, broken, transform=prepare))
    if not parts:
        raise SgoifError(f"none of the pictures in '{settings.queries}' can be read: {broken[0][1]}.")
    ids = [id for names, _ in parts for id in names]
    wanted = set(map(str, ids))
    pictures = [picture for id, picture in stored_pictures(Path(settings.queries)) if str(id) in wanted]
    return Queries(ids, torch.cat([inputs for _, inputs in parts]), pictures, broken)


def _named(table: pa.Table, dataset: LabelledPictures) -> pa.Table:
    """Ids as the data has them instead of positions, without pictures that could not be read."""
    import pyarrow as pa

    positions = table["id"].to_pylist()
    ids = pa.array([str(dataset.ids_by_position[i]) for i in positions], pa.string())
    is_read = pa.array([i not in dataset.broken for i in positions])
    return table.set_column(0, "id", ids).filter(is_read)


def _said(target: str, counts: dict[str, int]) -> str:
    said = (
        f"{count(counts['num_suspects'])} of {count(counts['num_examples'], 'training picture')} labelled {target} "
        f"stand with {count(counts['num_queries'], 'picture')} asked about."
    )
    broken = counts["num_broken"]
    return said if not broken else f"{said} {count(broken, 'picture')} could not be read."


def _print(rows: list[dict[str, Any]]) -> None:
    print_table(
        ["id", "score", "suspect", "like", "effect (nats)", "p", "near queries"],
        [
            [
                shorten(row["id"]),
                f"{row['score']:.3f}",
                "yes" if row["is_suspect"] else "",
                percent(max(row["similarity"], 0.0)),
                f"{row['effect']:+.1e}",
                "" if row["p_mislabeled"] is None else f"{row['p_mislabeled']:.2f}",
                ", ".join(str(number + 1) for number in row["near_queries"]),
            ]
            for row in rows
        ],
        right=["score", "like", "effect (nats)", "p"],
        shrink=["id"],
    )
