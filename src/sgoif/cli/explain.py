"""``sgoif explain``: which training pictures made the model predict this class for those?"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from sgoif.cli.models import load_model, load_transform
from sgoif.cli.options import Csv, Device, Json, Model, Page, RunPath, Size, Transform, how_many, need_one_of, require
from sgoif.cli.output import clean, count, emit_json, percent, print_lines, print_table, shorten
from sgoif.errors import SgoifError
from sgoif.files.tables import write_csv

if TYPE_CHECKING:
    import pyarrow as pa

    from sgoif.cli.labelled import LabelledPictures
    from sgoif.run import Run


def explain(
    run: RunPath,
    model: Model,
    data: Annotated[str, require("DATA", "Read what the model was trained on: class folders or Parquet.")],
    queries: Annotated[str, require("DIR", "Read pictures that the model gets wrong: a folder or Parquet.")],
    target: Annotated[str, require("CLASS", "Name the class that the model takes them for.")],
    transform: Transform = None,
    top: Annotated[int, how_many("examples")] = 50,
    csv: Csv = None,
    page: Page = None,
    batch: Size = 256,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Show which training pictures caused a bad prediction: those of a backdoor, for example."""
    need_one_of(csv=csv, json=as_json)
    import torch

    from sgoif.cli.labelled import LabelledPictures
    from sgoif.findings import with_probabilities
    from sgoif.ood.stored import picture_input, stored_batches, stored_pictures
    from sgoif.run import load
    from sgoif.sources.labelled import open_source

    opened, source = load(run), open_source(data)
    label = _find_target(target, opened, source.class_names)
    loaded = load_model(model, device)
    prepare = picture_input(loaded, load_transform(transform))
    dataset = LabelledPictures(source, prepare)
    broken: list[tuple[str, str]] = []
    parts = list(stored_batches(queries, loaded, batch, broken, transform=prepare))
    if not parts:
        raise SgoifError(f"none of the pictures in '{queries}' can be read: {broken[0][1]}.")
    ids, inputs = [str(id) for names, _ in parts for id in names], torch.cat([inputs for _, inputs in parts])
    found = opened.poison_suspects(
        inputs, label, model=loaded, dataset=dataset, head=opened.info.get("head"), batch_size=batch
    )
    table = with_probabilities(_name_examples(found, dataset), opened.sql)  # by the names, which are the run's ids
    counts = {
        "num_queries": len(ids),
        "num_examples": len(table),
        "num_suspects": int(sum(table["is_suspect"].to_pylist())),
        "num_broken": len(dataset.broken) + len(broken),
    }
    written = page if counts["num_suspects"] else None
    if written is not None:
        wanted = set(ids)
        pictures = [picture for id, picture in stored_pictures(Path(queries)) if str(id) in wanted]
        opened.report_suspects(table, pictures, written, images=data)
    shown = table.slice(0, top or None)
    if csv is not None:
        write_csv(shown.drop_columns(["near_queries"]), csv)
    if as_json:
        settings: dict[str, Any] = {"run": run, "model": model, "data": data, "queries": queries, "target": target}
        settings |= {"transform": transform, "batch": batch, "device": device}
        document = {"settings": settings, "counts": counts, "queries": ids}
        return emit_json("explain", **document, examples=shown.to_pylist(), page=written)
    told = f"{count(counts['num_suspects'])} of {count(len(table), 'training picture')} labelled {target} stand with "
    told += f"{count(len(ids), 'picture')} asked about."
    if counts["num_broken"]:
        told += f" {count(counts['num_broken'], 'picture')} could not be read."
    print_lines([told])
    if csv is None and page is None:
        print_lines([""])
        _print(shown.to_pylist())
    if csv is not None:
        print_lines([f"{count(len(shown), 'row')} written to {csv}."])
    if page is not None and written is None:
        print_lines(["No page was written: there is nobody to decide about."])
    if written is not None:
        told = f"{clean(written)}: open it in any browser. Drop there what should go, download the decisions, and:"
        print_lines([told, f"  sgoif apply {shlex.quote(run)} decisions.csv --out manifest.parquet"])


def _find_target(text: str, run: Run, names: tuple[str, ...]) -> int:
    """The class by the number that it has in the data, which must be the one that it has in the run."""
    from sgoif.review.decisions import find_class, some_of

    known = list(run.class_names)
    if known and list(names) != known:
        classes = some_of(names, len(names))
        raise SgoifError(f"the data has the classes {classes}; the run was made with {some_of(known, len(known))}.")
    found = find_class(text, names, len(names))
    if found is None:
        raise SgoifError(f"there is no class {text!r} in the data; it has {some_of(names, len(names))}.")
    return found


def _name_examples(table: pa.Table, dataset: LabelledPictures) -> pa.Table:
    """Ids as the data has them instead of positions, without pictures that could not be read."""
    import pyarrow as pa

    positions = table["id"].to_pylist()
    ids = pa.array([str(dataset.ids_by_position[i]) for i in positions], pa.string())
    is_read = pa.array([i not in dataset.broken for i in positions])
    return table.set_column(0, "id", ids).filter(is_read)


def _print(rows: list[dict[str, Any]]) -> None:
    print_table(
        rows,
        {
            "id": lambda row: shorten(row["id"]),
            "score": lambda row: f"{row['score']:.3f}",
            "suspect": lambda row: "yes" if row["is_suspect"] else "",
            "like": lambda row: percent(max(row["similarity"], 0.0)),
            "effect (nats)": lambda row: f"{row['effect']:+.1e}",
            "p": lambda row: "" if row["p_mislabeled"] is None else f"{row['p_mislabeled']:.2f}",
            "near queries": lambda row: ", ".join(str(number + 1) for number in row["near_queries"]),
        },
        right=["score", "like", "effect (nats)", "p"],
        shrink=["id"],
    )
