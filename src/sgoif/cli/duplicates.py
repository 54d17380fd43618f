"""``sgoif duplicates``: examples that are the same or nearly, those with differing labels first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from sgoif.cli.options import Json, MaybeText, RunPath, how_many, need_one_of
from sgoif.cli.output import count, emit_json, print_lines, print_table, shorten
from sgoif.cli.run import name_of, open_run
from sgoif.files.tables import write_csv


def duplicates(
    run: RunPath,
    top: Annotated[int, how_many("pairs")] = 50,
    csv: Annotated[MaybeText, typer.Option(metavar="FILE", help="Write the pairs as CSV.")] = None,
    as_json: Json = False,
) -> None:
    """Show examples that are the same or nearly, those with differing labels first."""
    import pyarrow.compute as pc

    need_one_of(csv=csv, json=as_json)
    opened = open_run(run, needs_examples=True)
    pairs = opened.duplicates()
    differ, across = (int(pc.sum(pairs[name]).as_py() or 0) for name in ("labels_differ", "is_across_holdout"))
    shown = pairs.slice(0, top or None)
    if csv is not None:
        write_csv(shown, csv)
        return print_lines([f"{count(len(shown), 'pair')} written to {csv}."])
    if as_json:
        counts = {"num_pairs": len(pairs), "num_labels_differ": differ, "num_across_holdout": across}
        return emit_json("duplicates", **counts, pairs=shown.to_pylist())
    print_lines(
        [
            f"{count(len(pairs), 'pair')} of examples {'is' if len(pairs) == 1 else 'are'} the same or nearly so; the "
            f"labels differ in {count(differ)}, and {count(across)} {'has' if across == 1 else 'have'} one example in "
            "the training set and one in the hold-out."
        ]
    )
    if not len(shown):
        return

    def name_labels(row: Mapping[str, Any]) -> str:
        given, other = (name_of(opened, row[f"{kind}_label"]) for kind in ("given", "other"))
        return f"{given} and {other}" if row["labels_differ"] else f"both {given}"

    print_lines([""])
    print_table(
        shown.to_pylist(),
        {
            "id": lambda row: _show_id(row["id"], row["source"]),
            "copy": lambda row: _show_id(row["other_id"], row["other_source"]),
            "labels": name_labels,
            "alike": lambda row: f"nearly ({row['bits_apart']} of 256 bits differ)" if row["bits_apart"] else "same",
        },
        shrink=["id", "copy"],
    )


def _show_id(ident: Any, source: str) -> str:
    return shorten(ident) + (" (hold-out)" if source == "holdout" else "")
